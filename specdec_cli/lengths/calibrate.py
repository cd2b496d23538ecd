"""A few passes before the first answer, so that the first draft already has a sensible length."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress

from specdec_cli.decode.types import Target
from specdec_cli.errors import DecodeFailed
from specdec_cli.lengths.pass_costs import PassCosts

_WIDTHS = (1, 4, 2, 8, 3, 16, 5, 6, 12, 32, 24)
"""The most telling first: kernels work in tiles of 4, 8, 16."""
_ALWAYS = 2
"""Of them: with one alone nothing is known of what a draft costs, and finding out by drafting is dearer."""
_CONTEXT = 64
_READ_TOGETHER = 32
_TIMES = 3
_STRIDE = 7919
"""A prime, so that the tokens differ: experts of a mixture would else be chosen all alike."""


def calibrated(
    target: Target, draft: Target | None, source: str, *, longest: int, clock: Callable[[], float], budget: float
) -> PassCosts:
    """Costs of passes up to longest + 1 tokens, and of a draft model's tokens, known as `source`.

    Goes on to more than two widths while less than `budget` seconds were spent; what was left out is learned while
    running.
    """
    costs = PassCosts(_passes(target, longest, clock, budget), longest=longest)
    if draft is not None:
        with suppress(DecodeFailed):  # a draft that fails ends no run: it will say so when it is asked
            costs.set_drafting(source, *_draft_costs(draft, clock))
    return costs


def _passes(target: Target, longest: int, clock: Callable[[], float], budget: float) -> dict[int, float]:
    room = target.n_ctx - longest - 1
    if room < 1:
        return {}
    tokens, context = _text(target, min(_CONTEXT, room) + longest + 1), min(_CONTEXT, room)
    target.score(tokens[:context], 1)
    began, seen = clock(), dict[int, float]()
    for width in (w for w in _WIDTHS if w <= longest + 1):
        is_late = clock() - began >= budget
        if is_late and len(seen) >= _ALWAYS:
            break
        times = 1 if is_late else _TIMES if width == 1 else 2
        seen[width] = _fastest(target, tokens[: context + width], width, clock, times)
    return seen


def _fastest(session: Target, tokens: Sequence[int], width: int, clock: Callable[[], float], times: int) -> float:
    """The least of some: whatever disturbs a pass only makes it longer."""
    seconds = []
    for _ in range(times):
        began = clock()
        session.score(tokens, width)
        seconds.append(clock() - began)
    return min(seconds)


def _draft_costs(draft: Target, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a token drafted, and of one that is only read."""
    context = min(_CONTEXT, draft.n_ctx - _READ_TOGETHER - _TIMES - 1)
    if context < 1:
        return 0.0, 0.0
    tokens = _text(draft, context + _TIMES + _READ_TOGETHER + 1)
    draft.score(tokens[:context], 1)
    steps = []
    for end in range(context + 1, context + 1 + _TIMES):
        began = clock()
        draft.score(tokens[:end], 1)
        steps.append(clock() - began)
    step = statistics.median(steps)
    began = clock()
    draft.score(tokens, 1)
    return step, max(clock() - began - step, 0.0) / _READ_TOGETHER


def _text(session: Target, n: int) -> list[int]:
    return [_STRIDE * i % session.n_vocab for i in range(1, n + 1)]
