"""Draft length by measured cost: never slower, always near the best fixed length, on simulated machines and texts."""

import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.types import Draft, Round
from specdec_cli.lengths.acceptance import Chances
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.calibrate import calibrated
from specdec_cli.lengths.learned import Learned, LearnedKey, load_learned, save_learned
from specdec_cli.lengths.pass_costs import PassCosts
from specdec_cli.lengths.policy import LOOKUP_MARGIN
from specdec_cli.planning.profile import ProfileKey
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.fakes import FakeClock, TableLM
from tests.simulated import F32, Q4_0, Machine, Text, decode, text, with_hindsight

LONGEST = 15
GPU = {1: 10.0, 2: 10.2, 4: 10.5, 8: 11.0, 16: 12.0}
"""A pass whose time is that of reading the weights: the width hardly matters."""

MACHINES = {
    "Q4_0, 3-layer draft": Machine.measured(Q4_0, 1.07),
    "Q4_0, free draft": Machine.measured(Q4_0, 0.05),
    "F32, Q4_0 copy": Machine.measured(F32, 3.9),
    "draft as dear as its target": Machine.measured(Q4_0, 3.9),
    "draft dearer than its target": Machine.measured(Q4_0, 6.0),
    "GPU": Machine.measured(GPU, 1.5, 0.05),
}
LARGE = Machine.measured({1: 111.3, 2: 213.4, 3: 314.6, 4: 304.1, 5: 403.8, 8: 583.3, 9: 677.8, 16: 854.9}, 9.5)
"""A 7B Q4_0 and a 0.5B draft on two cores (planted_shapes.py): a pass of two tokens takes as long as two passes."""
TEXTS = {
    "easy": text(1000, 3.0, 1.5, seed=1),
    "ordinary": text(1000, 1.0, 1.5, seed=2),
    "hard": text(1000, -1.0, 1.5, seed=3),
    "never right": text(1000, -6.0, 1.0, seed=4),
    "now sure, now not": text(1000, 0.5, 4.0, seed=5),
    "code, prose, code": text(600, 3.0, 1.5, seed=6) + text(600, -2.0, 1.0, seed=7) + text(600, 3.0, 1.5, seed=8),
}


def learned_of(machine: Machine, widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 12, 16)) -> Learned:
    costs = PassCosts({width: machine.passes[width] for width in widths}, longest=LONGEST)
    costs.set_drafting("model", machine.draft_token, machine.token_behind)
    return Learned(costs)


def auto(learned: Learned) -> AutoLength:
    return AutoLength(learned, longest=LONGEST, sources=("model",))


@functools.cache
def fixed_times(machine: str, words: str) -> dict[int, float]:
    return {
        k: decode(MACHINES[machine], TEXTS[words], FixedLength(k, give_up_after=10**9))[0] for k in range(LONGEST + 1)
    }


@pytest.mark.parametrize("words", TEXTS)
@pytest.mark.parametrize("machine", MACHINES)
def test_no_fixed_length_is_much_better_and_plain_decoding_neither(machine: str, words: str) -> None:
    there, script = MACHINES[machine], TEXTS[words]
    learned = learned_of(there)
    times = fixed_times(machine, words)
    first, second = (decode(there, script, auto(learned), noise=0.05, seed=seed)[0] for seed in (1, 2))

    assert min(times.values()) / first > 0.96
    assert min(times.values()) / second > 0.965
    assert times[0] / first > 0.98
    assert first >= with_hindsight(there, script, LONGEST) * 0.99  # nobody is faster than hindsight, but for noise


def test_it_beats_every_fixed_length_where_confidence_tells_the_good_drafts_from_the_bad() -> None:
    for name in ("Q4_0, free draft", "GPU"):
        machine, words = MACHINES[name], "now sure, now not"
        best = min(fixed_times(name, words).values())
        assert best / decode(machine, TEXTS[words], auto(learned_of(machine)))[0] > 1.03


def test_it_beats_every_fixed_length_where_the_text_changes() -> None:
    machine, words = MACHINES["F32, Q4_0 copy"], "code, prose, code"
    seconds, lengths = decode(machine, TEXTS[words], auto(learned_of(machine)))
    assert min(fixed_times("F32, Q4_0 copy", words).values()) / seconds > 1.08
    n = len(lengths)
    middle = lengths[n // 2 - n // 10 : n // 2 + n // 10]
    assert sum(map(bool, middle)) / len(middle) < 0.2  # prose, decoded plainly


def test_it_follows_a_machine_whose_speed_drifts() -> None:
    machine, words = MACHINES["F32, Q4_0 copy"], TEXTS["ordinary"]

    def wave(now: float) -> float:
        return 1.0 + 0.3 * math.sin(now)

    best = min(decode(machine, words, FixedLength(k, give_up_after=10**9), noise=0.05, pace=wave)[0] for k in range(5))
    assert best / decode(machine, words, auto(learned_of(machine)), noise=0.05, pace=wave)[0] > 0.97


@pytest.mark.parametrize("words", ["easy", "never right"])
def test_it_finds_its_way_from_a_calibration_of_one_width(words: str) -> None:
    machine, script = MACHINES["F32, Q4_0 copy"], TEXTS[words]
    learned = learned_of(machine, widths=(1,))
    seconds, _ = decode(machine, script, auto(learned), noise=0.05)
    assert min(fixed_times("F32, Q4_0 copy", words).values()) / seconds > 0.95


def test_a_draft_ends_with_a_tile_and_not_before_it() -> None:
    """On this file 3 wide passes cost more than 4, and 5 or 6 more than 8."""
    machine = Machine.measured(Q4_0 | {7: 13.0}, 0.05)
    _, lengths = decode(machine, text(800, 4.0, 0.3, seed=1), auto(learned_of(machine, tuple(range(1, 17)))))
    settled = lengths[5:-2]
    assert sum(k in (3, 7, 11, 14, 15) for k in settled) / len(settled) > 0.9


def test_a_draft_that_costs_more_than_its_target_is_never_asked() -> None:
    machine = MACHINES["draft dearer than its target"]
    length = auto(learned_of(machine))
    _, lengths = decode(machine, TEXTS["easy"], length)
    assert not any(lengths)
    assert length.off_reason is not None
    assert "6.0 ms" in length.off_reason
    assert length.left_out is None


def test_where_another_source_drafts_it_is_said_why_the_dear_one_does_not() -> None:
    length = AutoLength(
        learned_of(MACHINES["draft dearer than its target"]), longest=LONGEST, sources=("ngram", "model")
    )
    length.begin(5)
    length.observe(Round((), 0, 7, seconds=0.5))
    assert length.next(10, 99) == LONGEST
    assert not length.passes_on("model", Draft())
    assert length.off_reason is None
    assert length.left_out == (
        "a draft token takes 6.0 ms and one of the target 3.9 ms; with wider passes and every draft token right that "
        "is 0.61x plain decoding, so it cannot pay here"
    )


def test_what_a_useless_draft_costs_is_bounded_by_a_few_passes() -> None:
    machine, words = MACHINES["Q4_0, 3-layer draft"], TEXTS["never right"]
    learned = learned_of(machine)
    short = Text(words.confidence[:100], words.is_right[:100])
    lost = decode(machine, short, auto(learned))[0] / machine.passes[1] - 100
    assert lost < 8
    assert decode(machine, short, auto(learned))[0] / machine.passes[1] - 100 < 1  # the next answer knows


def test_a_text_in_which_nothing_was_measured_begins_plainly() -> None:
    length = AutoLength(Learned(PassCosts({}, longest=4)), longest=4, sources=("model",))
    length.observe(Round((), 0, 7, seconds=0.5))
    assert length.next(10, 99) == 0
    length.observe(Round((), 0, 7, verify_seconds=0.01, seconds=0.01))
    assert length.next(11, 99) == 4


def test_keep_drops_what_is_not_worth_its_width() -> None:
    learned = learned_of(MACHINES["Q4_0, free draft"])
    length = auto(learned)
    length.observe(Round((), 0, 7, seconds=0.5))
    for i in range(300):  # the confidence tells all
        learned.of("model").saw(0.999, i % 3, kept=True)
        if i % 10 == 0:
            learned.of("model").saw(0.3, i % 3, kept=False)
    assert length.next(10, 99) == LONGEST
    assert length.more(0.999)
    assert length.more(0.999)
    assert length.more(0.999)
    length.more(0.3)
    assert length.keep(Draft((1, 2, 3, 4))) == 3


def test_an_answer_that_lost_by_lookup_wants_more_of_it_and_the_next_one_does_not() -> None:
    def kept(length: AutoLength, sureness: float) -> int:
        for i in range(200):  # what is learned of chances is not what counts here
            learned.of("model").saw(sureness, i % 3, kept=i % 5 < 4)
        length.next(10, 99)
        for _ in range(4):
            length.more(sureness)
        return length.keep(Draft((1, 2, 3, 4)))

    learned = learned_of(Machine.measured(GPU | {1: 4.0, 2: 7.0}, 0.0))
    length = auto(learned)
    length.begin(5)
    length.observe(Round((), 0, 7, seconds=0.5))
    assert kept(length, 0.7) == 4
    for _ in range(3):
        length.observe(Round((1, 2, 3, 4), 0, 7, k=4, verify_seconds=0.010, seconds=0.010))
        lost = kept(length, 0.7)
    assert lost == 0
    length.begin(20)
    length.observe(Round((), 0, 7, seconds=0.5))
    assert kept(length, 0.7) == 4


def caution(length: AutoLength, name: str) -> float:
    return length._policy.caution(length._sources[name])


def test_what_lookup_lost_does_not_put_the_model_to_rest() -> None:
    learned = learned_of(Machine.measured(GPU | {1: 4.0, 2: 5.0}, 1.6))
    learned.costs.set_drafting("ngram", 0.0, 0.0)
    for i in range(100):
        learned.of("model").saw(0.8, i % 3, kept=i % 5 < 4)
    length = AutoLength(learned, longest=LONGEST, sources=("ngram", "model"))
    length.begin(5)
    length.has_read("model", 9)
    length.observe(Round((), 0, 7, seconds=0.5))
    length.next(10, 99)
    before = length._worth(length._sources["model"])
    assert before > 0
    for _ in range(5):
        length.next(10, 99)
        length.more(0.9)
        length.observe(Round((1, 2, 3, 4), 0, 7, k=4, verify_seconds=0.010, seconds=0.010, source="ngram"))
    length.has_read("model", 9)
    length.next(10, 99)
    assert caution(length, "ngram") > 1.5
    assert length._worth(length._sources["model"]) == pytest.approx(before, rel=0.25)


def test_a_slow_screen_and_noisy_passes_are_not_what_lookup_lost() -> None:
    rng = np.random.default_rng(1)
    length = AutoLength(learned_of(Machine.measured(GPU | {1: 4.0}, 0.0)), longest=LONGEST, sources=("ngram",))
    length.begin(5)
    length.observe(Round((), 0, 7, seconds=0.5))
    for i in range(300):
        length.next(10 + i, 99)
        length.more(0.02)
        took = 0.004 * float(np.exp(0.25 * rng.normal()))
        length.observe(Round((), 0, 7, k=15, verify_seconds=took, seconds=2 * took))
    assert caution(length, "ngram") == pytest.approx(LOOKUP_MARGIN)


def test_what_was_dropped_is_learned_from_where_the_target_told_its_own_token() -> None:
    for own, kept in ((9, True), (8, False)):
        learned = learned_of(MACHINES["Q4_0, 3-layer draft"])
        length = auto(learned)
        length.observe(Round((), 0, 7, seconds=0.5))
        length.next(10, 99)
        length.more(0.55)
        before = learned.of("model").of(0.55)
        length._turn.proposed = (9,)  # as keep() leaves it
        length.observe(Round((), 0, own, k=1, draft_seconds=0.001, verify_seconds=0.004, seconds=0.005))
        assert (learned.of("model").of(0.55) > before) is kept


def test_chances_learn_what_a_confidence_means() -> None:
    rng = np.random.default_rng(1)
    chances = Chances()
    for confidence, rate in 1000 * ((0.6, 0.3), (0.97, 0.9), (None, 0.5)):
        chances.saw(confidence, 0, kept=bool(rng.random() < rate))
    for confidence, rate in ((0.6, 0.3), (0.97, 0.9), (None, 0.5)):
        assert chances.of(confidence) == pytest.approx(rate, abs=0.12)


def test_chances_follow_the_text_at_hand() -> None:
    chances = Chances()
    for _ in range(500):
        chances.saw(0.8, 0, kept=True)
    sure = chances.of(0.8)
    for _ in range(8):
        chances.saw(0.8, 0, kept=False)
    assert chances.of(0.8) < sure - 0.05
    assert chances.expected(0) < 0.75


@pytest.mark.parametrize("confidence", [-1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, None])
def test_any_confidence_has_a_chance(confidence: float | None) -> None:
    assert 0 < Chances().of(confidence) < 1


def test_costs_of_widths_between_and_beyond_those_seen_lie_on_lines() -> None:
    costs = PassCosts({1: 1.0, 3: 2.0, 5: 4.0}, longest=7)
    assert costs.passes[1:] == pytest.approx([1.0, 1.5, 2.0, 3.0, 4.0, 4.75, 5.5, 6.25])
    assert costs.known() == {1: 1.0, 3: 2.0, 5: 4.0}


def test_a_slower_machine_is_slower_at_widths_that_are_not_seen() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0}, longest=7)
    costs.set_drafting("model", 0.25, 0.1)
    for _ in range(40):
        costs.saw_pass(4, 3.0)
    assert costs.passes[4] == pytest.approx(3.0, rel=0.02)
    assert costs.plain == pytest.approx(1.5, rel=0.25)
    assert costs.draft_token("model") == pytest.approx(0.375, rel=0.25)


@pytest.mark.parametrize(("share", "over_plain"), [(0.0, 0.95), (0.6, 0.93), (0.8, 0.92), (0.95, 1.0)])
def test_a_draft_that_is_always_sure_costs_a_short_first_answer_little(share: float, over_plain: float) -> None:
    for seed in range(5):
        right = np.random.default_rng(seed).random(100) < share
        words = Text(np.full(100, 0.999), right)
        plain, _ = decode(LARGE, words, FixedLength(0))
        seconds, lengths = decode(LARGE, words, auto(learned_of(LARGE, (1, 4))))
        assert plain / seconds >= over_plain
        tried = next(i for i in range(len(lengths)) if sum(n + 1 for n in lengths[:i]) >= 16 or i + 1 == len(lengths))
        assert max(lengths[:tried], default=0) <= 3


def test_what_proves_right_is_soon_drafted_as_far_as_it_pays() -> None:
    words = Text(np.full(200, 0.999), np.ones(200, bool))
    for machine, longest in ((MACHINES["GPU"], 12), (MACHINES["F32, Q4_0 copy"], 10)):
        _, lengths = decode(machine, words, auto(learned_of(machine)))
        assert sum(lengths[:4]) >= 12
        assert max(lengths) >= longest


def test_one_interruption_changes_little() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0}, longest=7)
    costs.saw_pass(4, 200.0)
    assert costs.passes[4] < 2.4


def test_catching_up_is_not_taken_for_drafting() -> None:
    costs = PassCosts({1: 1.0}, longest=4)
    costs.set_drafting("model", 0.2, 0.05)
    for _ in range(60):
        costs.saw_draft("model", 2, 100, 2 * 0.2 + 100 * 0.03)
    assert costs.draft_token("model") == 0.2
    assert costs.token_behind("model") == pytest.approx(0.03, rel=0.1)


@pytest.mark.parametrize(("n_ctx", "budget"), [(4096, 10.0), (4096, 0.0), (40, 10.0), (18, 10.0), (3, 10.0)])
def test_calibration_measures_what_the_context_and_the_budget_have_room_for(n_ctx: int, budget: float) -> None:
    target, draft = TableLM(50, seed=1, n_ctx=n_ctx), TableLM(50, seed=2, n_ctx=n_ctx)
    costs = calibrated(target, draft, "model", longest=16, clock=FakeClock((0.5,)), budget=budget)
    if n_ctx < 18:
        assert costs.known() == {}
    elif budget:
        assert set(costs.known()) > {1, 2, 4}
    else:
        assert set(costs.known()) == {1, 4}, "one width says nothing of what a draft costs"
    assert len(costs.passes) == 18


KEY = LearnedKey(
    ProfileKey(("target.gguf", 5), ("draft.gguf", 3), "a processor", (), "0.3.36"),
    None,
    (ModelSettings(Path("target.gguf")), ModelSettings(Path("draft.gguf"))),
    (ContextSettings(), ContextSettings()),
)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Learned:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    learned = learned_of(MACHINES["F32, Q4_0 copy"])
    decode(MACHINES["F32, Q4_0 copy"], TEXTS["easy"], auto(learned), noise=0.05)
    return learned


def test_what_was_learned_is_known_to_the_next_run(learned: Learned) -> None:
    assert load_learned(KEY, longest=LONGEST) is None
    save_learned(KEY, learned)
    known = load_learned(KEY, longest=LONGEST)
    assert known is not None
    assert known.costs.passes == pytest.approx(learned.costs.passes, rel=0.06)  # the table lags a few passes
    assert known.costs.draft_token("model") == pytest.approx(learned.costs.draft_token("model"))
    assert known.of("model").of(0.9) == pytest.approx(learned.of("model").of(0.9), abs=0.1)
    assert known.of("model").n_seen == learned.of("model").n_seen


def test_costs_depend_on_how_models_are_opened_but_not_on_the_size_of_the_context() -> None:
    other = replace(KEY, contexts=(replace(ContextSettings(), threads=7), ContextSettings()))
    larger = replace(KEY, contexts=(ContextSettings(n_ctx=512, max_rows=9), ContextSettings()))
    assert other.file != KEY.file
    assert larger.file == KEY.file


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda _: '{"passes": {"1": -1}, "drafting": {}, "chances": {}}',
        lambda _: '{"passes": {"1": NaN}, "drafting": {}, "chances": {}}',
        lambda _: '{"passes": {}, "drafting": {}, "chances": {}}',
        lambda _: '{"passes": {"1": 1.0, "4": 0.0}, "drafting": {}, "chances": {}}',
        lambda _: '{"passes": {"1": 1.0, "999999999": 2.0}, "drafting": {}, "chances": {}}',
        lambda text: text.replace('"n_seen": ', '"n_seen": 1e999, "n_saw": '),
        lambda text: text.replace('"means": [', '"means": [7.0, '),
        lambda text: text.replace('"hits": [', '"hits": [-1.0, '),
        lambda text: re.sub(r'("1": )[^,]*', r"\g<1>1e30", text),
        lambda text: re.sub(r'("1": )[^,]*', r"\g<1>1e-30", text),
        lambda text: re.sub(r'("back_each": )[^,]*', r"\g<1>1e30", text),
        lambda text: re.sub(r'("model": \[)[^,]*', r"\g<1>1e30", text),
        lambda text: text.replace('"n_seen": ', '"n_seen": -'),
        lambda text: text.replace('"drafting": {', '"drafting": {' + "".join(f'"a{i}": [1, 1], ' for i in range(20))),
        lambda text: text.replace('"passes"', '"more": ' + "[" * 100_000 + "]" * 100_000 + ', "passes"'),
        lambda text: text + " " * 300_000,
    ],
)
def test_what_is_damaged_is_measured_again(learned: Learned, damage: Callable[[str], str]) -> None:
    save_learned(KEY, learned)
    KEY.file.write_text(damage(KEY.file.read_text()))
    assert load_learned(KEY, longest=LONGEST) is None


@pytest.mark.parametrize("made", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.usefixtures("learned")
def test_what_is_no_file_is_measured_again(made: Callable[[Path], None]) -> None:
    KEY.file.parent.mkdir(parents=True, exist_ok=True)
    made(KEY.file)
    assert load_learned(KEY, longest=LONGEST) is None


def test_an_answer_that_was_broken_off_leaves_nothing_behind() -> None:
    learned = learned_of(MACHINES["F32, Q4_0 copy"])
    length = auto(learned)
    length.begin(5)
    length.observe(Round((), 0, 7, seconds=0.5))
    length.next(6, 99)
    length.more(0.9)
    plain, chance = learned.costs.plain, learned.of("model").of(0.9)
    length.begin(9)  # Ctrl-C, and the next question
    length.observe(Round((), 0, 7, verify_seconds=9.0, seconds=9.0))
    assert (learned.costs.plain, learned.of("model").of(0.9)) == (plain, chance)


def test_what_is_beside_the_pass_is_not_taken_for_its_cost() -> None:
    learned = learned_of(MACHINES["F32, Q4_0 copy"])
    length = auto(learned)
    for _ in range(30):
        length.next(6, 0)
        length.observe(Round((), 0, 7, verify_seconds=0.0127, seconds=9.0))
    assert 0.0127 < learned.costs.plain < 0.0127 * 1.3
    before = learned.costs.passes[:]
    length.next(6, 99)
    length.observe(Round((), 0, 7, verify_seconds=1.0, seconds=1.0, n_beside=23))
    assert learned.costs.passes == before


def test_a_source_that_slows_every_pass_is_found_out() -> None:
    """Lookahead: its trees make passes of one draft token four times as long."""
    learned = learned_of(MACHINES["F32, Q4_0 copy"])
    learned.costs.set_drafting("model", 0.0, 0.0)
    length = auto(learned)
    length.begin(1)
    length.observe(Round((), 0, 7, seconds=0.5))
    drafted = 0
    for i in range(400):
        k = length.next(2 + i, 99)
        drafted += k > 0
        seconds = 0.05 if k else 0.0127
        if k:
            length.more(0.9)
            length.keep(Draft((1,)))
        length.observe(
            Round((1,) if k else (), int(k > 0), 2, verify_seconds=seconds, seconds=seconds, n_beside=23 if k else 0)
        )
    assert drafted < 100
