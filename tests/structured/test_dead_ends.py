"""What a draft meets in a grammar (a dead end, a limit) is the draft's own affair: plain decoding's text comes."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from llguidance import LLMatcher

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.strict import Strict
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import FORCED, Draft, Drafter, Logits, More, Round, to_the_end
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NothingAllowed
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.tokenizer import TokenBytes, llguidance_tokenizer

A, B, D, END = range(4)
DEAD = 'start: ("b" | "d")* ("ac")?'
"""No token spells c, so that nothing can follow an a."""


def masks(grammar: str) -> TokenMasks:
    tokens = TokenBytes(
        [b"a", b"b", b"d", b""], frozenset({END}), lambda text: ["abd".index(c) for c in text if c in "abd"]
    )
    return TokenMasks(llguidance_tokenizer(tokens), LLMatcher.grammar_from_lark(grammar), frozenset({END}))


class Likes:
    """Always likes one token best, and the end second."""

    n_ctx, n_vocab = 64, 4

    def __init__(self, token: int) -> None:
        self._token = token

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:  # noqa: ARG002
        rows = np.zeros((n_last, 4), np.float32)
        rows[:, self._token], rows[:, END] = 5, 4
        return rows


class Says:
    """Drafts the same every time."""

    name = "ngram"

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:  # noqa: ARG002
        return Draft(self._tokens[:k], source="ngram")


def rounds(rule: SharedNoise, drafter: Drafter, k: int = 3) -> list[Round]:
    ends, length = (lambda token: token == END), FixedLength(k, give_up_after=100)
    return list(generate(Likes(B), drafter, length, rule, [1, 1], max_tokens=6, ends=ends, clock=time.perf_counter))


def rule_by(grammar: str) -> SharedNoise:
    law = Law(SamplingParams(temperature=0), n_shared=4, grammar=masks(grammar), most_forced=8)
    return SharedNoise(law, seed=1)


def written(found: Sequence[Round]) -> list[int]:
    return [token for round_ in found for token in round_.tokens]


def test_a_dead_end_that_was_asked_about_spoils_no_other_question() -> None:
    grammar = masks(DEAD)
    for dead in ([A], [B, A], [A, A]):
        with pytest.raises(NothingAllowed):
            grammar.all_allowed(Tokens(dead), 0)
        assert {B, D, END} <= set(grammar.all_allowed(Tokens(), 0).tolist())
        assert {B, D, END} <= set(grammar.all_allowed(Tokens([B, D]), 0).tolist())


@pytest.mark.parametrize("drafted", [(A,), (B, A), (A, B, B)])
def test_a_draft_into_a_dead_end_ends_no_run(drafted: tuple[int, ...]) -> None:
    plain = written(rounds(rule_by(DEAD), NoDrafter(), 0))
    assert plain == [B] * 6
    assert written(rounds(rule_by(DEAD), Says(*drafted))) == plain


def test_a_draft_model_that_runs_into_a_dead_end_stays_on() -> None:
    rule = rule_by(DEAD)
    found = rounds(rule, ModelDrafter(Likes(A), rule, frozenset({END})))
    assert written(found) == [B] * 6
    assert {r.off_reason for r in found} == {None}


def test_what_the_grammar_forces_behind_a_draft_is_not_the_drafters() -> None:
    found = rounds(rule_by('start: ("b" | "d") ("b" | "d") "aaa" ("b" | "d")*'), Says(B), k=1)
    stats = RunStats()
    for round_ in found:
        stats.add(round_)
    assert found[1].drafted == (B, A, A, A)
    assert (found[1].n_forced, found[1].n_accepted) == (3, 4)
    assert stats.drafted_by_source["grammar"] == stats.accepted_by_source["grammar"] == 3
    assert found[1].ending_after(2).n_forced == 1


def test_a_draft_goes_on_behind_what_the_grammar_forces() -> None:
    class SaysAfter(Says):
        needs_only_text = True

    rule = rule_by('start: "aa" ("b" | "d") ("b" | "d") "aa" ("b" | "d")*')
    found = rounds(rule, SaysAfter(B), k=1)
    stats = RunStats()
    for round_ in found:
        stats.add(round_)
    assert found[0].tokens == (A,)
    assert found[1].drafted == (A, B)
    assert (found[1].n_forced_first, found[1].n_drafted_by_source, found[1].k) == (1, 1, 2)
    assert found[1].tokens == (A, B, B)
    assert stats.drafted_by_source["ngram"] == stats.accepted_by_source["ngram"]
    assert (found[1].ending_after(1).n_forced_first, found[1].ending_after(1).n_drafted_by_source) == (1, 0)
    assert written(found) == written(rounds(rule, NoDrafter(), 0))
    assert not any(r.n_forced_first for r in rounds(rule, Says(B), k=1)), "it may need more than the text"


def test_a_wrong_draft_behind_forced_tokens_counts_as_wrong() -> None:
    class SaysAfter(Says):
        needs_only_text = True

    rule = rule_by('start: ("b" | "d") ("a" ("b" | "d")){5}')
    length = FixedLength(1, give_up_after=2)
    found = list(
        generate(
            Likes(B),
            SaysAfter(D),
            length,
            rule,
            [1, 1],
            max_tokens=12,
            ends=lambda token: token == END,
            clock=time.perf_counter,
        )
    )
    assert length.off_reason is not None
    wrong = [r for r in found if r.n_forced_first]
    assert wrong
    assert {r.n_accepted_by_source for r in wrong} == {0}


def test_a_draft_model_is_not_asked_for_what_is_forced() -> None:
    asked: list[int] = []

    class Counts(Likes):
        def score(self, tokens: Sequence[int], n_last: int) -> Logits:
            asked.append(len(tokens))
            return super().score(tokens, n_last)

    rule = rule_by('start: ("b" | "d") "aa" ("b" | "d") "a"')
    rule.law.begin(Tokens([1, 1]))
    draft = ModelDrafter(Counts(B), rule, frozenset({END})).propose(Tokens([1, 1]), 5)
    assert draft.tokens == (B, A, A, B, A)
    assert asked == [2, 5]


def test_a_question_costs_what_is_new_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = Tokens.__getitem__

    def told(tokens: Tokens, at: slice) -> list[int]:
        found = plain(tokens, at)
        read.append(len(found))
        return found

    grammar = masks('start: "b"*')
    text = Tokens([A, *(B for _ in range(500))])
    grammar.all_allowed(text, 1)
    monkeypatch.setattr(Tokens, "__getitem__", told)
    monkeypatch.setattr(Tokens, "__iter__", None)
    for _ in range(5):
        text = text.grown((B,))
        assert set(grammar.all_allowed(text, 1).tolist()) == {B, END}
    assert sum(read) < 50


@pytest.mark.parametrize("length", [1, 2])
def test_a_round_that_strict_cut_asked_for_no_more_than_it_has(length: int) -> None:
    """Also after drafting was switched off."""
    rule = rule_by('start: "b" ("b" | "d") "aaaaaaaa"')
    strict = Strict(rule)
    strict.longest_draft = lambda _target, _tokens, k: min(k, length)  # type: ignore[method-assign]
    off = Draft(off_reason="off")

    class Off(Says):
        def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:  # noqa: ARG002
            return off

    found = list(
        generate(
            Likes(B),
            Off(),
            FixedLength(1, give_up_after=100),
            rule,
            [1, 1],
            max_tokens=10,
            ends=lambda token: token == END,
            clock=time.perf_counter,
            strict=strict,
        )
    )
    forced = [r for r in found if r.source == FORCED and r.off_reason]
    assert forced
    assert all(r.k == len(r.drafted) <= length for r in forced)
