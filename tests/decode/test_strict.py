"""Drafts are kept to widths without noise, or near ties decided alone: on models that are wrong in wide passes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.strict import Strict, noise_by_width, width_noise
from specdec_cli.decode.types import Draft, Drafter, Logits, Round
from specdec_cli.drafters.none import NoDrafter
from tests.fakes import FakeClock, HashLM, PerfectDrafter

GREEDY = SamplingParams(temperature=0)
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
CUT = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05)
NOISE = 0.4


class WidthLM(HashLM):
    """Logits move by up to NOISE in a pass of more than one token, otherwise for every width."""

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        rows = super().score(tokens, n_last)
        if n_last > 1:
            for i, row in enumerate(rows):
                rng = np.random.default_rng(hash((n_last, *tokens[: len(tokens) - n_last + i + 1])) % 2**64)
                row += rng.choice([-NOISE, NOISE], size=len(row)).astype(np.float32)
        return rows


class Oracle:
    """Proposes the plain text, wrong at every fifth place."""

    name = "oracle"

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        places = range(len(tokens), min(len(tokens) + k, len(self.text)))
        return Draft(tuple((self.text[i] + (i % 5 == 0)) % 50 for i in places))


def write(
    lm: HashLM,
    params: SamplingParams,
    drafter: Drafter,
    *,
    seed: int,
    n: int,
    is_strict: bool,
    prompt: Sequence[int] = (1, 2, 3),
) -> tuple[list[int], Strict, list[Round]]:
    rule = SharedNoise(Law(params, n_shared=50), seed=seed)
    strict = Strict(rule)
    rounds: list[Round] = list(
        generate(
            lm,
            drafter,
            FixedLength(4),
            rule,
            prompt,
            max_tokens=n,
            ends=lambda _: False,
            clock=FakeClock(),
            strict=strict if is_strict else None,
        )
    )
    return [*prompt, *(t for r in rounds for t in r.tokens)], strict, rounds


@pytest.mark.parametrize("params", [GREEDY, UNCUT, CUT], ids=str)
def test_the_text_is_that_of_plain_decoding(params: SamplingParams) -> None:
    parted = 0
    for seed in range(12):
        plain, _, _ = write(WidthLM(50, seed), params, NoDrafter(), seed=seed, n=40, is_strict=False)
        loose, _, _ = write(WidthLM(50, seed), params, Oracle(plain), seed=seed, n=40, is_strict=False)
        kept, strict, _ = write(WidthLM(50, seed), params, Oracle(plain), seed=seed, n=40, is_strict=True)
        parted += loose != plain
        assert kept == plain
        assert strict.noise == pytest.approx(NOISE, rel=1e-4)
        assert strict.n_settled > 0
    assert parted > 6, "else this shows nothing"


def test_without_noise_nothing_is_settled() -> None:
    plain, _, _ = write(HashLM(50, 1), UNCUT, NoDrafter(), seed=1, n=60, is_strict=False)
    kept, strict, _ = write(HashLM(50, 1), UNCUT, Oracle(plain), seed=1, n=60, is_strict=True)
    assert (kept, strict.noise, strict.n_settled) == (plain, 0.0, 0)


class QuietLM(WidthLM):
    """Right up to passes of three tokens, as a kernel that works in tiles of four."""

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        return HashLM.score(self, tokens, n_last) if n_last < 4 else super().score(tokens, n_last)


@pytest.mark.parametrize("params", [GREEDY, UNCUT, CUT], ids=str)
@pytest.mark.parametrize("n_prompt", [1, 2, 3, 40])
def test_drafts_are_kept_to_the_widths_without_noise(n_prompt: int, params: SamplingParams) -> None:
    for seed in range(4):
        prompt = list(range(n_prompt))
        plain, _, _ = write(QuietLM(50, seed), params, NoDrafter(), seed=seed, n=40, is_strict=False, prompt=prompt)
        lm = QuietLM(50, seed)
        kept, strict, rounds = write(lm, params, Oracle(plain), seed=seed, n=40, is_strict=True, prompt=prompt)
        assert kept == plain
        assert (strict.longest, strict.noise, strict.n_settled) == (2, 0.0, 0)
        assert max(len(r.drafted) for r in rounds) == 2


def test_without_room_to_measure_nothing_is_drafted() -> None:
    def lm() -> WidthLM:
        return WidthLM(50, 2, n_ctx=18)

    plain, _, _ = write(lm(), GREEDY, NoDrafter(), seed=2, n=15, is_strict=False)
    kept, strict, rounds = write(lm(), GREEDY, Oracle(plain), seed=2, n=15, is_strict=True)
    assert (kept, strict.longest) == (plain, 0)
    assert not any(r.drafted for r in rounds)


def test_the_noise_is_measured_again_as_the_text_grows() -> None:
    """Kernels change with the size of the cache: here the noise begins at 257 tokens."""

    class Late(WidthLM):
        def score(self, tokens: Sequence[int], n_last: int) -> Logits:
            return super().score(tokens, n_last) if len(tokens) > 256 else HashLM.score(self, tokens, n_last)

    rule = SharedNoise(Law(UNCUT, n_shared=50), seed=3)
    drafter = PerfectDrafter(Late(50, 3), rule.choose)
    text, early, _ = write(Late(50, 3), UNCUT, drafter, seed=3, n=240, is_strict=True)
    _, late, _ = write(Late(50, 3), UNCUT, drafter, seed=3, n=280, is_strict=True)

    assert (len(text), early.longest, early.noise, early.n_settled) == (243, 4, 0.0, 0)
    assert (late.longest, late.noise) == (None, pytest.approx(NOISE, rel=1e-4))
    assert late.n_settled > 0


def row_of(*logits: float) -> NDArray[np.float32]:
    return np.array(logits, np.float32)


@pytest.mark.parametrize(
    ("row", "params", "turns"),
    [
        (row_of(0, 3.0, 2.3), GREEDY, True),
        (row_of(0, 3.0, 2.1), GREEDY, False),
        (row_of(-np.inf, 3.0, -np.inf), GREEDY, False),
        # Cut off by top-k 1, but within reach of the place.
        (row_of(0, 3.0, 2.3), SamplingParams(temperature=1.0, top_k=1, top_p=1, min_p=0), True),
        (row_of(0, 3.0, 2.1), SamplingParams(temperature=1.0, top_k=1, top_p=1, min_p=0), False),
    ],
)
def test_what_could_turn(row: NDArray[np.float32], params: SamplingParams, turns: bool) -> None:
    assert SharedNoise(Law(params, n_shared=3), seed=0).could_turn(row, [5], NOISE) is turns


@pytest.mark.parametrize("noise", [0.1, NOISE])
def test_bias_and_penalties_count_once_in_what_could_turn(noise: float) -> None:
    rng, prefix = np.random.default_rng(6), [1, 2, 3, 1]
    bent = Law(replace(CUT, repeat_penalty=1.5, presence_penalty=1.0), n_shared=20, bias={0: 6.0, 7: -3.0})
    answers = []
    for seed in range(200):
        row = rng.normal(size=20).astype(np.float32) * 2
        answers.append(SharedNoise(bent, seed=seed).could_turn(row, prefix, noise))
        straight = SharedNoise(Law(CUT, n_shared=20), seed=seed)
        assert answers[-1] is straight.could_turn(bent.adjusted(row, prefix), prefix, noise)
    assert any(answers)


@pytest.mark.parametrize("params", [GREEDY, UNCUT], ids=str)
def test_what_cannot_turn_does_not(params: SamplingParams) -> None:
    rng = np.random.default_rng(5)
    rule = SharedNoise(Law(params, n_shared=20), seed=5)
    n_safe = 0
    for position in range(300):
        row, prefix = rng.normal(size=20).astype(np.float32) * 2, range(position)
        if not rule.could_turn(row, prefix, 0.2):
            n_safe += 1
            for _ in range(20):
                moved = row + rng.choice([-0.2, 0.2], size=20).astype(np.float32)
                assert rule.choose(moved, prefix) == rule.choose(row, prefix)
    assert n_safe > 50


def test_width_noise_is_the_largest_difference() -> None:
    assert width_noise(WidthLM(50, 1), list(range(30)), 10, [2, 3]) == pytest.approx(NOISE, rel=1e-4)
    assert width_noise(HashLM(50, 1), list(range(30)), 10, [2, 3]) == 0
    by_width = noise_by_width(QuietLM(50, 1), list(range(30)), 10, range(2, 6))
    assert [width for width, noise in by_width.items() if noise == 0] == [2, 3]
