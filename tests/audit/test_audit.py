"""The audit: it finds nothing in a sound pair, and every planted bug."""

import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from specdec_cli.audit import chi_square as chance
from specdec_cli.audit import report as audit_report
from specdec_cli.audit.checks import Audit, LawCheck, Way
from specdec_cli.audit.memoized import Remembered, RememberedHead, RememberedHeads, RememberedTarget
from specdec_cli.bench.compare_texts import Comparison
from specdec_cli.bench.measure import Task
from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.rejection import BlockRejection, TokenRejection, pick
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Branches, Distribution, Draft, Logits, Target
from specdec_cli.drafters.medusa.heads import Heads
from specdec_cli.errors import DecodeFailed, Interrupted
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.rules import RULES
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.token_batch import TokenBatch
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests.cli import Done, Models, inside
from tests.fakes import FakeHead, HashLM
from tests.medusa import heads_of, write_safetensors
from tests.planted import PlantedPair, write_pair

PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
TASKS = [Task("a", (1, *range(290, 316))), Task("b", (1, *range(300, 318), *range(280, 290)))]
NEVER = float("inf")


# --- the chi-square test ----------------------------------------------------------------------------------


def test_the_chance_of_a_statistic_is_scipys() -> None:
    for freedom in (1, 2, 3, 8, 31, 200):
        for statistic in (0.0, 1e-6, 0.5, 5.0, 40.0, 300.0, 1000.0):
            assert chance.survival(statistic, freedom) == pytest.approx(
                stats.chi2.sf(statistic, freedom), rel=1e-10, abs=1e-300
            )
    assert chance.survival(float("inf"), 3) == 0.0
    assert chance.survival(3.0, 0) == 1.0


def law(*probs: float) -> Distribution:
    return Distribution(np.arange(len(probs)), np.array(probs))


def test_rare_tokens_are_counted_together() -> None:
    p = law(0.5, 0.3, 0.14, 0.03, 0.03)
    together = [40 - 50, 36 - 30, 16 - 14, 8 - 6]
    expected = sum(d**2 / e for d, e in zip(together, (50, 30, 14, 6), strict=True))
    assert chance.distance({0: 40, 1: 36, 2: 16, 3: 8}, p) == pytest.approx((expected, 3))


def test_what_is_still_too_rare_together_goes_to_the_rarest() -> None:
    assert chance.distance({0: 50, 1: 45, 2: 5}, law(0.6, 0.37, 0.03)) == pytest.approx((100 / 60 + 100 / 40, 1))
    assert chance.distance({0: 99, 2: 1}, law(0.97, 0.0, 0.03)) == (0.0, 0)
    assert chance.distance({0: 3, 1: 1}, law(0.5, 0.5)) == (0.0, 0)


def test_a_token_that_cannot_come_is_never_chance() -> None:
    p = law(0.5, 0.5, 0.0)
    assert chance.distance({0: 50, 1: 49, 2: 1}, p) == (np.inf, 1)
    assert chance.distance({0: 50, 1: 49, 9: 1}, p) == (np.inf, 1)


# --- with models ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair_files(tmp_path_factory: pytest.TempPathFactory) -> PlantedPair:
    return write_pair(tmp_path_factory.mktemp("audit"), amount=1.0)


@pytest.fixture
def pair(pair_files: PlantedPair) -> Iterator[Pair]:
    request = PairRequest(
        pair_files.target,
        Drafting("none", 3, pair_files.draft, force=True),
        Sampling(seed=1, params=PURE),
        Placement(threads=1, cache_type="f32"),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


def audit_of(pair: Pair) -> Audit:
    clock = itertools.count()
    return Audit(pair, PURE, lambda: float(next(clock)))


def laws(pair: Pair, *rules: str, drafters: tuple[str, ...] = ("model",), draws: int = 800) -> Audit:
    found = audit_of(pair)
    ways = [Way(rule, drafter, k, 1.0) for drafter in drafters for rule in rules for k in (1, 2)]
    assert sum(1 for _ in found.check_laws(TASKS, ways, draws, 1, NEVER)) == len(ways)
    return found


def test_sound_rules_draw_from_the_target(pair: Pair) -> None:
    found = laws(pair, "rejection", "block", drafters=("model", "ngram"))
    assert found.bugs == []
    assert all(check.shift == pytest.approx(0, abs=1e-12) for check in found.laws)
    assert all(check.draws == 800 and 0.05 < check.overlap < 0.95 for check in found.laws)
    assert all(c is not None for check in found.laws for c in check.chances), "else this shows nothing"
    assert "in 8 cases (position and setting), 16 tests" in audit_report.verdict(found, 0)[0]
    assert audit_report.verdict(found, 0)[-1] == "No bug found."


class WiderIsOther:
    """A target whose wide passes give other numbers, as llama.cpp's may."""

    def __init__(self, session: Target) -> None:
        self.n_ctx, self.n_vocab, self._session = session.n_ctx, session.n_vocab, session

    def score(self, tokens: Any, n_last: int) -> Logits:
        rows = self._session.score(tokens, n_last).copy()
        rows[:, ::2] += n_last - 1
        return rows


def test_what_the_width_of_passes_changes_is_no_rules_fault(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.audit.checks.RememberedTarget", lambda session: WiderIsOther(session))
    found = laws(pair, "rejection", "block")
    assert found.bugs == []
    assert min(check.shift for check in found.laws) > 0.05


class KeepsTheRejected(TokenRejection):
    def verify(self, rows: Logits, draft: Draft, tokens: Any) -> tuple[int, int]:
        n, own = super().verify(rows, draft, tokens)
        return (n, own) if n == len(draft.tokens) else (n, draft.tokens[n])


class BonusFromTheRowBefore(TokenRejection):
    def verify(self, rows: Logits, draft: Draft, tokens: Any) -> tuple[int, int]:
        n, own = super().verify(rows, draft, tokens)
        if n < len(draft.tokens):
            return n, own
        before = self.law.distribution(rows[max(n - 1, 0)], tokens)
        return n, pick(before, self._uniform(len(tokens), n, 3))


class SecondAlwaysStands(BlockRejection):
    def verify(self, rows: Logits, draft: Draft, tokens: Any) -> tuple[int, int]:
        n, own = super().verify(rows, draft, tokens)
        return (n, own) if n != 1 or len(draft.tokens) < 2 else (1, draft.tokens[1])


def ignores_q(p: Distribution, *_: object) -> Distribution:
    return p


@pytest.mark.parametrize(
    ("rule", "bug", "k"),
    [
        ("rejection", KeepsTheRejected, {1, 2}),
        ("rejection", BonusFromTheRowBefore, {1}),
        ("block", SecondAlwaysStands, {2}),
        ("rejection", ignores_q, {1, 2}),
        ("block", ignores_q, {1, 2}),
    ],
)
def test_a_planted_bug_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rule: str, bug: Callable[..., Any], k: set[int]
) -> None:
    if bug is ignores_q:
        monkeypatch.setattr("specdec_cli.decode.rejection.residual", bug)
    else:
        monkeypatch.setitem(RULES, rule, bug)
    found = laws(pair, rule, draws=2000)
    assert {bug.way.k for bug in found.bugs} == k
    assert any("do not follow the target's distribution" in line for line in audit_report.verdict(found, 0))
    assert "BUG" in {row[-1] for row in audit_report.law_table(found)}


def test_a_single_bad_chance_is_drawn_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    chances = iter([(1e-9, 0.5), (0.3, 0.1), (1e-9, 0.5), (1e-8, None)])
    monkeypatch.setattr(Audit, "_chances", lambda *_: next(chances))
    assert [check.chances for check in laws(pair, "block", draws=100).laws] == [(0.3, 0.5), (1e-8, None)]


def test_time_cuts_draws_and_texts_but_not_below_what_says_something(pair: Pair) -> None:
    found = audit_of(pair)
    ways = [Way("block", "model", 1, 1.0), Way("coupled", "model", 2, 0.0)]
    assert len(list(found.check_laws(TASKS, ways[:1], 10**6, 2, 0.0))) == 1
    assert found.laws[0].draws == 300
    assert len(list(found.check_texts(TASKS, ways[1:], 10**6, 20, 0.0))) == 1
    assert found.texts[ways[1]].tokens == 20
    assert "at least 20 per setting (1,000,000 requested)" in audit_report.verdict(found, 10**6)[0]
    assert found.without_time == []


def test_no_way_is_begun_after_the_deadline_and_those_left_out_are_said(pair: Pair) -> None:
    found = audit_of(pair)
    drawn = [Way("block", "model", k, 1.0) for k in (1, 2)] + [Way("block", "ngram", 1, 1.0)]
    written = [Way("coupled", "model", k, 0.0) for k in (1, 2, 3)]
    assert len(list(found.check_laws(TASKS, drawn, 10**6, 2, 0.0))) == 1
    assert len(list(found.check_texts(TASKS, written, 10**6, 20, 0.0))) == 1
    assert found.without_time == [*drawn[1:], *written[1:]]
    line = audit_report.verdict(found, 10**6)[-2]
    assert line.startswith("No time was left for these settings (raise --budget): block, model k 2, temperature 1")


TEXT_WAYS = [
    *(Way(rule, drafter, 2, 0.0) for rule in ("coupled", "rejection", "block") for drafter in ("model", "ngram")),
    Way("coupled", "model", 3, 1.0),
]


def test_texts_of_every_rule_are_plain_decodings(pair: Pair) -> None:
    found = audit_of(pair)
    assert len(list(found.check_texts(TASKS, TEXT_WAYS, 30, 20, NEVER))) == 2 * len(TEXT_WAYS)
    assert {(check.answers, check.tokens, check.worst) for check in found.texts.values()} == {
        (2, 40, Comparison("same"))
    }
    assert len(list(audit_of(pair).check_texts(TASKS, TEXT_WAYS, 20, 20, NEVER))) == len(TEXT_WAYS)


@pytest.mark.parametrize("rule", [SharedNoise, TokenRejection, BlockRejection])
def test_a_text_with_a_rejected_token_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    def keeps_all(self: Any, rows: Logits, draft: Draft, tokens: Any) -> tuple[int, int]:
        n, own = sound(self, rows, draft, tokens)
        return (n, own) if n == len(draft.tokens) else (n, draft.tokens[n])

    sound = rule.verify
    monkeypatch.setattr(rule, "verify", keeps_all)
    found = audit_of(pair)
    list(found.check_texts(TASKS, TEXT_WAYS, 40, 20, NEVER))
    assert {bug.way.rule for bug in found.bugs} == {rule.name}
    assert "the text diverges from plain decoding at token" in audit_report.verdict(found, 40)[1]


def test_what_is_remembered_is_what_was_computed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    session = pair.target.session
    wanted = session.score((1, 300, 301), 2).copy()
    one = Remembered(session)
    before = session.n_passes
    rows = [one.score((1, 300, 301), 2).copy() for _ in range(2)]
    one.score((1, 300), 1)
    assert session.n_passes - before == 2
    assert all((row == wanted).all() for row in rows)
    assert (one.score((1, 300, 301), 2) == wanted).all()
    assert (one.n_ctx, one.n_vocab) == (session.n_ctx, session.n_vocab)
    monkeypatch.setattr("specdec_cli.audit.memoized.MOST_BYTES", 0)
    full = Remembered(session)
    assert (full.score((1, 300, 301), 2) == wanted).all()
    before = session.n_passes
    full.score((1, 300, 301), 2)
    assert session.n_passes > before


def test_the_states_and_trees_that_are_remembered_are_those_that_were_computed(every: Pair) -> None:
    session, text = every.target.session, (1, 300, 301)
    one, taken = RememberedTarget(session), list[Logits]()
    assert session.hidden(text) is None
    state = one.hidden(text)
    assert state is not None
    tree = Branches((302, 303, 304), (-1, 0, -1), lambda rows: taken.append(rows.copy()))
    before = session.n_passes
    rows = [one.score_beside(text, 2, tree).copy() for _ in range(2)]
    assert (one.hidden(text) == state).all()
    assert session.n_passes - before == 1
    np.testing.assert_allclose(rows, [session.score(text, 2)] * 2, atol=1e-3)
    np.testing.assert_array_equal(*taken)
    for leaf, after in zip(taken[0], ((302, 303), (304,)), strict=True):
        np.testing.assert_allclose(leaf, session.score((*text, *after), 1)[0], atol=1e-3)


def test_no_state_is_shown_of_nothing_and_an_error_leaves_nothing_behind(
    every: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = every.target.session
    one = RememberedTarget(session)
    assert one.hidden(()) is None
    with monkeypatch.context() as broken:
        broken.setattr(LlamaSession, "score", raises(DecodeFailed("No.", hint="")))
        with pytest.raises(DecodeFailed):
            one.hidden((1, 300))
    found = audit_of(every)
    list(found.check_laws([Task("a", (300,))], [Way("rejection", "medusa", 2, 1.0)], 100, 1, NEVER))
    assert len(found.laws) == 1


def raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_a_remembered_head_says_what_the_head_says() -> None:
    """Drafts that go other ways from a beginning that is known, and drafts of another length."""
    head, alone = (FakeHead(HashLM(24, seed=1), confidences=(0.9, 0.6, 0.2)) for _ in range(2))
    one = RememberedHead(head)
    drafts = [((1, 2), 3, (4, 5)), ((1, 2), 3, (4, 6)), ((1, 2), 3, (4, 5)), ((1, 2), 2, (4,)), ((1, 3), 3, ())]
    for text, k, tokens in drafts:
        np.testing.assert_array_equal(one.start(text, k), alone.start(text, k))
        for token in tokens:
            np.testing.assert_array_equal(one.advance(token), alone.advance(token))
            assert one.confidence == alone.confidence
    assert (head.asked, alone.asked) == ([3, 3, 2, 3], [3, 3, 3, 2, 3])


def test_remembered_medusa_heads_are_asked_once(every: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert every.heads is not None
    one, states = RememberedHeads(every.heads), np.eye(320, dtype=np.float32)[300:302]
    expected = [list(every.heads.rows(state, n)) for state in states for n in (2, 3)]
    for _ in range(2):
        np.testing.assert_array_equal(
            np.concatenate([list(one.rows(state, n)) for state in states for n in (2, 3)]), np.concatenate(expected)
        )
        monkeypatch.setattr(Heads, "rows", lambda *_: pytest.fail("asked again"))


EVERY_DRAFTER = ("medusa", "lookahead", "ngram+model", "ngram+medusa")


@pytest.fixture
def every(pair_files: PlantedPair, tmp_path: Path) -> Iterator[Pair]:
    """With a draft model, Medusa heads and room for lookahead."""
    heads = write_safetensors(tmp_path / "heads.safetensors", heads_of(pair_files.p, 3))
    request = PairRequest(
        pair_files.target,
        Drafting("lookahead", 31, pair_files.draft, force=True, head=heads),
        Sampling(seed=1, params=PURE),
        Placement(threads=1, cache_type="f32"),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


def test_texts_of_every_drafter_are_plain_decodings(every: Pair) -> None:
    found = audit_of(every)
    ways = [Way("coupled", drafter, 3, temperature) for drafter in EVERY_DRAFTER for temperature in (0.0, 1.0)]
    list(found.check_texts(TASKS, ways, 60, 30, NEVER))
    assert {(check.tokens, check.worst) for check in found.texts.values()} == {(60, Comparison("same"))}
    assert all(check.drafted > 0 for check in found.texts.values())


@pytest.mark.parametrize("rule", [TokenRejection, KeepsTheRejected])
def test_distributions_with_every_drafter(every: Pair, monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    monkeypatch.setitem(RULES, "rejection", rule)
    drafters = EVERY_DRAFTER if rule is TokenRejection else ("medusa", "lookahead")
    found = laws(every, "rejection", drafters=drafters, draws=400)
    assert len(found.bugs) == (0 if rule is TokenRejection else len(found.laws))
    assert found.without_places == []


def test_what_cannot_be_tested_for_want_of_drafts_is_said(every: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.drafters.medusa.drafter.MedusaDrafter.propose", lambda *_: Draft())
    found, ways = audit_of(every), [Way("block", "medusa", 2, temperature) for temperature in (0.0, 1.0)]
    list(found.check_texts(TASKS, ways[:1], 20, 20, NEVER))
    assert list(found.check_laws(TASKS, ways[1:], 100, 1, NEVER)) == []
    words = audit_report.verdict(found, 20)
    assert words[1] == (
        "Nothing was drafted in these settings, so their texts prove nothing: block, medusa k 2, temperature 0."
    )
    assert words[2] == ("Skipped distributions with medusa at temperature 1: it drafted nothing at any position tried.")


def test_the_time_of_what_cannot_be_tested_goes_to_the_rest(every: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each look at the clock: nine hundred draws, the first three hundred of which are not timed."""
    monkeypatch.setattr("specdec_cli.drafters.medusa.drafter.MedusaDrafter.propose", lambda *_: Draft())
    found, now = audit_of(every), 100.0
    ways = [*(Way("block", "medusa", k, 1.0) for k in (1, 2)), Way("block", "model", 1, 1.0)]
    found._clock = itertools.count(now).__next__
    list(found.check_laws(TASKS, ways, 900, 1, now + 1000))
    assert [check.draws for check in found.laws] == [900]


def test_ties_and_places_without_choice_are_said(pair: Pair) -> None:
    found = audit_of(pair)
    list(found.check_texts(TASKS, TEXT_WAYS[:1], 20, 20, NEVER))
    found.texts[TEXT_WAYS[0]].add(Comparison("tie", 7, 0.5, 0.4), 20)
    found.laws.append(LawCheck(Way("block", "model", 1, 0.1), "a", 9, 1.0, 0.25, 100, (None, None)))
    words = audit_report.verdict(found, 20)
    assert "1 of 2 texts diverged at near ties (largest gap 0.5, noise there 0.4)." in words[0]
    assert "they prove nothing" in words[1]
    assert words[2] == "No bug found."
    assert audit_report.text_table(found)[0][4:] == ("2", "27", "1", "tie at 7 (gap 0.5, noise 0.4)")
    assert audit_report.law_table(found)[0][-4:] == ("0.25", "-", "-", "the target's")


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def audited(models: Models, *arguments: object) -> Done:
    usual = ("--draft", models.draft, "--threads", 1, "--tokens", 32, "--draws", 200, "--places", 1, "-k", "1,3")
    return inside("audit", models.words, *usual, *arguments)


def test_audit_tells_a_verdict_and_writes_a_document(models: Models, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    done = audited(models, "--temp", "0,1", "--json", file)
    assert done.code == 0, done.err
    assert "Texts: 32 tokens per setting, 16 settings, compared with plain decoding; about 0.0 minutes." in done.err
    assert "Distributions: 200 draws (fewer if time runs out) at 1 positions per setting, 8 settings" in done.err
    assert "No bug found." in done.out
    document = json.loads(file.read_text())
    assert {"machine", "versions", "files", "command", "settings"} <= set(document)
    assert document["verdict"] == "no fault"
    assert [row["tokens"] for row in document["texts"]] == [32] * 16
    assert {(row["draws"], row["is_bug"]) for row in document["distributions"]} == {(200, False)}
    assert document["threshold"] == pytest.approx(1e-3 / 16)


def counted_trees(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens beside the text each tree had that was evaluated."""
    place, trees = TokenBatch.place_tree, list[int]()

    def counted(self: TokenBatch, branches: Branches, *rest: Any) -> None:
        trees.append(len(branches.tokens))
        place(self, branches, *rest)

    monkeypatch.setattr(TokenBatch, "place_tree", counted)
    return trees


@pytest.mark.parametrize("drafters", ["lookahead", "ngram+lookahead", "model,lookahead"])
def test_lookahead_has_its_trees_beside_any_other_drafter(
    models: Models, monkeypatch: pytest.MonkeyPatch, drafters: str
) -> None:
    trees = counted_trees(monkeypatch)
    usual = ("--draft", models.draft, "--drafter", drafters, "--threads", 1, "-k", 3, "--temp", 1, "--budget", 0.1)
    done = inside("audit", models.words, *usual, "--tokens", 16, "--rules", "coupled", "--json", "-")
    assert done.code == 0, done.err
    assert len(trees) > 4
    assert all(row["drafted"] for row in json.loads(done.out)["texts"])
    trees.clear()
    done = inside("bench", models.words, *usual, "-n", 16, "--repeats", 1, "--kinds", "qa")
    assert done.code == 0, done.err
    assert len(trees) > 4


def test_medusa_heads_and_lookahead(models: Models, tmp_path: Path) -> None:
    heads = write_safetensors(tmp_path / "heads.safetensors", heads_of(models._chain, 3))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(" a b c a b c", encoding="utf-8")
    for draft, name in ((heads, "medusa"), ("lookahead", "lookahead")):
        usual = ("--threads", 1, "--tokens", 64, "--draws", 100, "--places", 1, "-k", 3, "--prompts", prompts)
        rules = ("--rules", "coupled,rejection", "--temp", "0,1", "--json", "-")
        done = inside("audit", models.words, "--draft", draft, *usual, *rules)
        assert done.code == 0, done.err
        document = json.loads(done.out)
        for part, n in (("texts", 3), ("distributions", 2)):
            assert Counter(row["drafter"] for row in document[part]) == {name: n, "ngram": n}
        assert all(row["drafted"] for row in document["texts"] if row["drafter"] == name)


def test_json_on_stdout_is_all_there_is(models: Models) -> None:
    done = audited(models, "--temp", "0", "--rules", "coupled", "--drafter", "ngram", "--json", "-")
    document = json.loads(done.out)
    assert (len(document["texts"]), document["distributions"]) == (2, [])


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_bug_has_the_exit_code_of_bench(models: Models, monkeypatch: pytest.MonkeyPatch, temperature: str) -> None:
    monkeypatch.setitem(RULES, "rejection", KeepsTheRejected)
    done = audited(models, "--rules", "rejection", "--drafter", "model", "--temp", temperature, "--draws", 1000)
    assert done.code == 9
    assert "BUG: rejection, model k" in done.out
    assert "Bugs found." in done.out
    assert "differs from the target's" in done.err


def test_the_plan_says_what_there_is_time_for(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Audit, "seconds_per_answer", lambda *_: 10.0)  # 13 answers a prompt with the plain one
    asked = ("--temp", "0", "--tokens", 200, "--budget", 5)
    done = audited(models, *asked)
    assert "Texts: 128 tokens (of 200; raise --budget for more) per setting, 12 settings" in done.err
    assert "about 4.3 minutes" in done.err
    assert "at least 128 per setting (200 requested)" in done.out
    monkeypatch.setattr(Audit, "seconds_per_answer", lambda *_: 1000.0)
    assert "Texts: 64 tokens (of 200" in audited(models, *asked).err


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (Interrupted(signal.SIGINT), 130), (Interrupted(signal.SIGTERM), 143)],
)
def test_a_signal_gives_what_there_is(
    models: Models, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    steps = Counter[str]()

    def interrupted(self: Any) -> None:
        steps[self._label] += 1
        if steps.total() == 3:
            raise error

    monkeypatch.setattr("specdec_cli.ui.steps.Steps.step", interrupted)
    done = audited(models)
    assert done.code == code, done.err
    assert "Stopped; these are the results so far." in done.err
    assert "compared with plain decoding in 3 settings" in done.out
    assert "Distributions" not in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rules", "magic"), "Invalid --rules: 'magic'."),
        (("-k", "0"), "--k takes draft lengths of 1 or more."),
        (("--temp", "-1"), "--temp takes temperatures of 0 or more."),
        (("--drafter", "magic"), "Invalid --drafter: 'magic'."),
        (("--drafter", "none"), "Invalid --drafter: 'none'."),
        (("--drafter", "ngram+magic"), "Invalid --drafter: 'ngram+magic'."),
        (("--drafter", "medusa"), "This drafter needs heads."),
        (("--prompts", "/nowhere.txt"), "Cannot read /nowhere.txt"),
        (("--json", "/nowhere/x.json"), "Cannot write to /nowhere/x.json."),
        (("--ctx", "64"), "No prompt fits the context."),
        (("--draft", "none"), "leaves nothing to audit"),
    ],
)
def test_wrong_use_is_told_before_anything_is_tested(models: Models, arguments: tuple[str, ...], words: str) -> None:
    done = audited(models, *arguments)
    assert (done.code, words in done.err, "Hint: " in done.err) == (2, True, True), done.err


def test_without_drafts_there_is_nothing_to_test(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model", "ngram+model"):
        assert "There is no draft model to test." in inside("audit", models.words, "--drafter", name).err
    monkeypatch.setattr(LlamaSession, "can_rewind", False)
    done = inside("audit", models.mamba, "--threads", 1)
    words = "This pair cannot draft: the target cannot undo tokens"
    assert (done.code, words in done.err) == (2, True), done.err
