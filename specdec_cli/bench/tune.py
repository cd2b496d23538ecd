"""Finds the fastest KV cache types for a pair, and whether reordered weights pay: each candidate runs alternately with
the current best.

A draft only proposes, so its cache may be of any type. The target's cache type, flash attention and kernels change its
numbers, and with them plain decoding's own text, sooner or later. So a candidate for the target is taken only if its
text was the same in every answer that was tried, and its caches are tried only for whoever asks for them.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from specdec_cli.bench.measure import Bench, Setting, Task
from specdec_cli.errors import SpecdecError
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair, reopened
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.settings import CACHE_TYPE_BYTES, ContextSettings, FlashAttention

CACHES = ("f16", "bf16", "q8_0")
"""Types worth trying; coarser ones cost a draft its acceptance, and a target its text."""
_WARM_UP = 8
"""Tokens that are written and forgotten first."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How both contexts keep what they have read, and the target its weights. None: as they are."""

    cache_type: str | None = None
    cache_type_draft: str | None = None
    flash_attention: FlashAttention | None = None
    repack: bool | None = None

    def __str__(self) -> str:
        weights = {None: None, True: "reordered", False: "as in the file"}[self.repack]
        named = (
            ("cache", self.cache_type),
            ("draft's cache", self.cache_type_draft),
            ("flash attention", self.flash_attention),
            ("weights", weights),
        )
        return ", ".join(f"{name} {value}" for name, value in named if value)

    def over(self, other: "Memory") -> "Memory":
        """This, and what it leaves open as `other` has it."""
        return Memory(
            self.cache_type or other.cache_type,
            self.cache_type_draft or other.cache_type_draft,
            self.flash_attention or other.flash_attention,
            other.repack if self.repack is None else self.repack,
        )

    @property
    def touches_target(self) -> bool:
        return bool(self.cache_type or self.flash_attention or self.repack is not None)


@dataclass
class Trial:
    """One candidate. `ratios` are its speeds over those beside it; `refused` says why it cannot be taken."""

    memory: Memory
    ratios: list[float] = field(default_factory=list)
    refused: str | None = None

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.memory}: {self.refused or f'{self.ratio:.2f} times as fast'}"


def draft_candidates(pair: Pair) -> list[Memory]:
    """Other types of the draft's cache; none without a draft model of its own."""
    if not isinstance(pair.draft, OpenModel):
        return []
    return [Memory(cache_type_draft=name) for name in CACHES if name != pair.draft.context.cache_type]


def weight_candidates(pair: Pair, reordered: frozenset[str]) -> list[Memory]:
    """The target's weights reordered for the CPU's kernels, or not: whatever they are not now. None where it has none
    of the formats that are `reordered` here, or a GPU has all of its layers."""
    target = pair.target
    on_gpu, n_layers = target.model.layers_on_gpu
    formats = reordered & target.facts.format_bytes.keys()
    return [Memory(repack=not target.model.settings.repack)] if formats and on_gpu < n_layers else []


def target_candidates(pair: Pair) -> list[Memory]:
    """Other types of the target's cache, and doing without flash attention where its cache may.

    None with a trained head: it reads the states of the one session that it was opened with.
    """
    if isinstance(pair.draft, OpenHead):
        return []
    context = pair.target.context
    found = [Memory(cache_type=name) for name in CACHES if name != context.cache_type]
    plain = CACHE_TYPE_BYTES[context.cache_type] >= 2  # quantised values need flash attention
    return found + ([Memory(flash_attention="off")] if plain and context.flash_attention != "off" else [])


class Tuner:
    """Tries memories with one setting on the same tasks. After `until`, a time of the clock, no turn begins."""

    def __init__(
        self,
        pair: Pair,
        make_bench: Callable[[Pair], Bench],
        tasks: Sequence[Task],
        setting: Setting,
        *,
        n_ctx: int,
        threads: tuple[int, int],
        clock: Callable[[], float],
        until: float,
        abort: AbortFlag,
    ) -> None:
        self._pair = pair
        self._make_bench = make_bench
        self._tasks = tasks
        self._setting = setting
        self._n_ctx = n_ctx
        self._threads = threads
        self._clock = clock
        self._until = until
        self._abort = abort

    @property
    def has_time(self) -> bool:
        return self._clock() < self._until

    def best(self, before: Memory, candidates: Sequence[Memory], pays: float) -> tuple[Memory, list[Trial]]:
        """The fastest memory, and every trial; `before` stays where none is `pays` times as fast."""
        trials = [Trial(candidate.over(before)) for candidate in candidates]
        with ExitStack() as stack:
            old = self._make_bench(self._opened(before, stack))
            new = [(trial, bench) for trial in trials if (bench := self._bench(trial, stack)) is not None]
            for bench in (old, *(bench for _, bench in new)):
                bench.run(self._tasks[0], self._setting, n_tokens=_WARM_UP)
            for i, task in enumerate(self._tasks):
                if i and not self.has_time:
                    break
                self._by_turns(task, old, [(trial, bench) for trial, bench in new if trial.refused is None])
        found = [trial for trial in trials if trial.refused is None and trial.ratio >= pays]
        return max(found, key=lambda trial: trial.ratio).memory if found else before, trials

    def _by_turns(self, task: Task, old: Bench, new: Sequence[tuple[Trial, Bench]]) -> None:
        first = old.run(task, self._setting)
        runs = [(trial, bench.run(task, self._setting)) for trial, bench in new]
        last = old.run(task, self._setting)
        for trial, run in runs:
            trial.ratios.append(run.speed / statistics.mean((first.speed, last.speed)))
            if trial.memory.touches_target and run.ids != first.ids:
                trial.refused = "the text changes"

    def _bench(self, trial: Trial, stack: ExitStack) -> Bench | None:
        """None, and the reason in the trial, where its contexts cannot be made."""
        try:
            return self._make_bench(self._opened(trial.memory, stack))
        except SpecdecError as error:
            if self._abort.is_set:
                raise
            trial.refused = str(error)
            return None

    def _opened(self, memory: Memory, stack: ExitStack) -> Pair:
        """In contexts no larger than the tasks need: several are open at once."""
        target, draft = self._pair.target.context, self._pair.draft.context if self._pair.draft is not None else None
        threads, flash = self._threads, memory.flash_attention
        new_target = self._context(target, threads[0], memory.cache_type, flash)
        new_draft = self._context(draft, threads[1], memory.cache_type_draft, flash) if draft is not None else None
        again = reopened(self._pair, new_target, new_draft, abort=self._abort, repack=memory.repack)
        return stack.enter_context(again)

    def _context(
        self, now: ContextSettings, threads: int, cache_type: str | None, flash_attention: FlashAttention | None
    ) -> ContextSettings:
        return replace(
            now,
            n_ctx=min(now.n_ctx, max(self._n_ctx, now.n_batch)),
            threads=threads,
            cache_type=cache_type or now.cache_type,
            flash_attention=flash_attention or now.flash_attention,
        )
