"""The drafter over a trained head, with heads in pure numpy."""

from collections.abc import Sequence

import numpy as np
import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Draft, Drafter, Round
from specdec_cli.drafters.head import HeadDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, Interrupted
from tests.fakes import FakeClock, FakeHead, HashLM, TableLM

N = 24
PROMPT = (1, 2, 3)
GREEDY, WARM = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
UNCUT = SamplingParams(temperature=0.8, top_k=0, top_p=1, min_p=0)
PENALTIES = SamplingParams(temperature=0.8, repeat_penalty=1.3, presence_penalty=0.2, top_n_sigma=2.0)
TYPICAL = SamplingParams(temperature=0.8, typical=0.7, dry_multiplier=0.8)


def rule_for(params: SamplingParams = GREEDY, **more: object) -> SharedNoise:
    return SharedNoise(Law(params, n_shared=N, **more), seed=3)  # type: ignore[arg-type]


def run(drafter: Drafter, rule: SharedNoise, k: int, n: int = 40) -> list[Round]:
    return list(
        generate(
            HashLM(N, seed=1),
            drafter,
            FixedLength(k, give_up_after=10**9),
            rule,
            PROMPT,
            max_tokens=n,
            ends=lambda _: False,
            clock=FakeClock(),
        )
    )


def text(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


@pytest.mark.parametrize("params", [GREEDY, WARM, UNCUT, PENALTIES, TYPICAL], ids=str)
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("drafts", [None, range(0, N, 2), [5]], ids=["all", "half", "one"])
def test_the_text_is_plain_decodings(params: SamplingParams, k: int, drafts: Sequence[int] | None) -> None:
    rule = rule_for(params)
    rounds = run(HeadDrafter(FakeHead(HashLM(N, seed=1), drafts=drafts), rule, frozenset()), rule, k)

    assert text(rounds) == text(run(NoDrafter(), rule, 0))
    drafted = {token for round_ in rounds for token in round_.drafted}
    assert drafted <= set(range(N) if drafts is None else drafts)
    assert sum(r.n_accepted for r in rounds) > 0 or len(drafted) <= 1


def test_a_head_that_says_what_the_target_says_is_never_wrong() -> None:
    rule = rule_for(UNCUT)
    rounds = run(HeadDrafter(FakeHead(HashLM(N, seed=1)), rule, frozenset()), rule, 4)

    assert sum(r.n_accepted for r in rounds) == sum(len(r.drafted) for r in rounds) == 31


def test_k_and_the_heads_own_limit() -> None:
    head = FakeHead(HashLM(N, seed=1), longest=3)
    drafter = HeadDrafter(head, rule_for(), frozenset())

    assert [len(drafter.propose(PROMPT, k).tokens) for k in (1, 3, 8)] == [1, 3, 3]
    assert head.asked == [1, 3, 3]
    assert len(head.read) == len(PROMPT) + 2  # the last token needs no row after it


def test_a_draft_ends_where_no_more_is_wanted_and_at_an_end_token() -> None:
    lm = TableLM(N, seed=0)
    first = HeadDrafter(FakeHead(lm), rule_for(), frozenset()).propose(PROMPT, 6).tokens
    told: list[float | None] = []

    def two(confidence: float | None) -> bool:
        told.append(confidence)
        return len(told) < 2

    assert HeadDrafter(FakeHead(lm), rule_for(), frozenset()).propose(PROMPT, 6, two).tokens == first[:2]
    assert len(told) == 2
    assert all(c is not None and 0 <= c <= 1 for c in told)
    ends = frozenset({first[2]})
    assert HeadDrafter(FakeHead(lm), rule_for(), ends).propose(PROMPT, 6).tokens == first[:3]


def test_a_head_that_was_taught_confidence_is_believed() -> None:
    told: list[float | None] = []

    def more(confidence: float | None) -> bool:
        told.append(confidence)
        return True

    head = FakeHead(HashLM(N, seed=1), confidences=(0.9, 0.6, 0.2, 0.8))
    HeadDrafter(head, rule_for(), frozenset()).propose(PROMPT, 4, more)
    assert told == [0.9, 0.6, 0.2, 0.8]
    assert len(HeadDrafter(head, rule_for(), frozenset(), p_min=0.5).propose(PROMPT, 4).tokens) == 2


def test_p_min_looks_at_the_probability_of_a_head_without_confidence() -> None:
    lm = TableLM(N, seed=0, scale=6.0)
    counts = [
        len(HeadDrafter(FakeHead(lm), rule_for(), frozenset(), p_min=p).propose(PROMPT, 8).tokens) for p in (0, 1)
    ]
    assert counts == [8, 0]


def test_where_the_law_leaves_nothing_the_head_goes_on_next_time() -> None:
    rule = rule_for(WARM, banned=range(0, N, 2))
    drafter = HeadDrafter(FakeHead(HashLM(N, seed=1), drafts=range(0, N, 2)), rule, frozenset())

    assert drafter.propose(PROMPT, 3) == Draft()
    assert drafter.propose((*PROMPT, 4), 3) == Draft()


def test_a_row_of_no_numbers_ends_drafting_and_not_the_text() -> None:
    lm = TableLM(N, seed=0)
    lm.table[:] = np.nan
    rule = rule_for()
    drafter = HeadDrafter(FakeHead(lm), rule, frozenset())

    reason = drafter.propose(PROMPT, 3).off_reason
    assert reason is not None
    assert reason.startswith("the head failed: ")
    assert text(run(drafter, rule, 3)) == text(run(NoDrafter(), rule, 0))


@pytest.mark.parametrize("calls_left", [0, 2])
def test_a_head_that_fails_is_asked_no_more(calls_left: int) -> None:
    head = FakeHead(HashLM(N, seed=1), failure=DecodeFailed("no room"), calls_left=calls_left)
    drafter = HeadDrafter(head, rule_for(), frozenset())

    assert drafter.propose(PROMPT, 4) == Draft(off_reason="the head failed: no room")
    assert drafter.propose((*PROMPT, 5), 4).off_reason is not None
    assert len(head.asked) == 1


def test_ctrl_c_in_the_head_is_ctrl_c() -> None:
    head = FakeHead(HashLM(N, seed=1), failure=Interrupted(2))

    with pytest.raises(Interrupted):
        HeadDrafter(head, rule_for(), frozenset()).propose(PROMPT, 3)


def test_a_context_that_is_full() -> None:
    drafter = HeadDrafter(FakeHead(HashLM(N, seed=1, n_ctx=6)), rule_for(), frozenset())

    assert len(drafter.propose(PROMPT, 8).tokens) == 3
    assert "context of 6 tokens is full" in (drafter.propose((1,) * 6, 8).off_reason or "")
    assert drafter.propose(PROMPT, 1).off_reason is None


def test_a_rule_that_needs_q_gets_it() -> None:
    rule = TokenRejection(Law(WARM, n_shared=N), seed=1)
    draft = HeadDrafter(FakeHead(HashLM(N, seed=1), drafts=range(0, N, 3)), rule, frozenset()).propose(PROMPT, 4)

    assert draft.probs is not None
    assert len(draft.probs) == len(draft.tokens) == 4
    assert all(set(q.ids) <= set(range(0, N, 3)) for q in draft.probs)
