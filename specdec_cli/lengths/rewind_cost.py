"""What a rejection costs a target that only goes back to checkpoints, and whether drafting can pay all the same."""

from collections.abc import Callable
from dataclasses import dataclass

from specdec_cli.decode.types import Target
from specdec_cli.lengths.speedup_model import acceptance_that_pays, expected_tokens

CERTAIN = 0.9
"""An acceptance that hardly any draft exceeds: what does not pay with it is not worth trying."""
_MOST_DRAFTED = 3
_REPEATS = 3
_ENOUGH_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class RewindCost:
    """Seconds of a pass of one token, of one that verifies `k` drafted ones, and of such a one after a rejection, the
    way back and the accepted tokens evaluated again included."""

    k: int
    plain: float
    verify: float
    again: float

    def speedup(self, acceptance: float) -> float:
        """Over plain decoding, with a draft that costs nothing and whose every token is accepted with this chance."""
        all_kept: float = acceptance**self.k
        seconds = all_kept * self.verify + (1 - all_kept) * self.again
        return expected_tokens([acceptance] * self.k, self.k) * self.plain / seconds

    @property
    def break_even(self) -> float | None:
        """The acceptance from which on drafting pays; None if it never does."""
        return acceptance_that_pays(self.speedup)

    def __str__(self) -> str:
        pays = f"pays from acceptance {self.break_even:.2f} on" if self.break_even is not None else "never pays"
        return (
            f"{self.plain * 1e3:.1f} ms a token, {self.verify * 1e3:.1f} ms to verify {self.k}, "
            f"{self.again * 1e3:.1f} ms after a rejection: {pays}"
        )


def rewind_cost(target: Target, k: int, clock: Callable[[], float]) -> RewindCost | None:
    """Measured with drafts of `k` tokens, at most 3, half of which are accepted before a rejection. It takes about 0.3
    seconds, or one pass of each kind. None where the context has no room for that."""
    k = min(k, _MOST_DRAFTED)
    if target.n_ctx < 2 * (_REPEATS + 1) * (k + 2):
        return None
    token = target.n_vocab // 2
    text = [token]
    started = clock()
    plain: list[float] = []
    verify: list[float] = []
    again: list[float] = []

    def timed(new: int, drafted: int) -> float:
        nonlocal text
        text = [*text, *[token] * (new + drafted)]
        before = clock()
        target.score(text, 1 + drafted)
        return clock() - before

    timed(1, 0)
    while len(plain) < _REPEATS and (not plain or clock() - started < _ENOUGH_SECONDS):
        plain.append(timed(1, 0))
        verify.append(timed(1, k))
        del text[len(text) - k + k // 2 :]
        text.append(token + 1)  # the correction
        again.append(timed(0, k))
    return RewindCost(k, min(plain), min(verify), min(again))
