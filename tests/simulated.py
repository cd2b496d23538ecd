"""Texts and machines made of numbers, on which draft lengths can be compared in milliseconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdec_cli.decode.draft_length import DraftLength
from specdec_cli.decode.types import Draft, Round

MS = 1e-3
# Milliseconds of a pass by width, as measured on two cores (AVX-512) after 64 tokens.
Q4_0 = {1: 3.9, 2: 6.8, 3: 9.2, 4: 8.5, 5: 11.8, 6: 13.7, 8: 11.8, 12: 15.3, 16: 16.4}
F32 = {1: 12.7, 2: 15.9, 3: 17.1, 4: 18.3, 5: 19.1, 6: 20.1, 8: 23.5, 12: 28.2, 16: 30.6}


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


def text(n: int, mean: float, spread: float, seed: int, sureness: float = 1.0) -> Text:
    """Chances are logistic(mean + spread x normal); the draft shows them through a blur, too sure by `sureness`."""
    rng = np.random.default_rng(seed)
    logits = mean + spread * rng.normal(size=n)
    right = rng.random(n) < 1 / (1 + np.exp(-logits))
    shown = logits + sureness + 0.5 * rng.normal(size=n)
    return Text(1 / (1 + np.exp(-shown)), right)


def decode(
    machine: Machine,
    text: Text,
    length: DraftLength,
    *,
    noise: float = 0.0,
    seed: int = 0,
    pace: Callable[[float], float] = lambda _: 1.0,
) -> tuple[float, list[int]]:
    """Seconds for the whole text, and the length of every draft. `pace` slows everything at a time."""
    rng = np.random.default_rng(seed)
    at, read, now, lengths = 0, -1, 0.0, []
    length.begin(1)
    length.observe(Round((), 0, 7, seconds=1.0))
    while at < len(text):
        factor = pace(now) * float(np.exp(noise * rng.normal()))
        k = length.next(at + 1, len(text) - at - 1)
        drafted, draft_seconds = 0, 0.0
        if k > 0:
            draft_seconds = max(at - read - 1, 0) * machine.token_behind
            while drafted < k:
                drafted += 1
                draft_seconds += machine.draft_token
                if not length.more(float(text.confidence[at + drafted - 1])):
                    break
        draft = Draft(tuple(int(ok) for ok in text.is_right[at : at + drafted]))
        kept = length.keep(draft) if drafted else 0
        wrong = np.flatnonzero(~text.is_right[at : at + kept])
        n_accepted = int(wrong[0]) if len(wrong) else kept
        if drafted:
            right = np.flatnonzero(~text.is_right[at : at + drafted])
            read = at + min(int(right[0]) if len(right) else drafted, drafted - 1)
        draft_seconds *= factor
        seconds = machine.passes[kept + 1] * factor + draft_seconds
        length.observe(
            Round(
                draft.tokens[:kept],
                n_accepted,
                1,
                k=k,
                draft_seconds=draft_seconds,
                verify_seconds=seconds - draft_seconds,
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
