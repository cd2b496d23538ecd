"""Rejection rules: exact identities of their formulas, and the law of whole texts.

The identities sum over everything that can be drawn, so they hold to rounding. They cannot see a number
drawn twice, a row off by one or a drafter that lies about its q: for those there are the texts.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import (
    BlockRejection,
    TokenRejection,
    acceptance,
    at,
    block_chance,
    excess,
    next_weight,
    pick,
    residual,
)
from specdec_cli.decode.sampler_chain import Law, certain
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Distribution, Draft, Drafter, Round
from specdec_cli.drafters.model import ModelDrafter
from tests.fakes import FakeClock, TableLM

UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
GREEDY = SamplingParams(temperature=0)
Vector = NDArray[np.float64]


def sparse(dense: Vector) -> Distribution:
    ids = np.flatnonzero(dense)
    return Distribution(ids, dense[ids])


def dense(distribution: Distribution, n: int) -> Vector:
    return at(distribution, np.arange(n))


@st.composite
def distributions(draw: st.DrawFn, n: int) -> Vector:
    """Over n tokens, most of them impossible at times, or one certain."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = rng.exponential(size=n) ** draw(st.sampled_from([0.5, 1.0, 4.0]))
    weights[rng.random(n) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))] = 0.0
    weights[rng.integers(n)] += 1e-3
    return weights / weights.sum()


# --- one token ------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(distributions(n), distributions(n))))
def test_accepted_and_recovered_mass_is_the_target(pq: tuple[Vector, Vector]) -> None:
    """Sum over drafts of q * accept, and the rejection mass times the residual: p, to 1e-12."""
    p, q = pq
    n, sparse_p, sparse_q = len(p), sparse(p), sparse(q)
    accepted = np.zeros(n)
    for token in np.flatnonzero(q):
        accepted[token] = q[token] * acceptance(sparse_p, sparse_q, int(token))
    rejected = 1.0 - accepted.sum()

    total = accepted + rejected * dense(residual(sparse_p, sparse_q), n)

    assert np.abs(total - p).max() < 1e-12
    assert accepted.sum() == pytest.approx(np.minimum(p, q).sum(), abs=1e-12), "and no rule accepts more"


@settings(deadline=None)
@given(st.integers(2, 20).flatmap(distributions), st.integers(0, 19))
def test_a_certain_draft_is_accepted_with_its_own_probability(p: Vector, token: int) -> None:
    token %= len(p)
    chance = acceptance(sparse(p), certain(token), token)

    assert chance == pytest.approx(p[token], abs=1e-15)
    if p[token] < 1:
        without = np.where(np.arange(len(p)) == token, 0, p)
        assert np.abs(dense(residual(sparse(p), certain(token)), len(p)) - without / without.sum()).max() < 1e-12


def test_where_nothing_is_left_over_the_target_itself_is_the_residual() -> None:
    p = sparse(np.array([0.25, 0.75]))
    assert residual(p, p) is p


@settings(deadline=None)
@given(st.integers(1, 30).flatmap(distributions), st.floats(1e-9, 1 - 1e-9))
def test_pick_is_the_inverse_of_the_cumulated_probabilities(p: Vector, u: float) -> None:
    token = pick(sparse(p), u)

    assert p[token] > 0
    assert p[:token].sum() <= u + 1e-12
    assert u <= p[: token + 1].sum() + 1e-12


@pytest.mark.parametrize("u", [2.0**-53, 1 - 2.0**-53])
def test_pick_never_takes_what_cannot_come(u: float) -> None:
    assert pick(Distribution(np.arange(4), np.array([0.0, 0.5, 0.5, 0.0])), u) in (1, 2)


# --- blocks, by summing over every draft and every outcome --------------------------------------------------

N, K = 3, 3
Context = tuple[int, ...]


class Trees:
    """A p and a q for every text of up to K tokens over N: the draft's whole tree."""

    def __init__(self, seed: int, sharpness: float, sparsity: float, ends: frozenset[int] = frozenset()) -> None:
        self.rng = np.random.default_rng(seed)
        self.sharpness, self.sparsity, self.ends = sharpness, sparsity, ends
        contexts = [c for length in range(K + 1) for c in itertools.product(range(N), repeat=length)]
        self.p = {c: self._one() for c in contexts}
        self.q = {c: self._one() for c in contexts}

    def _one(self) -> Distribution:
        weights = np.exp(self.sharpness * self.rng.normal(size=N)) * (self.rng.random(N) >= self.sparsity)
        weights[self.rng.integers(N)] += 1e-2
        return sparse(weights / weights.sum())

    def drafts(self, context: Context = ()) -> Iterator[tuple[Context, float]]:
        """Every draft and its chance: K tokens, or fewer if one of `ends` comes."""
        if len(context) == K or (context and context[-1] in self.ends):
            yield context, 1.0
            return
        for token, chance in enumerate(dense(self.q[context], N)):
            if chance > 0:
                yield from ((draft, chance * rest) for draft, rest in self.drafts((*context, token)))

    def law(self, text: Context) -> float:
        """The target's probability of a text."""
        return math.prod(float(dense(self.p[text[:i]], N)[t]) for i, t in enumerate(text))


Outcomes = Callable[[Trees, Context], Iterator[tuple[int, Distribution, float]]]
"""For one draft: how many tokens stand, the distribution of the own token, the chance."""


def by_token(trees: Trees, draft: Context) -> Iterator[tuple[int, Distribution, float]]:
    reached = 1.0
    for i, token in enumerate(draft):
        p, q = trees.p[draft[:i]], trees.q[draft[:i]]
        chance = acceptance(p, q, token)
        yield i, residual(p, q), reached * (1 - chance)
        reached *= chance
    yield len(draft), trees.p[draft], reached


def by_block(trees: Trees, draft: Context) -> Iterator[tuple[int, Distribution, float]]:
    weights, chances = [1.0], [1.0]
    for i, token in enumerate(draft, 1):
        weights.append(next_weight(weights[-1], trees.p[draft[: i - 1]], trees.q[draft[: i - 1]], token))
        last = i == len(draft)
        chances.append(weights[i] if last else block_chance(weights[i], trees.p[draft[:i]], trees.q[draft[:i]]))
    for i in range(len(draft) + 1):
        own = trees.p[draft] if i == len(draft) else residual(trees.p[draft[:i]], trees.q[draft[:i]], weights[i])
        yield i, own, chances[i] * math.prod(1 - c for c in chances[i + 1 :])


def written(trees: Trees, outcomes: Outcomes) -> tuple[dict[Context, float], float]:
    """The law of the first K + 1 tokens when the target goes on after the round, and the mean number accepted."""
    law: dict[Context, float] = dict.fromkeys(itertools.product(range(N), repeat=K + 1), 0.0)
    mean = 0.0
    for draft, drawn in trees.drafts():
        for n, own, chance in outcomes(trees, draft):
            mean += drawn * chance * n
            for token, own_chance in enumerate(dense(own, N)):
                head = (*draft[:n], token)
                for rest in itertools.product(range(N), repeat=K + 1 - len(head)):
                    text = head + rest
                    tail = trees.law(text) / trees.law(head) if trees.law(head) > 0 else 0.0
                    law[text] += drawn * chance * own_chance * tail
    return law, mean


tree_settings = st.builds(
    Trees,
    st.integers(0, 2**32),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([frozenset(), frozenset({1})]),
)


@settings(max_examples=20, deadline=None)
@given(tree_settings)
def test_both_rules_write_by_the_law_of_the_target_and_blocks_accept_no_less(trees: Trees) -> None:
    """Also where drafts stop early at an end token, so that not all are equally long."""
    by_tokens, mean_of_tokens = written(trees, by_token)
    by_blocks, mean_of_blocks = written(trees, by_block)

    for text in by_tokens:
        assert by_tokens[text] == pytest.approx(trees.law(text), abs=1e-12)
        assert by_blocks[text] == pytest.approx(trees.law(text), abs=1e-12)
    assert mean_of_blocks >= mean_of_tokens - 1e-12


def test_blocks_accept_more_where_luck_can_be_saved() -> None:
    gains = [written(t, by_block)[1] - written(t, by_token)[1] for t in (Trees(seed, 1.0, 0.0) for seed in range(5))]
    assert min(gains) > 0.005


@settings(deadline=None)
@given(st.integers(2, 20).flatmap(lambda n: st.tuples(distributions(n), distributions(n))), st.floats(0, 1))
def test_what_a_block_owes_is_never_more_than_it_may_take(pq: tuple[Vector, Vector], weight: float) -> None:
    p, q = sparse(pq[0]), sparse(pq[1])
    assert 0 <= block_chance(weight, p, q) <= 1
    assert excess(p, q, weight).sum() <= weight + 1e-12


# --- the rules themselves ---------------------------------------------------------------------------------

RULES = (TokenRejection, BlockRejection)
Rules = type[TokenRejection] | type[BlockRejection]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_greedy_stands_exactly_while_it_is_the_likeliest(rule: Rules, right: int) -> None:
    rows = np.log(np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], np.float32))
    best = [2, 0, 1, 0]
    drafted = [token if i < right else (token + 1) % 3 for i, token in enumerate(best[:3])]
    for q in (None, tuple(certain(token) for token in drafted)):
        verdict = rule(Law(GREEDY, n_shared=3), seed=0).verify(rows, Draft(tuple(drafted), probs=q), range(5))
        assert verdict == (right, best[right])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_the_own_token_is_drawn_from_what_the_formulas_say(
    rule: Rules, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every draft and every place where it may end: the distribution of the token after it, to rounding."""
    trees = Trees(seed, 1.0, 0.0)
    by = rule(Law(UNCUT, n_shared=N), seed=seed)
    drawn_from: list[Distribution] = []
    monkeypatch.setattr(by, "_own", lambda _start, _place, own: drawn_from.append(own) or 0)
    for draft in itertools.product(range(N), repeat=K):
        rows = np.log([dense(trees.p[draft[:i]], N) for i in range(K + 1)]).astype(np.float32)
        drafted = Draft(draft, probs=tuple(trees.q[draft[:i]] for i in range(K)))
        outcomes = by_token(trees, draft) if rule is TokenRejection else by_block(trees, draft)
        for ends_at, own, chance in outcomes:
            # A number of 0 accepts whatever can be accepted, one of 1 nothing.
            accepts = {i: rule is BlockRejection or i < ends_at for i in range(ends_at + 1)}
            monkeypatch.setattr(by, "_uniform", lambda _s, place, _stream, a=accepts: 0.0 if a.get(place) else 1.0)
            n_accepted, _ = by.verify(rows, drafted, (7, 7))
            if chance > 1e-6:
                assert n_accepted == ends_at
                assert dense(drawn_from[-1], N) == pytest.approx(dense(own, N), abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_rows_behind_an_impossible_token_are_not_looked_at(rule: Rules) -> None:
    rows = np.zeros((3, 4), np.float32)
    rows[0, 2] = -np.inf
    rows[1:] = np.nan
    for seed in range(20):
        n_accepted, own = rule(Law(UNCUT, n_shared=4), seed=seed).verify(rows, Draft((2, 0)), range(5))
        assert n_accepted == 0
        assert own != 2


@pytest.mark.parametrize("rule", RULES)
def test_no_random_number_serves_twice(rule: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many rounds, whose drafts overlap in position, every (start, place, stream) is drawn at most once."""
    from specdec_cli.decode import rejection

    asked: list[tuple[int, int, int, int]] = []
    true = rejection.uniform

    def noted(seed: int, position: int, tokens: NDArray[np.intp], stream: int = 0) -> NDArray[np.float64]:
        asked.append((seed, position, int(tokens[0]), stream))
        return true(seed, position, tokens, stream)

    monkeypatch.setattr(rejection, "uniform", noted)
    rounds = write(rule, TableLM(5, 1), TableLM(5, 2), k=4, n=60, seed=9)
    assert sum(r.n_accepted < len(r.drafted) for r in rounds) > 5
    assert len(set(asked)) == len(asked) > 60
    assert len({round(float(true(s, p, np.array([t]), stream)[0]), 15) for s, p, t, stream in asked}) == len(asked)


class Lookup:
    """Proposes what it is told, without a q: like n-grams, or a draft's likeliest tokens."""

    name = "lookup"

    def __init__(self, draft: TableLM) -> None:
        self.draft = draft

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        known = list(tokens)
        for _ in range(k):
            known.append(int(self.draft.row(known).argmax()))
        return Draft(tuple(known[len(tokens) :]))


def write(
    rule: Rules,
    target: TableLM,
    draft: TableLM,
    *,
    k: int,
    n: int,
    seed: int,
    params: SamplingParams = UNCUT,
    looked_up: bool = False,
    p_min: float = 0.0,
    ends: frozenset[int] = frozenset(),
) -> list[Round]:
    by = rule(Law(params, n_shared=target.n_vocab), seed=seed)
    drafter: Drafter = Lookup(draft) if looked_up else ModelDrafter(draft, by, ends, p_min=p_min)
    return list(
        generate(
            target,
            drafter,
            FixedLength(k, give_up_after=10**9),
            by,
            [1],
            max_tokens=n,
            ends=lambda _: False,
            clock=FakeClock(),
        )
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "how",
    [{}, {"looked_up": True}, {"p_min": 0.45}, {"ends": frozenset({2})}, {"params": SamplingParams(1.3, 3, 0.9, 0.02)}],
    ids=["model", "lookup", "p-min", "ends", "cuts"],
)
def test_whole_texts_follow_the_law(rule: Rules, how: dict[str, object]) -> None:
    """2,000 texts of 4 tokens: all 4-token texts come as often as the target says, whatever cut drafts short."""
    n_vocab, length, n_texts = 4, 4, 2000
    target, draft = TableLM(n_vocab, 5, scale=1.0), TableLM(n_vocab, 6, scale=1.0)
    law = Law(how.get("params", UNCUT), n_shared=n_vocab)  # type: ignore[arg-type]
    rows = [at(law.distribution(target.table[s].astype(np.float32), [s]), np.arange(n_vocab)) for s in range(n_vocab)]
    counts: dict[Context, int] = dict.fromkeys(itertools.product(range(n_vocab), repeat=length), 0)

    for seed in range(n_texts):
        rounds = write(rule, target, draft, k=3, n=length, seed=seed, **how)  # type: ignore[arg-type]
        counts[tuple(t for r in rounds for t in r.tokens)] += 1

    expected = [n_texts * math.prod(rows[a][b] for a, b in itertools.pairwise((1, *text))) for text in counts]
    seen, wanted = np.array(list(counts.values())), np.array(expected)
    assert not seen[wanted == 0].any()
    rare = (wanted < 5) & (wanted > 0)
    seen = np.append(seen[wanted >= 5], seen[rare].sum())
    wanted = np.append(wanted[wanted >= 5], wanted[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    assert stats.chisquare(seen, wanted).pvalue > 1e-4
