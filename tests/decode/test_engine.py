"""The loop, on models in pure numpy: its text is that of plain decoding, whoever drafts."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, softmax

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import DraftLength, FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.plain_pace import PlainChecks, is_plain
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.text_stream import Reply
from specdec_cli.decode.types import Draft, Drafter, Round, TokenLogprob
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from tests.fakes import FakeClock, FakeLM, HashLM, PerfectDrafter, ScriptedDrafter, TableLM, WrongDrafter
from tests.planted import coupled_rate

PROMPT = (1, 2, 3)
GREEDY = SamplingParams(temperature=0)
SETTINGS = (GREEDY, SamplingParams(temperature=0.7), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))


def table(*, seed: int = 0, n_ctx: int = 4096) -> TableLM:
    return TableLM(23, seed=seed, n_ctx=n_ctx)


def hashed(*, seed: int = 0, n_ctx: int = 4096) -> HashLM:
    """So many tokens that a text of some dozens repeats none (and no two prefixes give the same logits)."""
    return HashLM(211, seed=seed, n_ctx=n_ctx)


Make = Callable[..., FakeLM]
MODELS: tuple[Make, ...] = (table, hashed)


def rule_for(lm: FakeLM, params: SamplingParams = GREEDY, seed: int = 0) -> SharedNoise:
    return SharedNoise(Law(params, n_shared=lm.n_vocab), seed=seed)


def never(_token: int) -> bool:
    return False


def start(
    target: FakeLM,
    drafter: Drafter | None = None,
    *,
    k: int = 4,
    prompt: Sequence[int] = PROMPT,
    rule: Rule | None = None,
    length: DraftLength | None = None,
    max_tokens: int | None = 40,
    ends: Callable[[int], bool] = never,
    clock: Callable[[], float] | None = None,
    n_logprobs: int | None = None,
    checks: PlainChecks | None = None,
) -> Iterator[Round]:
    return generate(
        target,
        drafter or NoDrafter(),
        length or FixedLength(k, give_up_after=10_000),
        rule or rule_for(target),
        prompt,
        max_tokens=max_tokens,
        ends=ends,
        clock=clock or FakeClock(),
        n_logprobs=n_logprobs,
        checks=checks,
    )


def emitted(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


def plain(lm: FakeLM, n: int, *, prompt: Sequence[int] = PROMPT, rule: SharedNoise | None = None) -> list[int]:
    """`n` tokens by the rule alone, one at a time: what every run is held against."""
    rule = rule or rule_for(lm)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        tokens.append(rule.choose(lm.score(tokens, 1)[-1], tokens))
    return tokens[len(prompt) :]


def perfect(lm: FakeLM, rule: SharedNoise) -> PerfectDrafter:
    return PerfectDrafter(lm, lambda row, tokens: rule.choose(row, tokens))


def wrong(lm: FakeLM, rule: SharedNoise) -> WrongDrafter:
    return WrongDrafter(lm, lambda row, tokens: rule.choose(row, tokens))


class HalfRight(PerfectDrafter):
    """Right at first, wrong from a place in the draft that differs from round to round."""

    name = "half right"

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        n = len(tokens) % (k + 1)
        right = super().propose(tokens, k).tokens
        return Draft(tuple(t if i < n else (t + 1) % self.lm.n_vocab for i, t in enumerate(right)))


DRAFTERS: dict[str, Callable[[Make, SharedNoise], Drafter]] = {
    "none": lambda _make, _rule: NoDrafter(),
    "ngram": lambda _make, _rule: NgramDrafter(least_chance=0),
    "perfect": lambda make, rule: perfect(make(), rule),
    "wrong": lambda make, rule: wrong(make(), rule),
    "half right": lambda make, rule: HalfRight(make(), lambda row, tokens: rule.choose(row, tokens)),
    "scripted": lambda _make, _rule: ScriptedDrafter(*[[i % 23, (2 * i) % 23, 5][: i % 4] for i in range(100)]),
    "another model": lambda make, rule: ModelDrafter(make(seed=1), rule, frozenset(), p_min=0.02),
}


# --- the text never depends on the drafter --------------------------------------------------------------


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_text_is_that_of_plain_decoding(name: str, make: Make, params: SamplingParams) -> None:
    for seed in range(2):
        rule = rule_for(make(), params, seed)
        expected = plain(make(), 30, rule=rule)
        for k in (1, 2, 3, 4, 5, 8, 11, 16):
            rounds = list(start(make(), DRAFTERS[name](make, rule), k=k, rule=rule, max_tokens=30))
            assert emitted(rounds) == expected, f"k {k}, seed {seed}"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SETTINGS),
    st.integers(0, 2**32 - 1),
    st.lists(st.lists(st.integers(-2, 25), max_size=8), max_size=30),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.integers(0, 30),
)
def test_no_draft_can_change_the_text(
    params: SamplingParams, seed: int, drafts: list[list[int]], lengths: list[int], n: int
) -> None:
    """Any tokens at all, ids that do not exist among them, with any wish for their number."""

    class AnyLength(FixedLength):
        def __init__(self) -> None:
            super().__init__(1, give_up_after=10**9)
            self._lengths = itertools.cycle(lengths)

        def next(self, n_tokens: int, room: int) -> int:  # noqa: ARG002
            return min(next(self._lengths), room)

    rule = rule_for(table(), params, seed)
    rounds = list(start(table(), ScriptedDrafter(*drafts), rule=rule, length=AnyLength(), max_tokens=n))

    assert emitted(rounds) == plain(table(), n, rule=rule)


def test_seeds_and_prompts_do_change_the_text() -> None:
    """Or else the equalities above would say nothing."""
    texts = {
        tuple(plain(table(), 20, prompt=prompt, rule=rule_for(table(), SETTINGS[1], seed)))
        for seed, prompt in itertools.product(range(5), [(1,), (2,), (1, 2)])
    }
    assert len(texts) == 15


def test_a_perfect_draft_is_accepted_whole_to_the_end() -> None:
    """An index that is off by one somewhere would show as acceptance that decays with length."""
    target, k = table(), 5
    rule = rule_for(target, SETTINGS[2])
    rounds = list(start(target, perfect(table(), rule), k=k, rule=rule, max_tokens=2000))

    assert all(r.n_accepted == len(r.drafted) for r in rounds)
    assert [len(r.drafted) for r in rounds[1:-1]] == [k] * (len(rounds) - 2)
    assert len(emitted(rounds)) == 2000
    assert target.calls == len(rounds) == 1 + -(-1999 // (k + 1))


def test_a_wrong_draft_costs_no_text_and_a_row_is_scored_once_for_each_draft_token() -> None:
    target, rule = table(), rule_for(table())
    rounds = list(start(target, wrong(table(), rule), k=3, max_tokens=20))

    assert [r.n_accepted for r in rounds] == [0] * 20
    assert target.rows == sum(len(r.drafted) + 1 for r in rounds)


@pytest.mark.parametrize("n_before", range(8))
def test_a_text_that_was_broken_off_goes_on_as_if_it_had_not(n_before: int) -> None:
    """The noise of a place depends on nothing but the place, so any consumer may leave at any round and come back."""
    rule = rule_for(hashed(), SETTINGS[1], seed=8)
    drafter = ModelDrafter(HashLM(211, seed=0, scale=1.2), rule, frozenset())
    target = hashed()
    rounds = start(target, drafter, k=3, rule=rule)
    before = emitted(list(itertools.islice(rounds, n_before)))
    rounds.close()  # type: ignore[attr-defined]
    calls = target.calls

    after = emitted(list(start(target, drafter, k=3, rule=rule, prompt=[*PROMPT, *before], max_tokens=10)))

    assert before + after == plain(hashed(), len(before) + 10, rule=rule)
    assert calls == n_before, "a closed generator evaluates nothing ahead"


# --- where the text ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("params", SETTINGS[:2], ids=str)
@pytest.mark.parametrize("name", ["none", "perfect", "wrong", "half right"])
def test_nothing_comes_after_the_end_token_wherever_it_falls(name: str, params: SamplingParams, k: int) -> None:
    """Every token of a text in turn is declared to be the end: so it falls on every index of a draft."""
    rule = rule_for(hashed(), params)
    text = plain(hashed(), 20, rule=rule)
    for end in dict.fromkeys(text):
        rounds = list(start(hashed(), DRAFTERS[name](hashed, rule), k=k, rule=rule, ends=lambda t, end=end: t == end))

        assert emitted(rounds) == text[: text.index(end) + 1]
        assert [r.finish for r in rounds] == [None] * (len(rounds) - 1) + ["stop"]


@pytest.mark.parametrize(
    ("draft", "end", "drafted", "n_accepted", "own"),
    [
        ("abc", "a", "a", 1, None),
        ("abc", "b", "ab", 2, None),
        ("abc", "c", "abc", 3, None),
        ("abc", "d", "abc", 3, "d"),
        ("abx", "b", "ab", 2, None),
        ("abx", "c", "abx", 2, "c"),
        ("xbc", "a", "xbc", 0, "a"),
        ("", "a", "", 0, "a"),
    ],
)
def test_what_was_drafted_after_the_end_is_not_counted(
    draft: str, end: str, drafted: str, n_accepted: int, own: str | None
) -> None:
    """By hand. The text is a, b, c, d after a first token; x is none of them."""
    first, *text = plain(hashed(), 5)
    ids = dict(zip("abcd", text, strict=True))
    ids["x"] = next(t for t in range(211) if t not in (first, *text))

    def to_ids(letters: str) -> tuple[int, ...]:
        return tuple(ids[letter] for letter in letters)

    rounds = list(start(hashed(), ScriptedDrafter(to_ids(draft)), k=3, ends=lambda t: t == ids[end]))

    last = rounds[1]
    assert len(rounds) == 2
    assert (last.drafted, last.n_accepted) == (to_ids(drafted), n_accepted)
    assert last.own == (None if own is None else ids[own])
    assert last.finish == "stop"


def test_an_end_token_that_the_target_does_not_want_ends_nothing() -> None:
    end = next(t for t in range(211) if t not in plain(hashed(), 10))
    rounds = list(start(hashed(), ScriptedDrafter([end, end], [end]), max_tokens=10, ends=lambda t: t == end))

    assert emitted(rounds) == plain(hashed(), 10)
    assert rounds[-1].finish == "length"


def letters(token: int) -> bytes:
    return f"{chr(97 + token % 26)}{chr(97 + token // 26)}".encode()


@pytest.mark.parametrize("name", ["none", "perfect", "half right"])
@pytest.mark.parametrize("cut", [0, 1])
def test_stop_strings_end_the_text_inside_and_across_drafts(name: str, cut: int) -> None:
    tokens = plain(hashed(), 20)
    text = b"".join(map(letters, tokens)).decode()
    for at in range(0, 34, 2):
        stop = text[at + cut : at + cut + 5]  # over two or three tokens
        reply = Reply(letters, end_tokens=(), stop_strings=[stop])
        rounds = []
        for round_ in start(hashed(), DRAFTERS[name](hashed, rule_for(hashed())), k=3):
            rounds.append(reply.add(round_)[0])
            if rounds[-1].finish:
                break
        reply.close()

        assert reply.text == text[: text.index(stop)]
        assert reply.tokens == emitted(rounds) == tokens[: len(reply.tokens)]
        assert reply.origins == [origin for round_ in rounds for origin in round_.origins]
        assert rounds[-1].finish == "stop"


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_round_that_ends_early_has_nothing_after_its_last_token(n: int) -> None:
    logprobs = tuple(TokenLogprob(token, -1.0, ()) for token in (5, 6, 7, 8))
    cut = Round((5, 6, 7, 9), 3, 8, k=4, finish="length", logprobs=logprobs).ending_after(n)

    assert cut.tokens == (5, 6, 7, 8)[:n]
    assert cut.drafted == ((5, 6, 7)[:n] if n < 4 else (5, 6, 7, 9)), "what was drafted after it is not counted"
    assert cut.logprobs == logprobs[:n]
    assert (cut.finish, cut.own) == ("stop", 8 if n == 4 else None)


@pytest.mark.parametrize("name", ["none", "perfect", "wrong"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6, 7, 11])
def test_max_tokens_is_met_exactly(n: int, name: str) -> None:
    target, k = table(), 4
    rounds = list(start(target, DRAFTERS[name](table, rule_for(target)), k=k, max_tokens=n))

    assert emitted(rounds) == plain(table(), n)
    assert [r.finish for r in rounds] == [*[None] * (len(rounds) - 1), "length"][: len(rounds)]
    assert target.calls == len(rounds)
    assert n > 0 or not rounds, "nothing to write is nothing to evaluate"


@pytest.mark.parametrize("name", ["none", "ngram", "perfect", "wrong", "another model"])
@pytest.mark.parametrize("k", [1, 5])
def test_the_context_is_filled_to_the_last_place_and_not_beyond(k: int, name: str) -> None:
    """The fake target refuses a list that is longer than its context, as llama.cpp would."""
    n_ctx = 32
    for n_prompt in (1, 2, *range(n_ctx - k - 2, n_ctx)):
        prompt = [i % 20 for i in range(n_prompt)]

        def make(**options: int) -> TableLM:
            return table(n_ctx=n_ctx, **options)

        rounds = list(start(make(), DRAFTERS[name](make, rule_for(table())), k=k, prompt=prompt, max_tokens=None))
        assert emitted(rounds) == plain(make(), n_ctx - n_prompt, prompt=prompt)
        assert [r.finish for r in rounds] == [None] * (len(rounds) - 1) + ["context"]


@pytest.mark.parametrize(
    ("max_tokens", "end_at", "expected"),
    [
        (5, None, "length"),
        (5, 5, "stop"),
        (5, 6, "length"),
        (None, None, "context"),
        (None, 29, "stop"),
        (28, None, "length"),
        # Both limits at once: everything asked for was written.
        (29, None, "length"),
        (30, None, "context"),
        (29, 29, "stop"),
    ],
)
@pytest.mark.parametrize("name", ["none", "perfect"])
def test_the_text_itself_ends_first_then_the_limit_then_the_context(
    name: str, max_tokens: int | None, end_at: int | None, expected: str
) -> None:
    seen = itertools.count(1)
    rule = rule_for(table())
    rounds = list(
        start(
            table(n_ctx=32),
            DRAFTERS[name](table, rule),
            max_tokens=max_tokens,
            ends=lambda _: next(seen) == end_at,
        )
    )

    assert rounds[-1].finish == expected
    assert len(emitted(rounds)) == min(max_tokens or 29, 29, end_at or 29)


# --- what the drafter is asked, and what becomes of its answer ------------------------------------------


def test_the_first_round_reads_the_prompt_and_drafts_nothing() -> None:
    """So the time to first token is that of plain decoding."""
    drafter = ScriptedDrafter([1, 2, 3])
    first = next(start(table(), drafter))

    assert (first.drafted, first.k, len(first.tokens)) == ((), 0, 1)
    assert drafter.asked == []


def test_the_drafter_gets_the_whole_text_and_how_much_is_of_use() -> None:
    drafter = ScriptedDrafter()
    rounds = list(start(table(), drafter, k=4, max_tokens=8))
    text = [*PROMPT, *emitted(rounds)]

    # The target adds a token of its own, so one place is left to it; without room for a draft, nobody is asked.
    assert drafter.asked == [(tuple(text[: 3 + n]), min(4, 8 - n - 1)) for n in range(1, 7)]
    assert [r.k for r in rounds] == [0, 4, 4, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("draft", "verified"),
    [([5, 6, 7], 3), ([5, 23, 7], 1), ([23], 0), ([-1, 5], 0), ([5, 10**12], 1), ([0, 22], 2)],
)
def test_ids_that_the_target_does_not_have_cut_the_draft(draft: list[int], verified: int) -> None:
    second = list(start(table(), ScriptedDrafter(draft), max_tokens=10))[1]

    assert second.drafted == tuple(draft[:verified])


@pytest.mark.parametrize(("k", "max_tokens", "verified"), [(3, 40, 3), (8, 5, 3), (30, 40, 20)])
def test_a_drafter_that_says_more_than_it_was_asked_is_cut_short(k: int, max_tokens: int, verified: int) -> None:
    """The target's context has rows for k + 1 tokens and no more."""
    rounds = list(start(table(), ScriptedDrafter([5] * 20), k=k, max_tokens=max_tokens))

    assert len(rounds[1].drafted) == verified
    assert emitted(rounds) == plain(table(), max_tokens)


@pytest.mark.parametrize("params", SETTINGS[:2], ids=str)
def test_hopeless_drafting_is_given_up_and_said(params: SamplingParams) -> None:
    target, rule = table(), rule_for(table(), params)
    rounds = list(start(target, wrong(table(), rule), rule=rule, length=FixedLength(3), max_tokens=60))

    assert [bool(r.drafted) for r in rounds] == [False] + [True] * 16 + [False] * 43
    assert [r.off_reason for r in rounds[:16]] == [None] * 16
    assert {r.off_reason for r in rounds[16:]} == {"no draft token accepted in 16 drafts in a row"}
    assert emitted(rounds) == plain(table(), 60, rule=rule)


def test_one_accepted_token_keeps_the_drafter_in_work() -> None:
    length = FixedLength(3, give_up_after=2)
    for n_accepted in (0, 1, 0, 3, 0):
        length.observe(Round((1, 2, 3), n_accepted, 4))
    length.observe(Round((), 0, 4))  # nothing was drafted, so nothing failed
    assert (length.next(9, 9), length.off_reason) == (3, None)

    length.observe(Round((1,), 0, 4))
    assert (length.next(9, 9), length.off_reason) == (0, "no draft token accepted in 2 drafts in a row")


def test_a_length_of_zero_says_why_nothing_is_drafted() -> None:
    drafter = ScriptedDrafter([1])
    rounds = list(start(table(), drafter, length=FixedLength(0)))

    assert drafter.asked == []
    assert {r.off_reason for r in rounds} == {"-k 0"}


def test_what_is_off_stays_off_in_the_last_round_too() -> None:
    """There is no room for a draft then, and nobody is asked; the summary still has to say why."""
    rounds = list(start(table(), NoDrafter("because"), max_tokens=5))
    assert [r.off_reason for r in rounds] == [None, "because", "because", "because", "because"]

    rounds = list(start(table(), ScriptedDrafter([1], Draft(off_reason="broke")), max_tokens=5))
    assert [r.off_reason for r in rounds][-1] == "broke"


def test_an_empty_draft_is_a_round_of_plain_decoding() -> None:
    rounds = list(start(table(), ScriptedDrafter([], [], [5]), max_tokens=10))

    assert [r.off_reason for r in rounds] == [None] * 10
    assert all(len(r.tokens) == 1 for r in rounds[:3])


# --- what a round says ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_token_of_a_round_has_an_origin(name: str) -> None:
    rule = rule_for(table(), SETTINGS[1])
    for round_ in start(table(), DRAFTERS[name](table, rule), rule=rule):
        assert len(round_.origins) == len(round_.tokens)
        assert round_.origins.count("draft") == round_.n_accepted
        assert round_.tokens[: round_.n_accepted] == round_.drafted[: round_.n_accepted]
        assert len(round_.drafted) <= max(round_.k, 0)
        assert round_.own is not None, "only an end in the draft leaves the target without a word"


def test_times_are_those_of_the_parts() -> None:
    """A clock that moves only where time is spent: 1 s in the drafter, 10 s in the target, 100 s at the consumer."""
    clock = FakeClock(steps=[0.0])

    class SlowDrafter(ScriptedDrafter):
        def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
            clock.advance(1.0)
            return super().propose(tokens, k)

    class SlowLM(TableLM):
        def score(self, tokens: Sequence[int], n_last: int) -> np.ndarray:
            clock.advance(10.0)
            return super().score(tokens, n_last)

    rounds = []
    for round_ in start(SlowLM(23, seed=0), SlowDrafter([1], []), max_tokens=4, clock=clock):
        rounds.append(round_)
        clock.advance(100.0)

    assert [r.draft_seconds for r in rounds] == [0, 1, 1, 0]
    assert [r.verify_seconds for r in rounds] == [10, 10, 10, 10]
    assert [r.seconds for r in rounds] == [10, 111, 111, 110]
    assert sum(r.seconds for r in rounds) == clock.now - 100, "no time is lost between rounds"


def test_rounds_follow_each_other_without_a_gap() -> None:
    clock = FakeClock(steps=[1.0])
    rounds = list(start(table(), perfect(table(), rule_for(table())), clock=clock))

    assert sum(r.seconds for r in rounds) == clock.now - 1.0, "from the first reading of the clock to the last"


# --- the law of the whole loop --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_runs() -> tuple[TableLM, TableLM, list[list[Round]], float]:
    """20,000 tokens of a Markov chain over five tokens, drafted by a disturbed chain: 40 texts of 500."""
    target, draft = TableLM(5, seed=1, scale=1.0), TableLM(5, seed=1)
    draft.table = target.table + np.random.default_rng(2).normal(size=(5, 5))
    temperature = 0.8
    runs = []
    for seed in range(40):
        rule = rule_for(target, SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0), seed)
        drafter = ModelDrafter(draft, rule, frozenset())
        runs.append(list(start(target, drafter, k=3, prompt=[seed % 5], rule=rule, max_tokens=500)))
    return target, draft, runs, temperature


def test_the_sampled_loop_follows_the_law_of_the_target(
    long_runs: tuple[TableLM, TableLM, list[list[Round]], float],
) -> None:
    """Catches what exact tests of one position cannot: noise used twice, a row taken for its neighbour."""
    target, _, runs, temperature = long_runs
    pairs = np.zeros((5, 5))
    for seed, rounds in enumerate(runs):
        for before, after in itertools.pairwise([seed % 5, *emitted(rounds)]):
            pairs[before, after] += 1
    assert pairs.sum() == 20_000

    law = softmax(target.table / temperature, axis=1)
    p_values = [stats.chisquare(row, row.sum() * p).pvalue for row, p in zip(pairs, law, strict=True)]
    assert min(p_values) > 1e-4
    # Tokens two apart must also be independent given the one between, or the noise is not fresh.
    triples = np.zeros((5, 5, 5))
    for rounds in runs:
        tokens = emitted(rounds)
        np.add.at(triples, (tokens[:-2], tokens[1:-1], tokens[2:]), 1)
    assert min(stats.chi2_contingency(triples[:, between]).pvalue for between in range(5)) > 1e-4


def test_the_draft_is_accepted_as_often_as_theory_says(
    long_runs: tuple[TableLM, TableLM, list[list[Round]], float],
) -> None:
    """A draft token that is looked at stands with the chance of equal choices in its state."""
    target, draft, runs, temperature = long_runs
    rate = coupled_rate(softmax(target.table / temperature, axis=1), softmax(draft.table / temperature, axis=1))
    expected: list[float] = []
    n_accepted = 0
    for seed, rounds in enumerate(runs):
        last = seed % 5
        for round_ in rounds:
            n_looked_at = min(round_.n_accepted + 1, len(round_.drafted))
            states = [last, *round_.drafted][:n_looked_at]
            expected += [rate[state] for state in states]
            n_accepted += round_.n_accepted
            last = round_.tokens[-1]

    chances = np.array(expected)
    assert len(chances) > 5000
    assert abs(n_accepted - chances.sum()) < 4 * np.sqrt((chances * (1 - chances)).sum())


# --- a text that is taken up again -------------------------------------------------------------------------

LOOKING_BACK = SamplingParams(repeat_penalty=1.4, presence_penalty=0.5, dry_multiplier=1.0)


@pytest.mark.parametrize("params", [*SETTINGS, LOOKING_BACK], ids=str)
@pytest.mark.parametrize("n_before", [1, 7, 22])
def test_a_text_that_was_interrupted_goes_on_as_it_would_have(params: SamplingParams, n_before: int) -> None:
    """The seed and the text before are all that matters: where a prompt ends does not."""
    lm, rule = hashed(), rule_for(hashed(), params)
    whole = emitted(list(start(lm, HalfRight(hashed(), rule.choose), rule=rule)))
    again = [*PROMPT, *whole[:n_before]]

    rest = emitted(list(start(hashed(), wrong(hashed(), rule), prompt=again, rule=rule, max_tokens=40 - n_before)))

    assert rest == whole[n_before:]


# --- what not both models know ----------------------------------------------------------------------------


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("make_rule", [SharedNoise, TokenRejection, BlockRejection])
def test_ids_above_the_shared_vocabulary_are_neither_drafted_nor_emitted(
    make_rule: Callable[..., Rule], params: SamplingParams
) -> None:
    """Rows may be longer than the vocabulary that both models share, and a prompt may hold any id of the target's."""
    target = table()
    target.table[:, 20:] += 50
    rule = make_rule(Law(params, n_shared=20), seed=4)
    drafter = ScriptedDrafter([21], [5, 22, 5], [20, 1], [3, 4])

    rounds = list(start(target, drafter, prompt=(1, 22, 2), rule=rule, max_tokens=12))

    assert max(emitted(rounds)) < 20
    assert [len(r.drafted) for r in rounds[1:4]] == [0, 1, 0]
    assert max(token for r in rounds for token in r.drafted) < 20
    assert max(ModelDrafter(target, rule, frozenset()).propose([1, 22], 8).tokens) < 20


# --- log-probabilities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS)
def test_logprobs_are_those_of_the_row_before_the_token(make: Make) -> None:
    """Untempered and uncut, one for each emitted token, whoever proposed it."""
    lm, rule = make(), rule_for(make(), SETTINGS[1])
    rounds = list(start(lm, HalfRight(make(), rule.choose), rule=rule, n_logprobs=2))
    assert sum(r.n_accepted for r in rounds) > 5

    known = list(PROMPT)
    for round_ in rounds:
        assert [one.token for one in round_.logprobs] == list(round_.tokens)
        for one in round_.logprobs:
            expected = log_softmax(make().row(known))
            assert one.logprob == pytest.approx(expected[one.token], abs=1e-4)
            assert [t for t, _ in one.likeliest] == np.argsort(-expected)[:2].tolist()
            assert [p for _, p in one.likeliest] == pytest.approx(np.sort(expected)[::-1][:2], abs=1e-4)
            known.append(one.token)


def test_logprobs_end_where_the_text_ends() -> None:
    lm = hashed()
    whole = emitted(list(start(lm)))
    rounds = list(start(hashed(), perfect(hashed(), rule_for(lm)), ends=lambda t: t == whole[7], n_logprobs=0))
    assert [one.token for r in rounds for one in r.logprobs] == emitted(rounds) == whole[:8]
    assert not any(one.likeliest for r in rounds for one in r.logprobs)


def test_nobody_pays_for_logprobs_that_were_not_asked_for() -> None:
    assert {r.logprobs for r in start(table())} == {()}


class Patience(FixedLength):
    """Wants another draft token while the drafter is sure enough, and keeps all but the last of them."""

    def __init__(self, k: int, wanted: int) -> None:
        super().__init__(k, give_up_after=10**9)
        self.wanted = wanted
        self.told: list[float | None] = []

    def more(self, confidence: float | None) -> bool:  # type: ignore[override]
        self.told.append(confidence)
        return len(self.told) % self.wanted != 0

    def keep(self, draft: Draft) -> int:
        return max(len(draft.tokens) - 1, 1)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_a_draft_ends_where_no_more_are_wanted_and_its_end_may_be_left_out(params: SamplingParams) -> None:
    rule, lm = rule_for(table(), params), table(seed=1)
    length = Patience(8, 3)
    rounds = list(start(table(), ModelDrafter(lm, rule, frozenset()), rule=rule, length=length, max_tokens=40))

    assert {len(r.drafted) for r in rounds if r.k == 8} == {2}
    assert len(length.told) == lm.calls
    assert emitted(rounds) == plain(table(), 40, rule=rule)


@pytest.mark.parametrize("gap", [0.0, 0.5, 3.0, math.inf])
def test_the_confidence_of_a_choice_grows_with_the_lead_over_the_second(gap: float) -> None:
    rule = rule_for(table(), GREEDY)
    row = np.full(20, -1.0 if gap < math.inf else -math.inf, np.float32)
    row[5], row[7] = 2.0, 2.0 - gap
    before = row.copy()
    drawn = rule.draw(row, [1], 1)
    assert drawn == (5, None, pytest.approx(1 / (1 + math.exp(-gap))))
    assert np.array_equal(row, before)


def test_the_policy_is_told_what_a_round_took_before_it_is_asked_again() -> None:
    class Watching(FixedLength):
        def __init__(self) -> None:
            super().__init__(4)
            self.seen: list[Round] = []

        def observe(self, round_: Round) -> None:
            self.seen.append(round_)

    length, rule = Watching(), rule_for(table())
    rounds = list(start(table(), perfect(table(), rule), rule=rule, length=length))
    assert length.seen == rounds
    for round_ in rounds[1:-1]:
        assert (round_.k, round_.seconds > round_.draft_seconds + round_.verify_seconds > 0) == (4, True)


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("drafter", [perfect, wrong])
def test_checks_of_plain_decoding_change_no_token(
    params: SamplingParams, drafter: Callable[[FakeLM, SharedNoise], Drafter]
) -> None:
    lm = hashed()
    rule = rule_for(lm, params)
    rounds = list(start(hashed(), drafter(lm, rule), rule=rule, max_tokens=120, checks=PlainChecks()))

    assert emitted(rounds) == plain(lm, 120, rule=rule)
    assert [is_plain(round_) for round_ in rounds[:4]] == [True, True, True, False]
    assert sum(map(is_plain, rounds)) > 3


def test_a_check_is_unknown_to_the_length() -> None:
    """What chooses lengths counts its own rounds only."""

    class Counting(FixedLength):
        asked = observed = 0

        def next(self, n_tokens: int, room: int) -> int:
            self.asked += 1
            return super().next(n_tokens, room)

        def observe(self, round_: Round) -> None:
            self.observed += 1
            super().observe(round_)

    lm, length = hashed(), Counting(3)
    rounds = list(start(hashed(), perfect(lm, rule_for(lm)), length=length, max_tokens=60, checks=PlainChecks()))

    n_checks = sum(is_plain(round_) for round_ in rounds[1:-1])
    assert n_checks >= 4
    assert length.asked == length.observed - 1 == len(rounds) - 1 - n_checks
