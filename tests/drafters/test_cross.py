"""Drafts with another vocabulary: what is read and proposed, and that no token changes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.audit.chi_square import survival
from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, Round, Target
from specdec_cli.drafters.cross.drafter import Crossing, SharedTokensDrafter, TextDrafter
from specdec_cli.drafters.cross.reader import TextReader, continuation
from specdec_cli.drafters.none import NoDrafter
from tests.drafters.test_ngram import emitted
from tests.drafters.test_ngram import run as run_ngram
from tests.fakes import FakeClock, FakeLM, HashLM
from tests.two_tongues import Tongue, translation

TARGET = Tongue("the", " the", " play", " playground", "ground", " is", " red", "при", "вет", "你好", "好")
DRAFT = Tongue(" the", "the", " play", "ground", " is", " re", "d", "привет", "你", "好世", "  ")
TEXTS = {
    "English": " the playground is red",
    "Russian": "привет, привет",
    "Chinese": "你好世界你好",
    "emoji": "🦙👩‍🚀 is 🎉",
    "code": "def f(x):\n    return x\n",
}
BOS, END = 0, 1
ENDS = frozenset({END})


class Scribe(FakeLM):
    """Writes a given text in its own tokens, whatever was written before; then the end. It is as sure as `scale`."""

    def __init__(self, tongue: Tongue, prompt: str, text: str, scale: float = 12.0) -> None:
        super().__init__(len(tongue), seed=0, scale=scale)
        self._tongue, self._prompt, self._text = tongue, prompt, text.encode()

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        written = b"".join(self._tongue.pieces[token] for token in prefix)[len(self._prompt.encode()) :]
        rest = self._text[len(written) :]
        row = np.zeros(self.n_vocab)
        if not self._text.startswith(written):
            return row
        longest = next((n for n in range(self._tongue._longest, 0, -1) if rest[:n] in self._tongue._ids), 0)
        row[self._tongue._ids[rest[:longest]] if longest else END] = self.scale
        return row


def crossing(target: Tongue = TARGET, draft: Tongue = DRAFT, *, by_text: bool = True) -> Crossing:
    both = translation(target, draft)
    return Crossing(both, target, TextReader(draft, both.target_pieces, both.markers, [BOS]), by_text)


def rule(temperature: float = 0.0, n: int = len(TARGET), seed: int = 0) -> SharedNoise:
    return SharedNoise(Law(SamplingParams(temperature=temperature), n_shared=n), seed=seed)


def drafter(session: Target, ways: Crossing, law: Rule) -> TextDrafter | SharedTokensDrafter:
    way = TextDrafter if ways.by_text else SharedTokensDrafter
    return way(session, ways, law, ENDS)


# --- reading ---------------------------------------------------------------------------------------------


def reader(**options: Any) -> TextReader:
    both = translation(TARGET, DRAFT)
    return TextReader(DRAFT, both.target_pieces, both.markers, [BOS], **options)


@pytest.mark.parametrize("text", TEXTS.values())
def test_a_text_is_read_as_the_draft_cuts_it(text: str) -> None:
    """Whatever is new at a time, also where a character comes in pieces."""
    ids, one = TARGET.tokenize(text), reader()
    for n in range(1, len(ids) + 1):
        found = one.read(ids[:n])
        so_far = b"".join(map(TARGET.token_bytes, ids[:n]))
        whole = so_far.decode("utf-8", "ignore")
        assert found.tokens == (BOS, *DRAFT.tokenize(whole))
        assert found.pending == so_far[len(whole.encode()) :]


def test_a_long_text_is_settled_word_by_word() -> None:
    class Counted(Tongue):
        n_bytes = 0

        def tokenize(self, text: str, **_: Any) -> list[int]:
            Counted.n_bytes += len(text.encode())
            return super().tokenize(text)

    draft = Counted(" the", "the", " play", "ground", " is", " re", "d")
    both, text = translation(TARGET, draft), " the playground is red" * 100
    one = TextReader(draft, both.target_pieces, both.markers, [])
    ids, tokens = TARGET.tokenize(text), Tokens()
    Counted.n_bytes = 0
    for token in ids:
        tokens = tokens.grown([token])
        found = one.read(tokens)

    assert list(found.tokens) == draft.tokenize(text)
    assert Counted.n_bytes < 220 * len(ids), "only what is still open is read again"


def test_what_was_settled_stays() -> None:
    one, text = reader(), TARGET.tokenize("好" * 300)
    before: tuple[int, ...] = ()
    for n in range(1, len(text) + 1):
        found = one.read(text[:n]).tokens
        assert found[: max(len(before) - 100, 0)] == before[: max(len(before) - 100, 0)]
        before = found


def test_another_text_is_read_from_its_beginning() -> None:
    one = reader()
    one.read(TARGET.tokenize(" the playground"))

    assert one.read(TARGET.tokenize(" the red")).tokens == (BOS, *DRAFT.tokenize(" the red"))


def test_bytes_that_are_no_text_end_a_draft() -> None:
    """Models write what they like: here a beginning of a character, and then another one's."""

    class Bytes(FakeLM):
        def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
            row = np.zeros(self.n_vocab)
            row[2 + (0xD0 if len(prefix) % 2 else 0xD1)] = 9.0
            return row

    found = drafter(Bytes(len(DRAFT), 0), crossing(), rule()).propose(TARGET.tokenize("ab"), 4)

    assert found.tokens == ()


def test_markers_are_those_of_the_draft() -> None:
    assert reader().read([BOS, *TARGET.tokenize("the"), END]).tokens == (BOS, BOS, *DRAFT.tokenize("the"), END)


def test_a_prompt_is_read_as_the_drafts_own_template_writes_it() -> None:
    one, prompt, own = reader(), TARGET.tokenize("user: the"), [BOS, *DRAFT.tokenize("[the]")]
    one.tell(prompt, own)
    found = one.read([*prompt, *TARGET.tokenize(" is red")])

    assert found.tokens == (*own, *DRAFT.tokenize(" is red"))
    turn = [*prompt, *TARGET.tokenize(" is red; user: the")]
    one.tell(turn, [*own, *DRAFT.tokenize(" is red[the]")])
    assert one.read([*turn, *TARGET.tokenize(" play")]).tokens == (*own, *DRAFT.tokenize(" is red[the] play"))


class SpaceFirst(Tongue):
    """Puts a space before whatever it is given, as SentencePiece does."""

    def tokenize(self, text: str, **_: Any) -> list[int]:
        return super().tokenize(f" {text}") if text else []


@pytest.mark.parametrize("text", ["the", " the", "\n", "\nthe", "好", ""])
def test_in_the_middle_of_a_text_no_space_is_added(text: str) -> None:
    tongue = SpaceFirst(" the", "the", "好", "\n")

    assert tongue.text(continuation(tongue, text)) == text


# --- drafts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_draft_that_writes_the_same_text_is_accepted(text: str) -> None:
    """By text in every language. The last token is held back as long as it may become another one."""
    target = Scribe(TARGET, "a", text)
    rounds = run(target, drafter(Scribe(DRAFT, "a", text), crossing(), rule()), rule(), TARGET.tokenize("a"), k=8)
    plain = run(target, NoDrafter(), rule(), TARGET.tokenize("a"), k=0)

    assert emitted(rounds) == [*TARGET.tokenize(text), END]
    assert emitted(rounds) == emitted(plain)
    drafted = sum(len(round_.drafted) for round_ in rounds)
    assert sum(round_.n_accepted for round_ in rounds) >= 0.7 * drafted > 0
    assert len(rounds) < 0.7 * len(plain)


def test_by_tokens_a_word_that_only_the_target_has_is_missed() -> None:
    text, prompt = TEXTS["English"], TARGET.tokenize("a")
    drafts = {
        by_text: [
            token
            for round_ in run(
                Scribe(TARGET, "a", text),
                drafter(Scribe(DRAFT, "a", text), crossing(by_text=by_text), rule()),
                rule(),
                prompt,
                k=4,
            )
            for token in round_.drafted[: round_.n_accepted]
        ]
        for by_text in (True, False)
    }
    word = TARGET.tokenize(" playground")[0]

    assert word in drafts[True]
    assert word not in drafts[False]


def test_pieces_that_join_are_one_token_of_the_target() -> None:
    found = drafter(Scribe(DRAFT, "a", " the playground is"), crossing(), rule()).propose(TARGET.tokenize("a"), 3)

    assert found.tokens == tuple(TARGET.tokenize(" the playground is"))


def test_a_word_that_may_go_on_is_held_back() -> None:
    """ " re" is no token of the target: what comes of it is not known before the next piece."""
    told: list[float | None] = []

    def more(confidence: float | None) -> bool:
        told.append(confidence)
        return True

    found = drafter(Scribe(DRAFT, "a", " is red"), crossing(), rule()).propose(TARGET.tokenize("a"), 2, more)

    assert found.tokens == tuple(TARGET.tokenize(" is red"))
    assert len(told) == 2, "asked once for each token of the target"


def test_a_draft_ends_where_no_more_is_wanted() -> None:
    found = drafter(Scribe(DRAFT, "a", TEXTS["English"]), crossing(), rule())

    assert len(found.propose(TARGET.tokenize("a"), 8, lambda _: False).tokens) == 1


@pytest.mark.parametrize("by_text", [True, False])
def test_the_end_is_the_targets_own(by_text: bool) -> None:
    target, draft = Tongue("the", end=b"<|im_end|>"), Tongue("the", end=b"</s>")
    found = drafter(Scribe(draft, "a", "the"), crossing(target, draft, by_text=by_text), rule(n=len(target)))

    assert found.propose(target.tokenize("a"), 8).tokens == (*target.tokenize("the"), END)


def test_inside_a_character_the_draft_begins_with_the_same_bytes() -> None:
    """The target has two of a llama's four bytes already; the draft reads none of them and writes all."""
    llama = "🦙".encode()
    begun = [*TARGET.tokenize("a"), *(TARGET.tokenize("🦙")[:2])]
    right = drafter(Scribe(DRAFT, "a", "🦙 is"), crossing(), rule()).propose(begun, 4)
    wrong = drafter(Scribe(DRAFT, "a", "привет"), crossing(), rule()).propose(begun, 4)

    assert b"".join(map(TARGET.token_bytes, right.tokens)) == llama[2:] + b" is"
    assert wrong.tokens == ()


def test_by_tokens_nothing_is_drafted_inside_a_character() -> None:
    begun = [*TARGET.tokenize("a"), *(TARGET.tokenize("🦙")[:2])]

    assert drafter(Scribe(DRAFT, "a", "🦙"), crossing(by_text=False), rule()).propose(begun, 4) == Draft()


@pytest.mark.parametrize("by_text", [True, False])
def test_a_full_context_and_a_failure_end_drafting_not_the_run(by_text: bool) -> None:
    small = Scribe(DRAFT, "a", "the")
    small.n_ctx = 3
    found = drafter(small, crossing(by_text=by_text), rule()).propose(TARGET.tokenize("aaaaaaaa"), 4)
    assert "context of 3 tokens is full" in (found.off_reason or "")

    class Broken(Scribe):
        def row(self, _prefix: Sequence[int]) -> NDArray[np.float64]:
            return np.full(self.n_vocab, np.nan)

    failed = drafter(Broken(DRAFT, "a", "the"), crossing(by_text=by_text), rule())
    assert "failed" in (failed.propose(TARGET.tokenize("a"), 4).off_reason or "")
    assert "failed" in (failed.propose(TARGET.tokenize("a"), 4).off_reason or "")


# --- exactness -------------------------------------------------------------------------------------------


def run(target: Target, who: Any, law: Rule, prompt: Sequence[int], *, k: int, n: int = 40) -> list[Round]:
    length = FixedLength(k, give_up_after=10**9)
    ends: Callable[[int], bool] = ENDS.__contains__
    return list(generate(target, who, length, law, prompt, max_tokens=n, ends=ends, clock=FakeClock()))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(1, 8),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from(list(TEXTS.values())),
)
def test_token_equality(temperature: float, k: int, by_text: bool, seed: int, prompt: str) -> None:
    """Of models that know nothing of one another: every draft is wrong somewhere, and in the middle of characters."""
    target, law = HashLM(len(TARGET), seed, scale=4), rule(temperature, seed=seed)
    ids = TARGET.tokenize(prompt)
    plain = emitted(run_ngram(target, NoDrafter(), law.law.params, ids, k=0, n=16))
    who = drafter(HashLM(len(DRAFT), seed + 1, scale=4), crossing(by_text=by_text), rule(temperature))
    assert emitted(run_ngram(target, who, law.law.params, ids, k=k, n=16)) == plain


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_shared_token_is_drawn_with_the_targets_noise(temperature: float) -> None:
    """Two models of one distribution over tokens that both have choose the same, in both ways."""
    both = [i for i, _ in translation(TARGET, DRAFT).pairs][40:90]
    own = dict(translation(TARGET, DRAFT).pairs)

    class Even(FakeLM):
        def __init__(self, n: int, ids: Sequence[int]) -> None:
            super().__init__(n, 0)
            self._row = np.full(n, -30.0)
            self._row[list(ids)] = 0.0

        def row(self, _prefix: Sequence[int]) -> NDArray[np.float64]:
            return self._row

    target, draft = Even(len(TARGET), both), Even(len(DRAFT), [own[i] for i in both])
    for by_text in (True, False):
        law = rule(temperature)
        rounds = run(target, drafter(draft, crossing(by_text=by_text), law), law, TARGET.tokenize("a"), k=4, n=60)
        assert sum(r.n_accepted for r in rounds) == sum(len(r.drafted) for r in rounds) > 20


@pytest.mark.parametrize("way", [TokenRejection, BlockRejection])
def test_the_law_of_rules_that_need_q(way: type[TokenRejection] | type[BlockRejection]) -> None:
    """The second token of many answers, against the target's own distribution: p > 1e-4 of the chi-square test."""
    target_tongue, draft_tongue = Tongue("ab", "ba"), Tongue("ba", "abb")
    letters = [token for word in ("a", "b", "c", "ab", "ba") for token in target_tongue.tokenize(word)]
    own = [token for word in ("a", "b", "c", "abb", "ba") for token in draft_tongue.tokenize(word)]

    class Letters(FakeLM):
        def __init__(self, n: int, ids: Sequence[int], logits: Sequence[float]) -> None:
            super().__init__(n, 0)
            self._row = np.full(n, -80.0)
            self._row[list(ids)] = logits

        def row(self, _prefix: Sequence[int]) -> NDArray[np.float64]:
            return self._row

    logits = [0.0, 0.7, -0.5, 1.0, 0.2]
    target = Letters(len(target_tongue), letters, logits)
    draft = Letters(len(draft_tongue), own, [1.0, -0.5, 0.3, 0.9, 0.4])
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
    counts, n = dict.fromkeys(letters, 0), 1500
    ways = crossing(target_tongue, draft_tongue, by_text=False)
    for seed in range(n):
        law = way(Law(params, n_shared=len(target_tongue)), seed=seed)
        who = SharedTokensDrafter(draft, ways, law, ENDS)
        rounds = run(target, who, law, target_tongue.tokenize("a"), k=2, n=3)
        counts[emitted(rounds)[1]] += 1
    expected = n * np.exp(logits) / np.exp(logits).sum()
    statistic = float((((np.array(list(counts.values())) - expected) ** 2) / expected).sum())

    assert survival(statistic, len(letters) - 1) > 1e-4
