"""What plain decoding would take is told from single-token passes of the answer itself."""

from collections.abc import Iterable

import pytest

from specdec_cli.decode.plain_pace import PlainChecks, PlainPace
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round

PLAIN, WIDE = "plain", "wide"


def plain(seconds: float, *, draft_seconds: float = 0.0) -> Round:
    return Round((), 0, 1, draft_seconds=draft_seconds, verify_seconds=seconds, seconds=seconds + draft_seconds)


def wide(seconds: float, *, accepted: int = 2) -> Round:
    return Round((1, 2, 3), accepted, 1, k=3, verify_seconds=seconds, seconds=seconds)


def pace_of(rounds: Iterable[Round]) -> PlainPace:
    pace = PlainPace()
    for round_ in rounds:
        pace.add(round_)
    return pace


def schedule(n: int, *, can_draft: bool = True) -> list[str]:
    """Which of n rounds were plain, where every other would be drafted if anything can be."""
    checks, seen = PlainChecks(), list[str]()
    for _ in range(n):
        is_plain = checks.due() or not can_draft
        checks.saw(plain(1.0) if is_plain else wide(1.0))
        seen.append(PLAIN if is_plain else WIDE)
    return seen


def test_nothing_is_known_before_the_first_single_token_pass() -> None:
    assert PlainPace().estimate() is None
    assert pace_of([wide(1.0)]).estimate() is None


def test_only_passes_after_plain_ones_count_once_there_are_any() -> None:
    """After a wider pass the processor's caches are cold."""
    pace = pace_of([wide(2.0), plain(1.3)])
    first = pace.estimate()
    assert first is not None
    assert first.seconds == pytest.approx(1.3)

    for round_ in (plain(1.0), wide(2.0), plain(1.3), plain(1.2)):
        pace.add(round_)
    estimate = pace.estimate()
    assert estimate is not None
    assert estimate.seconds == pytest.approx(1.1)
    assert pace.n_plain == 2


def test_drafts_that_came_to_nothing_are_no_cost_of_plain_decoding() -> None:
    estimate = pace_of([plain(1.0), plain(1.0, draft_seconds=5.0)]).estimate()
    assert estimate is not None
    assert estimate.seconds == 1.0


def test_a_tree_beside_the_text_makes_a_pass_wide() -> None:
    assert pace_of([Round((), 0, 1, seconds=1.0, n_beside=4)]).estimate() is None


def test_an_interrupted_pass_counts_by_what_all_passes_lost() -> None:
    """Of 26 seconds one was an interruption's: by as much plain decoding would have been slower, too."""
    estimate = pace_of([*[plain(1.0)] * 4, *[wide(2.0)] * 9, wide(3.0 + 1.0)]).estimate()
    assert estimate is not None
    assert estimate.seconds == pytest.approx(26 / 25)

    estimate = pace_of([*[plain(1.0)] * 10, plain(100.0), *[wide(2.0)] * 500]).estimate()
    assert estimate is not None
    assert 1.0 < estimate.seconds < 1.2


def test_the_spread_shrinks_with_more_passes_and_grows_with_their_scatter() -> None:
    def spread(rounds: Iterable[Round]) -> float:
        estimate = pace_of(rounds).estimate()
        assert estimate is not None
        return estimate.spread

    few, many = [plain(1.0)] * 3, [plain(1.0)] * 30
    restless = [plain(0.8 if i % 2 else 1.2) for i in range(30)]
    assert spread(many) < spread(few) < 0.25
    assert spread(many) < spread(restless)


def test_checks_begin_at_once_and_then_come_seldom() -> None:
    seen = schedule(300)

    assert seen[:3] == [PLAIN, PLAIN, WIDE]
    assert seen[:20].count(PLAIN) == 4
    assert seen.count(PLAIN) <= 0.09 * len(seen)
    assert PLAIN in seen[-26:], "near in time, also at the end of a long answer"
    runs = "".join(word[0] for word in seen).split("w")
    assert {len(run) for run in runs} == {0, 2}, "each check has a pass that follows a plain one"


def test_where_nothing_can_be_drafted_no_check_is_due() -> None:
    checks = PlainChecks()
    for _ in range(2):
        assert checks.due()
        checks.saw(plain(1.0))
    for _ in range(100):
        checks.saw(plain(1.0))
        assert not checks.due()


def test_rounds_without_drafts_of_their_own_save_a_check() -> None:
    checks = PlainChecks()
    for _ in range(3):
        checks.saw(plain(1.0))
        checks.saw(plain(1.0))
        for _ in range(7):
            checks.saw(wide(1.0))
            assert not checks.due()


def test_the_gain_is_the_time_that_plain_decoding_would_have_taken() -> None:
    stats = RunStats()
    for round_ in (plain(9.0), plain(1.0), plain(1.0), wide(1.5), wide(1.5)):
        stats.add(round_)

    gain = stats.gain
    assert gain is not None
    assert (gain.seconds, gain.plain_seconds, gain.speedup) == (5.0, 8.0, 1.6)


def test_a_draft_that_costs_more_than_it_brings_is_told() -> None:
    stats = RunStats()
    for round_ in (plain(9.0), plain(1.0), plain(1.0), wide(3.0, accepted=0)):
        stats.add(round_)

    assert stats.gain is not None
    assert stats.gain.speedup == 0.6


def test_without_a_draft_there_is_nothing_to_compare() -> None:
    stats = RunStats()
    for round_ in (plain(9.0), plain(1.0), plain(1.0)):
        stats.add(round_)

    assert stats.gain is None
