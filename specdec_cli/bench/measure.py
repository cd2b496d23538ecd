"""Measuring drafting: plain decoding and every setting alternately, on the same prompts, in one process.

A machine's speed drifts by more than the differences that matter (by a third within an hour on a shared one). So
nothing is compared with what was measured minutes ago: for each prompt plain decoding runs first and last, the
settings in between, and a setting's ratio is its speed over the mean of those two.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specdec_cli.bench.compare_texts import Comparison, compare
from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.drafters import sources
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.generation.pair import Decoding, Pair, decoding_for, plain_decoding
from specdec_cli.lengths.speedup_model import (
    CostCurve,
    conditional_acceptance,
    position_counts,
    predicted_speedup,
    rounds_speedup,
)
from specdec_cli.settings import LONGEST_AUTO, Length

_CURVE_ROUNDS = 7
_SHORTEST_ANSWER = 24
"""Tokens; fewer say little of a draft. To keep a budget answers get shorter down to this, then kinds are left out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to decode. `k` is 0 for plain decoding."""

    drafter: str
    k: Length
    temperature: float
    p_min: float = 0.0

    def __str__(self) -> str:
        if not self.k:
            return "plain decoding"
        return f"{self.drafter} k {self.k}" + (f" p-min {self.p_min:g}" if self.p_min else "")


def longest_draft(settings: Sequence[Setting]) -> int:
    """Tokens that contexts must have room for."""
    return max(setting.k if isinstance(setting.k, int) else LONGEST_AUTO for setting in settings)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of one kind, as ids."""

    kind: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer: its ids, and its rounds in numbers."""

    ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    stats: RunStats

    @property
    def speed(self) -> float:
        """Tokens per second after the first round."""
        return self.stats.tokens_per_second or 0.0


@dataclass
class Cell:
    """All runs of one setting on one kind of text. `ratios` are speeds over plain decoding's beside them."""

    kind: str
    setting: Setting
    runs: list[Run] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    plain_speeds: list[float] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return statistics.median(self.ratios)

    @property
    def speed(self) -> float:
        return statistics.median(run.speed for run in self.runs)

    @property
    def plain_speed(self) -> float:
        return statistics.median(self.plain_speeds)

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted over all runs."""
        drafted = sum(run.stats.drafted for run in self.runs)
        return sum(run.stats.accepted for run in self.runs) / drafted if drafted else None

    @property
    def tokens_per_pass(self) -> float:
        passes = sum(run.stats.passes for run in self.runs)
        return sum(run.stats.tokens for run in self.runs) / passes if passes else 0.0

    @property
    def by_position(self) -> list[float]:
        """Chance of each draft position, given that all before it were kept."""
        return conditional_acceptance(*self.counts_by_position)

    @property
    def counts_by_position(self) -> tuple[list[int], list[int]]:
        """Drafts that came as far as each position, and those that kept it."""
        return position_counts((len(r.drafted), r.n_accepted) for run in self.runs for r in run.rounds)

    @property
    def draft_seconds_per_token(self) -> float | None:
        """Median over rounds of the time inside the drafter for each token verified; None without a draft.

        The median, because a round in which the draft first reads the prompt is not like the others.
        """
        each = [r.draft_seconds / len(r.drafted) for run in self.runs for r in run.rounds if r.drafted]
        return statistics.median(each) if each else None

    @property
    def worst(self) -> Comparison:
        """How far from plain decoding's text the farthest run was."""
        return max(self.comparisons, key=lambda c: c.severity, default=Comparison("same"))

    def predicted(self, curve: CostCurve) -> float | None:
        """What costs and acceptance say the speedup is; None where a width or the drafter was not timed.

        For fixed lengths of a draft model from the chances by position, else from each round's own length.
        """
        if LookaheadDrafter.name in sources(self.setting.drafter):  # its passes hold more than the draft
            return None
        k, chances = self.setting.k, self.by_position
        by_model = self.setting.drafter == "model"
        is_fixed = isinstance(k, int) and len(chances) == k and not self.setting.p_min
        if by_model and is_fixed and len(chances) + 1 in curve.target:
            return predicted_speedup(curve, chances, len(chances))
        rounds = [r for run in self.runs for r in run.rounds[1:]]
        if not rounds or any(len(r.drafted) + 1 not in curve.target for r in rounds):
            return None
        drafting = None if by_model else sum(r.draft_seconds for r in rounds)
        return rounds_speedup(curve, [(len(r.drafted), r.n_accepted, len(r.tokens)) for r in rounds], drafting)


@dataclass(frozen=True, slots=True)
class Extent:
    """What is measured: prompts, how often, and how long answers are in tokens."""

    tasks: Sequence[Task]
    repeats: int
    n_tokens: int


class Bench:
    """Runs tasks with an open pair. `sampling` is that of every run but for its temperature."""

    def __init__(
        self,
        pair: Pair,
        sampling: SamplingParams,
        n_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._pair = pair
        self._sampling = sampling
        self._n_tokens = n_tokens
        self._clock = clock
        self.cells: dict[tuple[str, Setting], Cell] = {}

    def warm_up(self, task: Task, settings: Sequence[Setting]) -> float:
        """Run everything once and forget it. Returns the seconds that an answer takes, about."""
        for setting in settings:
            self.run(task, setting, n_tokens=min(16, self._n_tokens))
        began = self._clock()
        self.run(task, plain_like(settings[0]))
        return self._clock() - began

    def n_runs(self, extent: Extent, settings: Sequence[Setting]) -> int:
        """Answers that `measure` will write: plain decoding twice for each temperature."""
        n_temperatures = len({setting.temperature for setting in settings})
        return extent.repeats * len(extent.tasks) * (len(settings) + 2 * n_temperatures)

    def measure(self, extent: Extent, settings: Sequence[Setting], deadline: float = math.inf) -> Iterator[None]:
        """Every task with every setting, as often as asked; yields after each run. What is done is in `cells`.

        After the deadline, a time of the clock, nothing new is begun, but something is always measured.
        """
        self._n_tokens = extent.n_tokens
        temperatures = list(dict.fromkeys(setting.temperature for setting in settings))
        for repeat in range(extent.repeats):
            for task in extent.tasks:
                for temperature in temperatures:
                    if self.cells and self._clock() > deadline:
                        return
                    those = [s for s in settings if s.temperature == temperature]
                    turned = repeat % len(those)
                    yield from self._block(task, [*those[turned:], *those[:turned]])

    def _block(self, task: Task, settings: Sequence[Setting]) -> Iterator[None]:
        plain = plain_like(settings[0])
        first = self.run(task, plain)
        yield
        done = []
        for setting in settings:
            done.append((setting, self.run(task, setting)))
            yield
        last = self.run(task, plain)
        plain_seconds = statistics.mean(1 / run.speed for run in (first, last) if run.speed)
        for setting, run in done:
            cell = self.cells.setdefault((task.kind, setting), Cell(task.kind, setting))
            cell.runs.append(run)
            cell.plain_speeds.append(1 / plain_seconds)
            cell.ratios.append(run.speed * plain_seconds)
            cell.comparisons.append(self._compare(task, setting, first, run))
        yield

    def _compare(self, task: Task, setting: Setting, plain: Run, run: Run) -> Comparison:
        widest = max((len(r.drafted) + 1 + r.n_beside for r in run.rounds), default=1)
        widest = min(widest, self._pair.target.context.max_rows)
        rule = self._rule(setting.temperature)
        return compare(self._pair.target.session, rule, task.ids, plain.ids, run.ids, widest)

    def run(self, task: Task, setting: Setting, n_tokens: int | None = None) -> Run:
        """One answer. The caches keep nothing of the one before but the prompt, if it is the same."""
        ids, rounds, stats = list[int](), list[Round](), RunStats()
        for round_ in self._pair.rounds(
            task.ids, self._decoding(setting), max_tokens=n_tokens or self._n_tokens, clock=self._clock
        ):
            stats.add(round_)
            rounds.append(round_)
            ids += round_.tokens
        return Run(tuple(ids), tuple(rounds), stats)

    def check(self, settings: Sequence[Setting]) -> None:
        """Raises UsageError for a setting whose drafter lacks something."""
        for setting in settings:
            self._decoding(setting)

    def _decoding(self, setting: Setting) -> Decoding:
        """Made anew for each answer, but for what was learned of the pair."""
        rule = self._rule(setting.temperature)
        return decoding_for(self._pair, setting.drafter, setting.k, rule, setting.p_min)

    def fastest_threads(
        self, tasks: Sequence[Task], setting: Setting, candidates: Sequence[tuple[int, int]], repeats: int
    ) -> tuple[int, int]:
        """The threads of the target and of the draft with which the setting is fastest; by turns, like everything
        else."""
        speeds: dict[tuple[int, int], list[float]] = {n: [] for n in candidates}
        for _ in range(repeats):
            for task in tasks:
                for n in candidates:
                    self._set_threads(n)
                    speeds[n].append(self.run(task, setting).speed)
        best = max(candidates, key=lambda n: statistics.median(speeds[n]))
        self._set_threads(best)
        return best

    def _set_threads(self, threads: tuple[int, int]) -> None:
        self._pair.target.session.set_threads(threads[0])
        if self._pair.draft is not None:
            self._pair.draft.session.set_threads(threads[1])

    def _rule(self, temperature: float) -> SharedNoise:
        law = self._pair.rule.law.with_params(replace(self._sampling, temperature=temperature))
        return SharedNoise(law, seed=self._pair.rule.seed)

    def cost_curve(
        self,
        text: Sequence[int],
        context: int,
        widest: int,
        temperature: float,
        n_rounds: int = _CURVE_ROUNDS,
        deadline: float = math.inf,
    ) -> CostCurve:
        """Costs after `context` tokens of `text` (repeated if it is shorter): medians of rounds through all widths.

        After the deadline, a time of the clock, there are no more than two rounds.
        """
        tokens = list(text)
        while len(tokens) < context + widest + 1:
            tokens += text
        rule, target, draft = self._rule(temperature), self._pair.target.session, self._pair.draft
        passes: dict[int, list[float]] = {width: [] for width in range(1, widest + 1)}
        steps: list[float] = []
        for i in range(n_rounds + 1):
            if i > 1 and self._clock() > deadline:
                break
            for width in passes:
                target.score(tokens[:context], 1)
                began = self._clock()
                self._pass(tokens, context, width, rule)
                passes[width].append(self._clock() - began)
            if draft is not None:
                own = [token % draft.session.n_vocab for token in tokens]  # of another vocabulary: any will do
                draft.session.score(own[: context + i], 1)
                target.evaluate(tokens[: context + i])  # a head reads what this leaves; that is not its cost
                began = self._clock()
                row = draft.session.score(own[: context + i + 1], 1)[0]
                if self._pair.crossing is None:
                    rule.draw(row, tokens[: context + i + 1], context)
                steps.append(self._clock() - began)
        times = {width: statistics.median(seconds[1:]) for width, seconds in passes.items()}
        return CostCurve(context, times, statistics.median(steps[1:]) if steps else 0.0)

    def _pass(self, tokens: Sequence[int], context: int, width: int, rule: SharedNoise) -> None:
        rows = self._pair.target.session.score(tokens[: context + width], width)
        for i, row in enumerate(rows):
            rule.choose(row, tokens[: context + i + 1])


def plain_like(setting: Setting) -> Setting:
    """Plain decoding at the setting's temperature."""
    return Setting("none", 0, setting.temperature)


def answered(pair: Pair, ids: Sequence[int], n_tokens: int) -> list[int]:
    """Plain decoding's greedy answer, without its end token: an earlier turn of a chat."""
    rule = SharedNoise(pair.rule.law.with_params(SamplingParams(temperature=0)), seed=pair.rule.seed)
    rounds = pair.rounds(ids, plain_decoding(rule), max_tokens=n_tokens, clock=lambda: 0.0)
    return [token for round_ in rounds for token in round_.tokens if token not in pair.end_tokens]


def within_budget(whole: Extent, settings: Sequence[Setting], seconds_per_run: float, budget: float) -> Extent:
    """As many prompts of each kind, and then repeats, as the budget in seconds has time for.

    Where it has none for one prompt of each kind, once: shorter answers, then fewer kinds, at least one.
    """
    kinds = list(dict.fromkeys(task.kind for task in whole.tasks))
    by_kind = {kind: [task for task in whole.tasks if task.kind == kind] for kind in kinds}
    per_task = seconds_per_run * (len(settings) + 2 * len({s.temperature for s in settings}))
    for times in (whole.repeats, 1):
        for most in range(max(map(len, by_kind.values())), 0, -1):
            chosen = [task for kind in kinds for task in by_kind[kind][:most]]
            if len(chosen) * per_task * times <= budget:
                return Extent(chosen, times, whole.n_tokens)
    per_token = per_task / whole.n_tokens
    n_tokens = max(int(budget / (per_token * len(kinds))), min(_SHORTEST_ANSWER, whole.n_tokens))
    n_kinds = max(1, min(len(kinds), int(budget / (per_token * n_tokens))))
    return Extent([by_kind[kind][0] for kind in kinds[:n_kinds]], 1, n_tokens)


def by_setting(cells: Mapping[tuple[str, Setting], Cell]) -> dict[Setting, list[Cell]]:
    """The cells of each setting, in order of measuring."""
    found: dict[Setting, list[Cell]] = {}
    for (_, setting), cell in cells.items():
        found.setdefault(setting, []).append(cell)
    return found


def median_speedup(cells: Sequence[Cell]) -> float:
    """Of a setting: the median of its kinds of text."""
    return statistics.median(cell.speedup for cell in cells)
