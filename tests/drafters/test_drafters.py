"""The drafters one by one: what they propose, when they stop, and what it costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import DraftLength, FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams, probability
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, Drafter, Logits, Round, Target
from specdec_cli.drafters import DRAFTERS, DrafterParts, make_drafter
from specdec_cli.drafters.medusa.heads import Head, Heads
from specdec_cli.drafters.mixed import MixedDrafter, Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, Interrupted, UsageError
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from tests.fakes import FakeClock, FakeHead, HashLM, TableLM

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.9)
PROMPT = (1, 2, 3)


def rule_for(lm: Target, params: SamplingParams = GREEDY, seed: int = 0) -> SharedNoise:
    return SharedNoise(Law(params, n_shared=lm.n_vocab), seed=seed)


def run(
    target: Target, drafter: Drafter, rule: SharedNoise, *, prompt: Sequence[int] = PROMPT, k: int = 4, n: int = 40
) -> list[Round]:
    return list(
        generate(target, drafter, FixedLength(k), rule, prompt, max_tokens=n, ends=lambda _: False, clock=FakeClock())
    )


def emitted(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


# --- a model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [GREEDY, WARM, SamplingParams(temperature=1.5, top_k=5, top_p=0.8, min_p=0.1)], ids=str
)
def test_a_draft_is_what_the_draft_model_would_write_by_the_rule_of_the_target(params: SamplingParams) -> None:
    """Same settings, same seed, same noise at the same place: that is why the two agree so often."""
    lm = HashLM(50, seed=3)
    rule = rule_for(lm, params, seed=12)
    alone = emitted(run(HashLM(50, seed=3), NoDrafter(), rule, n=6))

    assert ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 6).tokens == tuple(alone)
    assert lm.calls == lm.rows == 6, "one pass for each draft token and none for nothing"


def test_a_draft_knows_what_must_not_be_chosen() -> None:
    """A banned or a padding token would be rejected with all that follows."""
    lm = TableLM(12, seed=0)
    lm.table[:, [4, 9, 10, 11]] += 30
    rule = SharedNoise(Law(GREEDY, n_shared=9, banned=[4]), seed=0)

    drafted = ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 8).tokens

    assert len(drafted) == 8
    assert set(drafted) <= set(range(9)) - {4}


@pytest.mark.parametrize("at", range(5))
def test_nothing_is_drafted_after_an_end_token(at: int) -> None:
    lm = HashLM(200, seed=3)
    rule = rule_for(lm)
    whole = ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 5).tokens
    assert len(set(whole)) == 5
    lm.calls = 0

    ending = ModelDrafter(lm, rule, frozenset({whole[at], 199})).propose(PROMPT, 5)

    assert ending.tokens == whole[: at + 1]
    assert lm.calls == at + 1


def test_a_draft_stops_before_a_token_that_it_does_not_believe_in() -> None:
    lm = HashLM(20, seed=5)
    rule = rule_for(lm, WARM)
    whole = ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 12).tokens
    chances = [probability(np.float32(lm.row([*PROMPT, *whole[:i]])), token) for i, token in enumerate(whole)]
    lowest = sorted(chances)

    for p_min in (0.0, *(chance * 0.999 for chance in lowest), 1.0):
        below = [i for i, chance in enumerate(chances) if chance < p_min]
        expected = whole[: below[0]] if below else whole
        assert ModelDrafter(lm, rule, frozenset(), p_min=p_min).propose(PROMPT, 12).tokens == expected


def test_p_min_counts_in_what_may_be_chosen() -> None:
    """A banned token's share is not missing from the others."""
    lm = TableLM(4, seed=0)
    lm.table[:] = np.log([0.9, 0.08, 0.01, 0.01])
    rule = SharedNoise(Law(GREEDY, n_shared=4, banned=[0]), seed=0)

    assert ModelDrafter(lm, rule, frozenset(), p_min=0.75).propose(PROMPT, 2).tokens == (1, 1)
    assert ModelDrafter(lm, rule, frozenset(), p_min=0.85).propose(PROMPT, 2).tokens == ()


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=str)
def test_p_min_does_not_change_the_text(params: SamplingParams) -> None:
    rule = rule_for(TableLM(20, seed=0), params)
    texts = [
        emitted(run(TableLM(20, seed=0), ModelDrafter(TableLM(20, seed=1), rule, frozenset(), p_min=p_min), rule))
        for p_min in (0.0, 0.3, 0.9)
    ]

    assert texts[0] == texts[1] == texts[2]


# --- the q of a draft -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_rule", [TokenRejection, BlockRejection])
def test_a_draft_says_what_it_was_drawn_from(make_rule: type[TokenRejection] | type[BlockRejection]) -> None:
    """The draft's own law at the prefix it stands at, with the target's temperature and cuts."""
    lm = HashLM(20, seed=3)
    rule = make_rule(Law(WARM, n_shared=20), seed=1)
    draft = ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 5)

    assert draft.probs is not None
    assert len(draft.probs) == len(draft.tokens) == 5
    for i, q in enumerate(draft.probs):
        known = [*PROMPT, *draft.tokens[:i]]
        expected = rule.law.distribution(lm.row(known).astype(np.float32), known)
        assert q.ids.tolist() == expected.ids.tolist()
        assert q.probs == pytest.approx(expected.probs)
        assert draft.tokens[i] in q.ids


def test_a_draft_is_drawn_by_its_q() -> None:
    lm = TableLM(6, seed=3)
    q = Law(WARM, n_shared=6).distribution(lm.table[PROMPT[-1]].astype(np.float32), PROMPT)
    counts = np.zeros(6)
    for seed in range(4000):
        rule = TokenRejection(Law(WARM, n_shared=6), seed=seed)
        counts[ModelDrafter(lm, rule, frozenset()).propose(PROMPT, 1).tokens[0]] += 1

    assert stats.chisquare(counts[q.ids], 4000 * q.probs).pvalue > 1e-4
    assert counts.sum() == counts[q.ids].sum()


def test_with_shared_noise_a_draft_needs_no_q() -> None:
    assert ModelDrafter(TableLM(6, seed=3), rule_for(TableLM(6, seed=3)), frozenset()).propose(PROMPT, 3).probs is None


def test_p_min_looks_at_the_likeliest_token_where_q_is_needed() -> None:
    """Leaving out the unlikely tokens that were drawn would make q a lie."""
    lm = TableLM(4, seed=0)
    lm.table[:] = np.log([0.5, 0.3, 0.1, 0.1])
    full = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
    for p_min, length in ((0.49, 12), (0.51, 0)):
        rule = BlockRejection(Law(full, n_shared=4), seed=0)
        assert len(ModelDrafter(lm, rule, frozenset(), p_min=p_min).propose(PROMPT, 12).tokens) == length


def test_a_full_context_of_the_draft_is_said_and_the_run_goes_on() -> None:
    target, draft = HashLM(50, seed=3, n_ctx=64), HashLM(50, seed=3, n_ctx=20)
    rule = rule_for(target, WARM)
    rounds = run(target, ModelDrafter(draft, rule, frozenset()), rule, k=4, n=50)

    assert emitted(rounds) == emitted(run(HashLM(50, seed=3), NoDrafter(), rule, n=50))
    n_before = [len(PROMPT) + len(emitted(rounds[:i])) for i in range(len(rounds))]
    for round_, n in zip(rounds[1:], n_before[1:], strict=True):
        # A list of n_ctx tokens still fits, and gives one token more.
        assert len(round_.drafted) == max(min(4, 20 - n + 1), 0)
        assert round_.off_reason == (None if n <= 20 else "the draft's context of 20 tokens is full (--ctx-draft)")
    assert rounds[-1].off_reason is not None


def test_a_new_conversation_fits_the_draft_again() -> None:
    rule = rule_for(TableLM(20, seed=0))
    drafter = ModelDrafter(TableLM(20, seed=0, n_ctx=10), rule, frozenset())

    assert drafter.propose([1] * 11, 3).off_reason is not None
    assert len(drafter.propose([1] * 4, 3).tokens) == 3


class BrokenLM(TableLM):
    """Fails at one call, and works before and after."""

    def __init__(self, fails_at: int, error: Exception) -> None:
        super().__init__(20, seed=1)
        self.fails_at = fails_at
        self.error = error

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        if self.calls == self.fails_at:
            self.calls += 1
            raise self.error
        return super().score(tokens, n_last)


@pytest.mark.parametrize("fails_at", [0, 1, 2, 7])
def test_a_draft_model_that_fails_does_not_end_the_run(fails_at: int) -> None:
    target, draft = TableLM(20, seed=0), BrokenLM(fails_at, DecodeFailed("status -3"))
    rule = rule_for(target, WARM)
    rounds = run(target, ModelDrafter(draft, rule, frozenset()), rule, k=3)

    assert emitted(rounds) == emitted(run(TableLM(20, seed=0), NoDrafter(), rule))
    failed = 1 + fails_at // 3
    assert [r.off_reason for r in rounds[:failed]] == [None] * failed
    assert {r.off_reason for r in rounds[failed:]} == {"the draft model failed: status -3"}
    assert not any(r.drafted for r in rounds[failed:])
    assert draft.calls == fails_at + 1, "it is not asked again"


def test_rows_that_are_not_numbers_are_a_failure_of_the_draft() -> None:
    draft = TableLM(20, seed=1)
    draft.table[:] = np.nan
    rule = rule_for(draft, WARM)

    assert ModelDrafter(draft, rule, frozenset()).propose(PROMPT, 3).off_reason is not None


def test_ctrl_c_in_the_draft_model_is_ctrl_c() -> None:
    draft = BrokenLM(1, Interrupted(2))

    with pytest.raises(Interrupted):
        ModelDrafter(draft, rule_for(draft), frozenset()).propose(PROMPT, 3)


# --- the table ------------------------------------------------------------------------------------------


NEED_FILES = {"model", "medusa"}
HEADS = {"eagle3", "mtp", "dflash", "dflash2", "dspark"}


@pytest.mark.parametrize("name", sorted(DRAFTERS.keys() - {"medusa"}))
def test_a_drafter_is_found_under_the_name_that_it_shows(name: str) -> None:
    lm = TableLM(20, seed=0)
    parts = DrafterParts(rule_for(lm), frozenset(), 0.0, lm, head=FakeHead(lm, name=name))

    assert DRAFTERS[name].make(parts).name == name


class OneRow:
    """A model, a head and a target with states, none of which looks at the text."""

    n_ctx, n_vocab, longest, confidence = 10**6, 8, None, None

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, _tokens: Sequence[int], _n_last: int) -> Logits:
        return np.ones((1, self.n_vocab), np.float32)

    def start(self, _tokens: Sequence[int], _k: int) -> NDArray[np.float32]:
        return self.score((), 1)[0]

    def advance(self, _token: int) -> NDArray[np.float32]:
        return self.score((), 1)[0]

    def hidden(self, _tokens: Sequence[int]) -> NDArray[np.float32]:
        return self.score((), 1)[0]


@pytest.mark.parametrize("name", sorted(DRAFTERS))
def test_no_round_looks_at_the_whole_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, rule = OneRow(name), SharedNoise(Law(GREEDY, n_shared=8), seed=0)
    heads = Heads((Head((), np.eye(8, dtype=np.float32)),))
    drafter = make_drafter(name, DrafterParts(rule, frozenset(), 0.0, one, one, head=one, heads=heads))
    text = Tokens([1, 2, 3, 4] * 1000)
    drafter.propose(text, 3)
    item = Tokens.__getitem__

    def few(self: Tokens, at: Any) -> Any:
        found = item(self, at)
        assert not isinstance(found, list) or len(found) < 100
        return found

    monkeypatch.setattr(Tokens, "__getitem__", few)
    monkeypatch.setattr(Tokens, "__iter__", lambda _: pytest.fail("the whole text was looked at"))
    draft = drafter.propose(text.grown([1]), 3)
    assert bool(draft.tokens) == (name != "none")


def test_what_needs_a_file_says_so_without_it() -> None:
    def parts(session: Target | None) -> DrafterParts:
        return DrafterParts(rule_for(TableLM(20, seed=0)), frozenset(), 0.0, session)

    for name in DRAFTERS.keys() - NEED_FILES - HEADS:
        assert DRAFTERS[name].make(parts(None)).name == name
    for name in HEADS:
        with pytest.raises(UsageError, match="needs a trained head"):
            DRAFTERS[name].make(parts(None))
    for name, what in (("model", "a draft model"), ("medusa", "heads")):
        with pytest.raises(UsageError, match=f"needs {what}"):
            DRAFTERS[name].make(parts(None))
    assert len(DRAFTERS["model"].make(parts(TableLM(20, seed=0))).propose([1], 4).tokens) == 4


def test_no_drafter_says_why() -> None:
    assert NoDrafter().propose([1], 4).off_reason == "--draft none"
    assert NoDrafter("recurrent").propose([1], 4).off_reason == "recurrent"
    assert NoDrafter().propose([1], 4).tokens == ()


class Judge:
    """Turns that were settled beforehand: what lookup found is worth `value`, asking the model `worth`."""

    def __init__(self, value: float, worth: float) -> None:
        self.passed_on: list[bool] = []
        self._value, self._worth = value, worth

    def passes_on(self, name: str, draft: Draft) -> bool:
        assert name == "model"
        self.passed_on.append(self._worth > (self._value if draft.tokens else 0.0))
        return self.passed_on[-1]


LOOP = [1, 2, 3, 4] * 6 + [1, 2, 3]


def mixed(turns: Turns | None) -> MixedDrafter:
    lm = TableLM(20, seed=0)
    return MixedDrafter(NgramDrafter(), ModelDrafter(lm, rule_for(lm), frozenset()), turns)


@pytest.mark.parametrize(
    ("tokens", "value", "worth", "source"),
    [
        (LOOP, 1.0, 0.5, "ngram"),
        (LOOP, 0.5, 1.0, "model"),
        (LOOP, 0.0, 0.0, "ngram"),  # the length will keep nothing of it, unless the model were better
        (PROMPT, 9.0, 0.1, "model"),  # nothing was found
        (PROMPT, 9.0, 0.0, ""),
    ],
)
def test_the_source_that_promises_more_drafts(tokens: list[int], value: float, worth: float, source: str) -> None:
    judge = Judge(value, worth)
    draft = mixed(judge).propose(list(tokens), 4)
    assert (judge.passed_on, draft.source) == ([source == "model"], source)
    assert bool(draft.tokens) is (source == "model" or tokens is LOOP)


def test_without_turns_the_model_drafts_where_lookup_finds_nothing() -> None:
    assert mixed(None).propose(LOOP, 3) == Draft((4, 1, 2), source="ngram")
    assert mixed(None).propose(PROMPT, 3).source == "model"


def test_a_model_that_has_given_up_does_not_end_lookup() -> None:
    lm = TableLM(20, seed=0, n_ctx=5)
    drafter = MixedDrafter(NgramDrafter(), ModelDrafter(lm, rule_for(lm), frozenset()), None)
    assert drafter.propose(PROMPT * 9, 3).off_reason is None
    assert drafter.propose(LOOP, 3).tokens == (4, 1, 2)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.8)], ids=str)
def test_mixing_with_a_chosen_length_keeps_the_text(params: SamplingParams) -> None:
    target, draft = TableLM(30, seed=0), TableLM(30, seed=0)
    draft.table = draft.table + 0.3 * np.random.default_rng(1).normal(size=draft.table.shape)
    rule = rule_for(target, params)
    learned = Learned(PassCosts({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4}, longest=8))
    learned.costs.set_drafting("model", 0.1, 0.02)
    length = AutoLength(learned, longest=8, sources=("ngram", "model"))
    drafter = MixedDrafter(NgramDrafter(), ModelDrafter(draft, rule, frozenset()), length)

    def rounds(drafter: Drafter, length: DraftLength) -> list[Round]:
        clock = FakeClock((0.25,))
        return list(generate(target, drafter, length, rule, PROMPT, max_tokens=300, ends=lambda _: False, clock=clock))

    plain, drafted = rounds(NoDrafter(), FixedLength(0)), rounds(drafter, length)
    assert [t for r in drafted for t in r.tokens] == [t for r in plain for t in r.tokens]
    assert sum(r.n_accepted for r in drafted) > 20


def test_two_drafters_of_the_table_take_turns_under_both_names() -> None:
    lm = TableLM(20, seed=0)
    drafter = make_drafter("ngram+model", DrafterParts(rule_for(lm), frozenset(), 0.0, lm))
    assert drafter.name == "ngram+model"
    assert drafter.propose(LOOP, 3).source == "ngram"
    assert make_drafter("ngram", DrafterParts(rule_for(lm), frozenset(), 0.0, None)).name == "ngram"


def test_a_model_that_gave_up_leaves_drafting_to_lookup_and_is_not_asked_again() -> None:
    judge = Judge(0.1, 9.0)
    lm = TableLM(20, seed=0, n_ctx=5)
    drafter = MixedDrafter(NgramDrafter(), ModelDrafter(lm, rule_for(lm), frozenset()), judge)
    assert drafter.propose(LOOP, 3) == Draft()
    assert drafter.gave_up is not None
    assert drafter.propose([*LOOP, 4], 3).tokens == (1, 2, 3)
    assert judge.passed_on == [True]
