"""Texts and machines made of numbers, on which draft lengths can be compared in milliseconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdec_cli.decode.draft_length import DraftLength
from specdec_cli.decode.types import Draft, Round

MS = 1e-3
# Milliseconds of a pass by width, as measured on two cores (AVX-512) after 64 tokens.
Q4_0 = {1: 3.9, 2: 6.8, 3: 9.2, 4: 8.5, 5: 11.8, 6: 13.7, 8: 11.8, 12: 15.3, 16: 16.4}
F32 = {1: 12.7, 2: 15.9, 3: 17.1, 4: 18.3, 5: 19.1, 6: 20.1, 8: 23.5, 12: 28.2, 16: 30.6}


def rates(by_width: Mapping[int, float]) -> dict[int, float]:
    """Times of passes from tokens per second at each width."""
    return {width: width / rate for width, rate in by_width.items()}


CURVES: Mapping[str, Mapping[int, float]] = {
    "7B Q4_0": {1: 1, 2: 1.84, 3: 2.68, 4: 2.56, 5: 3.42, 6: 4.26, 8: 4.93, 12: 7.25, 16: 7.18},
    "7B Q4_0, not reordered": {1: 1, 2: 1.33, 3: 1.60, 4: 1.84, 5: 2.89, 6: 3.06, 8: 3.18, 12: 4.53, 16: 5.86},
    "7B Q4_K": {1: 1, 2: 1.73, 3: 2.48, 4: 2.78, 5: 3.54, 6: 4.28, 8: 5.29, 12: 7.77, 16: 6.81},
    "7B Q6_K": {1: 1, 2: 1.56, 3: 1.96, 4: 2.43, 5: 2.93, 6: 3.42, 8: 6.83},
    "7B Q8_0": {1: 1, 2: 1.38, 3: 1.58, 4: 1.70, 5: 2.80, 6: 3.00, 8: 2.83, 12: 3.95, 16: 5.1},
    "7B BF16": {1: 1, 2: 1.20, 3: 1.36, 4: 1.87, 5: 2.35, 6: 2.34, 8: 2.81, 12: 3.37, 16: 3.27},
    "135M F32": F32,
    "135M F32, busy": {1: 17.6, 2: 28.1, 3: 32.5, 4: 34.4, 5: 37.0, 6: 38.3, 7: 42.9, 8: 45.7, 9: 48.0},
    "135M Q4_0": Q4_0,
    "RTX 3090, 1B F32": rates({1: 201.45, 2: 377.68, 3: 532.20, 4: 711.83, 5: 875.70, 6: 1046.83, 7: 1206.49}),
    "RTX 3090, 7B Q2_K": rates({1: 102.80, 2: 177.01, 4: 248.26, 8: 297.62}),
    "MI50, 1B Q4_0": rates({1: 331.09, 2: 617.04, 3: 536.87, 4: 658.36, 5: 842.40, 6: 714.23, 7: 804.37}),
}
"""Times of a pass by width, in any unit."""


@dataclass(frozen=True)
class Machine:
    """Seconds of passes by width (all of them), of a draft token, and of a token that the draft only reads."""

    passes: Sequence[float]
    draft_token: float
    token_behind: float

    @classmethod
    def measured(cls, passes: Mapping[int, float], draft_token: float, token_behind: float | None = None) -> "Machine":
        """From milliseconds at some widths."""
        widths = np.arange(0, max(passes) + 1)
        line = np.interp(widths, list(passes), list(passes.values())) * MS
        behind = draft_token / 4 if token_behind is None else token_behind
        return cls(tuple(line), draft_token * MS, behind * MS)

    @classmethod
    def of_curve(cls, curve: Mapping[int, float], draft_token: float, longest: int) -> "Machine":
        """A pass of one token takes a second, a draft token this share of it. Beyond the widest the curve goes on."""
        widths, seconds = list(curve), [time / curve[1] for time in curve.values()]
        slope = max((seconds[-1] - 1) / (widths[-1] - 1), 0.0)
        line = np.interp(np.arange(longest + 2), widths, seconds)
        beyond = np.maximum(np.arange(longest + 2) - widths[-1], 0)
        return cls(tuple(float(one) for one in line + slope * beyond), draft_token, draft_token / 4)


@dataclass(frozen=True)
class Text:
    """For every place: how sure the draft is, and whether it is right there."""

    confidence: np.ndarray
    is_right: np.ndarray

    def __add__(self, other: "Text") -> "Text":
        return Text(
            np.concatenate([self.confidence, other.confidence]), np.concatenate([self.is_right, other.is_right])
        )

    def __len__(self) -> int:
        return len(self.is_right)

    def right(self, at: int, _position: int) -> bool:
        """Whether the draft token for place `at` is right."""
        return bool(self.is_right[at])


@dataclass(frozen=True)
class Words:
    """A text in which it depends on a token's position in its draft whether the draft is right."""

    confidence: Sequence[float]
    chance: Sequence[float]
    draws: Sequence[float]
    falls: bool

    @classmethod
    def drawn(
        cls, confidence: np.ndarray, chance: np.ndarray, rng: np.random.Generator, *, falls: bool = False
    ) -> "Words":
        """With `falls` each position in the draft has 0.85 of the chance of the one before."""
        draws = rng.random(len(chance))
        return cls(confidence.tolist(), chance.tolist(), draws.tolist(), falls)

    def __len__(self) -> int:
        return len(self.chance)

    def right(self, at: int, position: int) -> bool:
        """Whether the draft token for place `at` is right, `position` tokens into its draft."""
        return self.draws[at] < self.chance[at] * (0.85**position if self.falls else 1.0)


def text(n: int, mean: float, spread: float, seed: int, sureness: float = 1.0) -> Text:
    """Chances are logistic(mean + spread x normal); the draft shows them through a blur, too sure by `sureness`."""
    rng = np.random.default_rng(seed)
    logits = mean + spread * rng.normal(size=n)
    right = rng.random(n) < 1 / (1 + np.exp(-logits))
    shown = logits + sureness + 0.5 * rng.normal(size=n)
    return Text(1 / (1 + np.exp(-shown)), right)


def fixed_seconds(machine: Machine, words: Words, k: int, pace: Callable[[float], float]) -> float:
    """Seconds for the whole text with drafts of `k` tokens."""
    at, read, now, n = 0, -1, 0.0, len(words)
    while at < n:
        drafted = min(k, n - at - 1)
        n_accepted = 0
        while n_accepted < drafted and words.right(at + n_accepted, n_accepted):
            n_accepted += 1
        seconds = machine.passes[drafted + 1] + drafted * machine.draft_token
        if drafted:
            seconds += max(at - read - 1, 0) * machine.token_behind
            read = at + min(n_accepted, drafted - 1)
        now += seconds * pace(now)
        at += n_accepted + 1
    return now


def decode(
    machine: Machine,
    text: Text | Words,
    length: DraftLength,
    *,
    noise: float = 0.0,
    seed: int = 0,
    pace: Callable[[float], float] = lambda _: 1.0,
) -> tuple[float, list[int]]:
    """Seconds for the whole text, and the length of every draft. `pace` slows everything at a time; `noise` each
    round by itself."""
    rng = np.random.default_rng(seed)
    at, read, now, lengths = 0, -1, 0.0, list[int]()
    length.begin(1)
    length.observe(Round((), 0, 7, seconds=1.0))
    n = len(text)
    while at < n:
        factor = pace(now) * math.exp(noise * rng.normal())
        k = length.next(at + 1, n - at - 1)
        right, draft_seconds = list[bool](), 0.0
        if k > 0:
            draft_seconds = max(at - read - 1, 0) * machine.token_behind
            while len(right) < k:
                right.append(text.right(at + len(right), len(right)))
                draft_seconds += machine.draft_token
                if not length.more(text.confidence[at + len(right) - 1]):
                    break
        drafted = len(right)
        kept = length.keep(Draft(tuple(map(int, right)))) if drafted else 0
        n_right = (*right, False).index(False)
        n_accepted = min(n_right, kept)
        if drafted:
            read = at + min(n_right, drafted - 1)
        draft_seconds *= factor
        verify_seconds = machine.passes[kept + 1] * factor
        seconds = verify_seconds + draft_seconds
        length.observe(
            Round(
                tuple(map(int, right[:kept])),
                n_accepted,
                1,
                k=k,
                draft_seconds=draft_seconds,
                verify_seconds=verify_seconds,
                seconds=seconds,
            )
        )
        now += seconds
        at += n_accepted + 1
        lengths.append(kept)
    return now, lengths


def with_hindsight(machine: Machine, text: Text, longest: int) -> float:
    """The least seconds that anybody could take who knows which draft tokens are right."""
    n = len(text)
    least = np.full(n + longest + 2, np.inf)
    least[n:] = 0.0
    for at in range(n - 1, -1, -1):
        for k in range(longest + 1):
            if k and (at + k > n - 1 or not text.is_right[at + k - 1]):
                break
            least[at] = min(least[at], machine.passes[k + 1] + k * machine.draft_token + least[at + k + 1])
    return float(least[0])
