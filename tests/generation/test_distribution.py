"""Through real llama.cpp, drafted text is distributed as the target says, and accepted as often as can be computed.

A planted target is a Markov chain, so every token it writes is a draw from a row of P that is written down.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection, TokenRejection, at
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Drafter, Round
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import EOS, UNK, Chain, coupled_rate, disturbed, log_chain, overlap, random_chain, write_planted

N_VOCAB = 8
"""Five words: with so few, a temperature that is 5 % off shows in 20,000 tokens."""
N_TOKENS = 20_000
PROMPT = 5
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)


MakeRule = type[SharedNoise] | type[TokenRejection] | type[BlockRejection]


class Pair:
    """Sessions of a target and a draft of known distributions P and Q."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.p = random_chain(N_VOCAB, 11, sharpness=2.0)
        self.q = disturbed(self.p, 0.7, 12)
        self.target = self._open(stack, folder / "p.gguf", self.p, 8)
        self.draft = self._open(stack, folder / "q.gguf", self.q, 1)

    def _open(self, stack: ExitStack, path: Path, chain: Chain, max_rows: int) -> LlamaSession:
        model = stack.enter_context(LlamaModel(ModelSettings(write_planted(path, chain))))
        settings = ContextSettings(n_ctx=1024, threads=1, max_rows=max_rows)
        return stack.enter_context(LlamaSession(model, settings))

    def write(
        self, drafter: str, k: int, params: SamplingParams, n_tokens: int, make_rule: MakeRule = SharedNoise
    ) -> list[list[Round]]:
        """Rounds of as many texts as give `n_tokens`, each with a seed of its own: short texts, quick passes."""
        texts = []
        for seed in range(-(-n_tokens // 1000)):
            rule = make_rule(Law(params, n_shared=N_VOCAB), seed=seed)
            drafts: Drafter = (
                NgramDrafter(least_chance=0) if drafter == "ngram" else ModelDrafter(self.draft, rule, frozenset())
            )
            length = FixedLength(k, give_up_after=10**9)
            rounds = generate(
                self.target,
                drafts,
                length,
                rule,
                [PROMPT],
                max_tokens=1000,
                ends=lambda _: False,
                clock=time.perf_counter,
            )
            texts.append(list(rounds))
        return texts


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path_factory.mktemp("chains"))


def transitions(texts: list[list[Round]]) -> NDArray[np.int64]:
    """How often each token followed each, shape [V, V]."""
    counts = np.zeros((N_VOCAB, N_VOCAB), np.int64)
    for rounds in texts:
        text = [PROMPT, *(token for r in rounds for token in r.tokens)]
        np.add.at(counts, (text[:-1], text[1:]), 1)
    return counts


def chi_square(counts: NDArray[np.int64], chain: Chain) -> float:
    """The chance of counts at least this far from the chain; rare successors of a token are taken together."""
    statistic, freedom = 0.0, 0
    for row, probabilities in zip(counts, chain, strict=True):
        expected = row.sum() * probabilities
        common = expected >= 5
        seen = np.append(row[common], row[~common].sum())
        wanted = np.append(expected[common], expected[~common].sum())
        seen, wanted = seen[wanted > 0], wanted[wanted > 0]
        statistic += ((seen - wanted) ** 2 / wanted).sum()
        freedom += max(len(wanted) - 1, 0)
    return float(stats.chi2.sf(statistic, freedom))


def tempered(chain: Chain, temperature: float) -> Chain:
    weights = chain ** (1 / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def written(pair: Pair) -> list[list[Round]]:
    return pair.write("model", 4, UNCUT, N_TOKENS)


def test_tokens_are_drawn_from_the_target(pair: Pair, written: list[list[Round]]) -> None:
    counts = transitions(written)
    assert counts.sum() == N_TOKENS
    assert counts[:, [UNK, EOS]].sum() == 0
    assert chi_square(counts, pair.p) > 1e-3
    # What the test would see: the draft's distribution coming through, a temperature that is 5 % off.
    assert chi_square(counts, pair.q) < 1e-12
    assert chi_square(counts, tempered(pair.p, 0.95)) < 1e-3


def test_accepted_tokens_alone_are_another_distribution(pair: Pair, written: list[list[Round]]) -> None:
    """Accepted tokens lean to where the draft agrees; the target's own make up for it."""
    accepted = np.zeros((N_VOCAB, N_VOCAB), np.int64)
    for rounds in written:
        before = PROMPT
        for r in rounds:
            for i, token in enumerate(r.tokens):
                accepted[before, token] += i < r.n_accepted
                before = token
    assert chi_square(accepted, pair.p) < 1e-12


def test_acceptance_is_what_two_races_with_the_same_noise_give(pair: Pair, written: list[list[Round]]) -> None:
    rates = coupled_rate(pair.p, pair.q)
    expected, variance, accepted = 0.0, 0.0, 0
    for rounds in written:
        before = PROMPT
        for r in rounds:
            # Looked at are the accepted tokens and the one that was refused, if any.
            for i, token in enumerate(r.drafted[: r.n_accepted + 1]):
                state = before if i == 0 else r.drafted[i - 1]
                expected += rates[state]
                variance += rates[state] * (1 - rates[state])
                accepted += token == r.tokens[i]
            before = r.tokens[-1]
    assert abs(accepted - expected) < 4 * variance**0.5
    # Never better than the best that any rule can do, and much better than chance.
    best = float(transitions(written).sum(axis=1) @ overlap(pair.p, pair.q)) / N_TOKENS
    looked_at = sum(min(len(r.drafted), r.n_accepted + 1) for rounds in written for r in rounds)
    assert 0.5 * best < accepted / looked_at < best


def test_a_temperature_flattens_the_distribution_and_no_drafter_changes_it(pair: Pair) -> None:
    params = SamplingParams(temperature=2.0, top_k=0, top_p=1, min_p=0)
    flat = tempered(pair.p, 2.0)
    assert chi_square(transitions(pair.write("ngram", 3, params, 5000)), flat) > 1e-3
    assert chi_square(transitions(pair.write("model", 2, params, 5000)), flat) > 1e-3


def test_cuts_renormalise_what_they_leave(pair: Pair) -> None:
    params = SamplingParams(temperature=1.0, top_k=4, top_p=1, min_p=0)
    threshold = np.sort(pair.p, axis=1)[:, [-4]]
    left = np.where(pair.p >= threshold, pair.p, 0)
    left /= left.sum(axis=1, keepdims=True)
    assert chi_square(transitions(pair.write("model", 3, params, 5000)), left) > 1e-3


# --- rules that keep the distribution but not the text ----------------------------------------------------

REJECTION: dict[str, MakeRule] = {"rejection": TokenRejection, "block": BlockRejection}
SAMPLERS = {
    "uncut": UNCUT,
    "cuts": SamplingParams(temperature=1.4, top_k=4, top_p=0.97, min_p=0.02, typical=0.98),
    # A window of one token keeps the text a chain.
    "penalties": SamplingParams(
        temperature=0.8,
        top_k=0,
        top_p=1,
        min_p=0,
        repeat_last_n=1,
        presence_penalty=0.7,
        repeat_penalty=1.3,
    ),
}


def chain_of(p: Chain, params: SamplingParams) -> Chain:
    """What the law makes of every row of P. The law itself is held against llama.cpp's samplers elsewhere."""
    law, everything = Law(params, n_shared=N_VOCAB), np.arange(N_VOCAB)
    rows = log_chain(p).astype(np.float32)
    return np.array([at(law.distribution(row, [state]), everything) for state, row in enumerate(rows)])


@pytest.mark.parametrize(("drafter", "sampler"), [*(("model", sampler) for sampler in SAMPLERS), ("ngram", "cuts")])
@pytest.mark.parametrize("rule", REJECTION)
def test_rejection_rules_draw_from_the_target(pair: Pair, rule: str, drafter: str, sampler: str) -> None:
    texts = pair.write(drafter, 4, SAMPLERS[sampler], 4000, REJECTION[rule])
    counts = transitions(texts)
    assert chi_square(counts, chain_of(pair.p, SAMPLERS[sampler])) > 1e-3
    assert chi_square(counts, chain_of(pair.q, SAMPLERS[sampler])) < 1e-9, "else this shows nothing"


def test_rejection_accepts_the_overlap_and_blocks_more(pair: Pair, written: list[list[Round]]) -> None:
    """Per draft token looked at, the chance is sum of min(p, q): the most that any rule can do one by one."""
    texts = pair.write("model", 4, UNCUT, 6000, TokenRejection)
    rates = overlap(pair.p, pair.q)
    expected, variance, accepted = 0.0, 0.0, 0
    for rounds in texts:
        before = PROMPT
        for r in rounds:
            for i in range(len(r.drafted[: r.n_accepted + 1])):
                state = before if i == 0 else r.drafted[i - 1]
                expected += rates[state]
                variance += rates[state] * (1 - rates[state])
            accepted += r.n_accepted
            before = r.tokens[-1]
    assert abs(accepted - expected) < 4 * variance**0.5

    def per_pass(texts: list[list[Round]]) -> float:
        return sum(len(r.tokens) for rounds in texts for r in rounds) / sum(map(len, texts))

    blocks = pair.write("model", 4, UNCUT, 6000, BlockRejection)
    assert per_pass(written) < per_pass(texts) < per_pass(blocks)
