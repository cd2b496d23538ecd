"""Acceptance along an answer: does drafting get better or worse as the text grows? Pure arithmetic."""

from collections.abc import Sequence

from specdec_cli.decode.types import Round

WINDOW = 16
"""Rounds of each answer that a point of the running acceptance looks at."""
N_QUARTERS = 4
_MOST_POINTS = 48

Tried = tuple[int, int, int]
"""A round with a draft: tokens of the answer before it, drafted, accepted."""


def running_acceptance(answers: Sequence[Sequence[Round]]) -> list[tuple[float, float]]:
    """Tokens before a round, and accepted / drafted of `WINDOW` rounds of each answer around it, all answers together.

    Half of the rounds, where there are fewer than two windows of them; no point where nothing was drafted.
    """
    tried = sorted(one for rounds in answers for one in _tried(rounds))
    width = min(WINDOW * len(answers), (len(tried) + 1) // 2)
    if not tried:
        return []
    last = len(tried) - width
    n = min(last, _MOST_POINTS - 1)
    starts = [round(i * last / n) for i in range(n + 1)] if n else [0]
    return [_point(tried[start : start + width]) for start in starts]


def acceptance_by_quarter(answers: Sequence[Sequence[Round]]) -> list[float | None]:
    """Accepted / drafted in each quarter of the answers, by tokens; None where nothing was drafted."""
    quarters: list[list[Tried]] = [[] for _ in range(N_QUARTERS)]
    for rounds in answers:
        n_tokens = sum(len(round_.tokens) for round_ in rounds)
        for one in _tried(rounds):
            quarters[N_QUARTERS * one[0] // n_tokens].append(one)
    return [_point(tried)[1] if tried else None for tried in quarters]


def _tried(rounds: Sequence[Round]) -> list[Tried]:
    found, before = [], 0
    for round_ in rounds:
        if round_.drafted:
            found.append((before, len(round_.drafted), round_.n_accepted))
        before += len(round_.tokens)
    return found


def _point(tried: Sequence[Tried]) -> tuple[float, float]:
    positions, drafted, accepted = (sum(column) for column in zip(*tried, strict=True))
    return positions / len(tried), accepted / drafted
