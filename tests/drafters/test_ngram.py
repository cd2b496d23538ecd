"""Copying from the text: what is proposed, how sure it is, what it costs, and that it changes no token."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Draft, Drafter, Round, Target
from specdec_cli.drafters.ngram.drafter import STORE, TEXT, NgramDrafter
from specdec_cli.drafters.ngram.odds import LENGTHS, CopyOdds
from specdec_cli.drafters.ngram.store import NgramStore
from specdec_cli.drafters.none import NoDrafter
from tests.drafters.test_suffix_index import longest_match
from tests.fakes import FakeClock, FakeLM, HashLM, TableLM

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.8)


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def words(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def run(
    target: Target, drafter: Drafter, params: SamplingParams, prompt: Sequence[int], *, k: int, n: int
) -> list[Round]:
    rule = SharedNoise(Law(params, n_shared=target.n_vocab), seed=0)
    length = FixedLength(k, give_up_after=10**9)
    return list(generate(target, drafter, length, rule, prompt, max_tokens=n, ends=lambda _: False, clock=FakeClock()))


def emitted(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


class ChainLM(FakeLM):
    """The next token depends on the last two alone: a text that falls into loops, and out of them at temperature."""

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        rng = np.random.default_rng((self.seed, *prefix[-2:]))
        return rng.normal(size=self.n_vocab) * self.scale


class CopyLM(FakeLM):
    """Repeats what stood `period` tokens before: a task for which looking back is made."""

    def __init__(self, period: int, n_vocab: int = 50) -> None:
        super().__init__(n_vocab, seed=0)
        self.period = period

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        return np.where(np.arange(self.n_vocab) == prefix[-self.period], 9.0, 0.0)


# --- what is proposed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ("", 4, ""),
        ("a", 4, ""),
        ("abcd", 4, ""),
        ("abcdabc", 4, "dabc"),
        ("abcdabc", 2, "da"),
        ("abcdabc", 1, "d"),
        # The longest match wins over a more recent one, and of the longest ones the most recent.
        ("abcd.bce.abc", 1, "d"),
        ("abcdabceabc", 1, "e"),
        ("abceabcdabc", 1, "d"),
        # Past the end of the text a loop goes on repeating itself.
        ("aaaa", 4, "aaaa"),
        ("aaaaaaaa", 4, "aaaa"),
        ("abababab", 5, "ababa"),
        # A passage at the very beginning counts, and the end is not its own match.
        ("abcabc", 8, "abcabcab"),
        ("zzzabc", 9, ""),
    ],
)
def test_ngram_by_hand(text: str, k: int, expected: str) -> None:
    draft = NgramDrafter(least_chance=0).propose(ids(text), k)

    assert words(draft.tokens) == expected
    assert draft.off_reason is None


def copied(tokens: Sequence[int], k: int) -> tuple[int, ...]:
    length, place = longest_match(tokens)
    longer = list(tokens)
    for i in range(k if length else 0):
        longer.append(longer[place + i])
    return tuple(longer[len(tokens) :])


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=20), st.integers(1, 6), st.integers(0, 20)
)
def test_the_draft_is_what_a_search_of_the_whole_text_would_find(rounds: list[list[int]], k: int, n_first: int) -> None:
    """Texts grow by rounds; now and then one is cut back, as when a chat turn is encoded anew."""
    drafter, tokens = NgramDrafter(least_chance=0), [0] * n_first
    for i, round_ in enumerate(rounds):
        is_cut = i % 7 == 6
        tokens = [*tokens[: len(tokens) // 2], *round_][: len(tokens) - 1] if is_cut else [*tokens, *round_]
        assert drafter.propose(tokens, k).tokens == copied(tokens, k)


@pytest.mark.parametrize("other", ["xyz12345", "abcX", "abc", "abcdabc", "stuvwxyzstuvwxyzabcabcabc"])
def test_another_text_is_read_from_its_beginning(other: str) -> None:
    """What another conversation said must not be proposed in this one."""
    drafter = NgramDrafter(least_chance=0)
    drafter.propose(ids("abcdefgabcdefgabc"), 4)
    before = drafter.n_indexed

    assert drafter.propose(ids(other), 4).tokens == copied(ids(other), 4)
    assert drafter.n_indexed - before == len(other)


# --- what it costs ---------------------------------------------------------------------------------------


class Counted(list[int]):
    """Counts the tokens that are read."""

    n_read = 0

    def __getitem__(self, at: int | slice) -> int | list[int]:
        found = super().__getitem__(at)
        self.n_read += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole text was read")


def test_a_round_reads_and_indexes_only_what_is_new() -> None:
    tokens = Counted((np.random.default_rng(0).zipf(1.3, size=33_000) % 5000).tolist())
    drafter = NgramDrafter()
    reads = {}
    for n in (1000, 8000, 32_000):
        text = Counted(tokens[:n])
        drafter.propose(text, 4)
        for token in range(200):
            text.append(token)
        indexed, text.n_read = drafter.n_indexed, 0
        for _ in range(100):
            text += [1, 2, 3]
            drafter.propose(text, 4)
        reads[n] = text.n_read
        assert drafter.n_indexed - indexed == 200 + 300

    assert reads[32_000] < 1.4 * reads[1000], reads
    assert reads[32_000] < 100 * (3 + 17) + 200


# --- how sure it is --------------------------------------------------------------------------------------


def test_chances_rise_with_length_and_agreement() -> None:
    odds = CopyOdds()
    for length in (1, 3, 8):
        assert odds.chance(length, "differ") < odds.chance(length, "once") < odds.chance(length, "agree")
    once = [odds.chance(length, "once") for length in (*LENGTHS, 1000)]
    assert once == sorted(once)
    assert 0 < once[0] < 0.5 < once[2] < once[-1] < 1


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_chances_are_learnt_and_forgotten(share: float) -> None:
    odds, rng = CopyOdds(), np.random.default_rng(0)
    for right in (share, 1 - share):
        for _ in range(300):
            odds.observe(3, "once", bool(rng.random() < right))
        assert odds.chance(3, "once") == pytest.approx(right, abs=0.12)
    assert odds.chance(10, "once") == CopyOdds().chance(10, "once"), "other lengths are another matter"


def test_what_is_said_of_a_token_is_how_often_it_is_right() -> None:
    """In a text with random turns: the expected calibration error (Guo et al., 2017) is small."""
    rng = np.random.default_rng(5)
    phrases = [rng.integers(0, 200, size=int(rng.integers(3, 20))).tolist() for _ in range(12)]
    text = [token for i in rng.integers(0, 12, size=900) for token in phrases[i]]
    drafter, found = NgramDrafter(least_chance=0), list[tuple[float, bool]]()
    n = 40
    while n < len(text) - 9:
        said: list[float] = []
        draft = drafter.propose(text[:n], 8, lambda chance, said=said: said.append(chance) or True).tokens
        n_right = 0
        for token, chance in zip(draft, said, strict=True):
            found.append((chance, token == text[n + n_right]))
            if not found[-1][1]:
                break
            n_right += 1
        n += n_right + 1
    chances, right = np.array(found[500:]).T
    groups = np.digitize(chances, [0.2, 0.4, 0.6, 0.8, 0.9])
    gaps = [(groups == g).mean() * abs(right[groups == g].mean() - chances[groups == g].mean()) for g in set(groups)]
    assert len(gaps) >= 4
    assert sum(gaps) < 0.05
    assert len(found) > 2000


def test_short_matches_are_followed_only_while_they_are_worth_it() -> None:
    """A text in which one token that agrees means nothing, and one in which it means all."""
    drafter = NgramDrafter()
    rng = np.random.default_rng(0)
    text = [1000]
    for _ in range(300):
        text += [int(rng.integers(0, 4)), 100 + len(text)]
        drafter.propose(text, 4)
    text.append(2)
    assert drafter.propose(text, 4).tokens == (), "what follows it is a new token each time"

    drafter, text = NgramDrafter(), list(range(40))
    for token in (30, 7, 19, 25, 3, 14, 33, 10, 22, 1, 36, 17, 28, 5, 12):
        text += [token, token + 1]
        drafter.propose(text[:-1], 4)
    text.append(38)
    assert drafter.propose(text, 1).tokens == (39,)


def test_drafting_ends_where_no_more_are_wanted() -> None:
    asked: list[float | None] = []
    draft = NgramDrafter(least_chance=0).propose(ids("abcdefabc"), 8, lambda c: asked.append(c) or len(asked) < 2)

    assert words(draft.tokens) == "de"
    assert len(asked) == 2
    assert all(chance is not None and 0 < chance < 1 for chance in asked)


def test_a_draft_is_left_where_it_is_no_longer_likely() -> None:
    text = ids("abcdefghijklmnop.abcd")
    whole = NgramDrafter(least_chance=0).propose(text, 12).tokens
    lengths = [len(NgramDrafter(least_chance=least).propose(text, 12).tokens) for least in (0, 0.2, 0.5, 0.7, 0.9)]

    assert words(whole) == "efghijklmnop"
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 12
    assert 0 < lengths[2] < 12
    assert lengths[-1] == 0


# --- the text stays the same -----------------------------------------------------------------------------


def test_ngram_copies_several_tokens_per_pass() -> None:
    prompt = np.random.default_rng(1).permutation(50).tolist()
    rounds = run(CopyLM(period=50), NgramDrafter(), GREEDY, [*prompt, *prompt[:5]], k=4, n=101)

    assert len(rounds) == 1 + 100 / 5
    assert all(r.n_accepted == len(r.drafted) == 4 and r.source == TEXT for r in rounds[1:])


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=str)
def test_text_is_plain_decodings_in_every_turn_of_a_chat(params: SamplingParams) -> None:
    """One drafter through a chat: turns that go on, one that is taken back, and a new conversation."""
    lm = {"chain": lambda: ChainLM(40, seed=2, scale=3.0), "table": lambda: TableLM(30, seed=1, scale=3.0)}
    store = NgramStore([emitted(run(TableLM(30, seed=1, scale=3.0), NoDrafter(), params, [5, 6], k=0, n=60))])
    for make in lm.values():
        for k in range(1, 9):
            drafter = NgramDrafter(store=store)
            prompt, drafted = [1, 2, 3], 0
            for turn in range(5):
                rounds = run(make(), drafter, params, prompt, k=k, n=40)
                assert emitted(rounds) == emitted(run(make(), NoDrafter(), params, prompt, k=0, n=40))
                drafted += sum(r.n_accepted for r in rounds)
                kept = {1: prompt[: len(prompt) // 2], 3: [9, 8]}.get(turn, [*prompt, *emitted(rounds)])
                prompt = [*kept, 4, turn]
            assert drafted > 0


def test_nothing_is_proposed_where_nothing_repeats() -> None:
    rounds = run(HashLM(5000, seed=0), NgramDrafter(), SamplingParams(temperature=1.0), [1, 2, 3], k=4, n=200)

    assert sum(len(r.drafted) for r in rounds) < 20


# --- earlier texts ---------------------------------------------------------------------------------------


def test_the_store_is_copied_where_its_match_is_better_than_the_texts() -> None:
    store = NgramStore([ids("the black cat sat on the mat")])
    drafter = NgramDrafter(store=store)
    draft = drafter.propose(ids("one black cat sat"), 3)
    assert (words(draft.tokens), draft.source) == (" on", STORE)

    draft = drafter.propose(ids("the black cat sat up. The black cat sat"), 3)
    assert (words(draft.tokens), draft.source) == (" up", TEXT)
    assert drafter.propose(ids("nothing"), 3) == Draft()


def test_a_store_that_is_wrong_is_left() -> None:
    """The same beginning, other ends: after some wrong drafts the store is no longer believed."""
    key = ids("a key of many tokens:")
    drafter, text, proposed = NgramDrafter(store=NgramStore([[*key, 1, 2]])), list[int](), list[bool]()
    for i in range(40):
        text += [1000 + i, *key]
        proposed.append(drafter.propose(text, 40).source == STORE)
        text.append(2000 + i)
        drafter.propose(text, 40)
    assert proposed[0]
    assert not proposed[-1]
