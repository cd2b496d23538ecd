"""Checks of an open pair: what passes and draft tokens cost, and what is accepted of three short answers."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Timer

from specdec_cli.bench.measure import Bench, Cell, Setting, Task
from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
from specdec_cli.bench.report import PAYS
from specdec_cli.bench.tasks import as_tasks
from specdec_cli.doctor.checkup import Check, Finding, failed
from specdec_cli.doctor.costs import WIDTHS, Costs, spread
from specdec_cli.doctor.pair import Subject
from specdec_cli.errors import Interrupted, ModelError, OutOfMemory, SpecdecError, VocabularyMismatch
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.lengths.speedup_model import rounds_speedup
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.machine import usable_cores

_OPEN_SECONDS, COST_SECONDS, _ANSWER_SECONDS = 180.0, 10.0, 60.0
_SLOWEST_COSTS = 60.0
"""Seconds that a round or two through all widths may take on a slow machine."""
_TIME_IS_UP = 0
"""In place of a signal's number."""
_KINDS = ("code", "qa", "story")
_TOKENS = 48
_CONTEXT = 64
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 500
_STRIDE = 7919
"""A prime, so that the tokens of timed passes differ."""
_UNSTEADY = 0.3
_CHEAP_PASSES = 1.2
"""The bound by passes alone above which it is the draft that is too dear."""


@dataclass
class Measured:
    """A pair that is opened for its checks. Each ends by itself; `abort` ends it sooner. Close it, on every way out."""

    subject: Subject
    abort: AbortFlag
    clock: Callable[[], float] = time.perf_counter
    _stack: ExitStack = field(default_factory=ExitStack)
    _pair: Pair | None = None
    _costs: Costs | None = None

    def close(self) -> None:
        self._stack.close()

    def checks(self) -> list[Check]:
        """In the order in which they are told; each needs those before it."""
        return [
            Check("opening", "whether the models open", self.opening),
            Check("costs", "what passes cost", self.costs),
            Check("acceptance", "what is accepted", self.acceptance),
        ]

    def opening(self) -> Finding:
        """Whether both models load and compute. Raises Interrupted."""
        notes: list[str] = []
        try:
            with self._at_most(_OPEN_SECONDS):
                self._pair = self._stack.enter_context(
                    open_pair(self.subject.request, say=notes.append, abort=self.abort)
                )
        except Interrupted as stop:
            return _too_late("opening", stop, f"The models did not open within {_OPEN_SECONDS:g} seconds.")
        except SpecdecError as error:
            return failed("opening", error, self._way_out(error))
        if self._pair.held_back is not None:
            text = f"The models open, but nothing can be drafted: {self._pair.held_back}."
            return Finding("opening", "warning", text, f"specdec run {self._model} --draft none")
        return Finding("opening", "ok", " ".join(["The models open and compute.", *notes]))

    @property
    def _model(self) -> str:
        return shlex.quote(self.subject.model)

    def _way_out(self, error: SpecdecError) -> str:
        if isinstance(error, OutOfMemory):
            return f"specdec plan {self.subject.names}"
        if isinstance(error, VocabularyMismatch):
            return f"specdec run {self._model} --draft ngram"
        if isinstance(error, ModelError) and self.subject.files.has_model:
            return f"specdec run {self._model} --draft none"
        return f"specdec plan {self.subject.names}"

    def costs(self) -> Finding:
        """Ten seconds of passes and draft tokens by turns. Raises Interrupted."""
        if self._pair is None:
            return Finding("costs", "skipped", "The models are not open.")
        try:
            with self._at_most(_SLOWEST_COSTS):
                self._costs = _timed(self._pair, COST_SECONDS, self.clock)
        except Interrupted as stop:
            return _too_late("costs", stop, f"Timing some passes took longer than {_SLOWEST_COSTS:g} seconds.")
        costs, curve = self._costs, self._costs.curve
        what = f"A pass takes {1000 * curve.target[1]:.1f} ms"
        if costs.lengths:
            widest = max(costs.lengths) + 1
            what += f", one of {widest} tokens {1000 * curve.target[widest]:.1f} ms"
        if costs.drafts:
            what += f", a draft token {1000 * curve.draft:.1f} ms"
        varies = spread(costs.passes[1])
        what += f"; passes vary by {varies:.0%}"
        what += f", draft tokens by {spread(costs.drafts):.0%}." if costs.drafts else "."
        dear = self._too_dear(costs)
        if dear is not None:
            return Finding("costs", "problem", f"{what} {dear[0]}", dear[1])
        if varies > _UNSTEADY:
            fewer = max(usable_cores() - 1, 1)
            text = f"{what} That is unsteady: other programs, or too many threads for these cores."
            return Finding("costs", "warning", text, f"specdec run {self.subject.names} --threads {fewer}")
        bound = f" A draft that is always right would bring {costs.bound()[1]:.1f}x." if costs.lengths else ""
        return Finding("costs", "ok", what + bound)

    def _too_dear(self, costs: Costs) -> tuple[str, str] | None:
        """Why no draft can pay at these costs, and what to do; None where one can."""
        if not costs.lengths or costs.bound()[1] >= PAYS:
            return None
        if costs.bound_without_draft_costs() >= _CHEAP_PASSES:
            text = "This draft costs too much: it would not pay even if it were always right."
            return text, f"specdec draft make {self._model}"
        text = "Wide passes cost too much here: no draft can pay. Targets of 8 or 16 bits, more cores or a GPU help."
        return text, f"specdec run {self._model} --draft none"

    def acceptance(self) -> Finding:
        """What is accepted of three short answers, and what that is worth. Raises Interrupted."""
        if self._pair is None or self._costs is None or not self._costs.lengths:
            return Finding("acceptance", "skipped", "The costs are not known.")
        if self._pair.held_back is not None:
            return Finding("acceptance", "skipped", "Nothing can be drafted.")
        k = max(n for n in self._costs.lengths if n <= max(self.subject.k, 1))
        drafter = self.subject.files.drafter if self.subject.files.drafter != "none" else "ngram"
        temperature = self.subject.request.sampling.params.temperature
        cell = Cell("all", Setting(drafter, k, temperature))
        told = []
        try:
            with self._at_most(_ANSWER_SECONDS):
                for task in _tasks(self._pair):
                    bench = Bench(self._pair, self.subject.request.sampling.params, _TOKENS, self.clock)
                    one = Cell(task.kind, cell.setting, [bench.run(task, cell.setting)])
                    cell.runs += one.runs
                    told.append(f"{task.kind} {_percent(one.acceptance)}")
        except Interrupted as stop:
            late = _too_late("acceptance", stop, f"Three answers took longer than {_ANSWER_SECONDS:g} seconds.")
            if not cell.runs:
                return late
        return self._judged(cell, self._costs, told)

    def _judged(self, cell: Cell, costs: Costs, told: Sequence[str]) -> Finding:
        """What the acceptance of these runs is worth at these costs."""
        share = cell.acceptance
        if share is None:
            text = "Nothing was drafted for three short prompts: there was nothing to copy."
            return Finding("acceptance", "ok", text)
        what = f"{share:.0%} of the draft tokens were accepted ({', '.join(told)})"
        if cell.setting.drafter == "model" and cell.by_position:
            k, speedup = costs.expected(cell.by_position)
        else:
            k, speedup = int(cell.setting.k), _speed_of(cell, costs)
        what += f"; expected speed: {speedup:.2f}x plain decoding with drafts of {k}"
        if speedup >= PAYS or self.subject.files.drafter == "none":
            return Finding("acceptance", "ok", f"{what}.")
        needed = costs.needed()
        if needed is not None and share < needed:
            text = f"{what}. That is too little: drafts pay here from about {needed:.0%}."
            other = "none" if self.subject.files.drafter == "ngram" else "ngram"
            command = f"specdec run {self._model} --draft {other}"
            return Finding("acceptance", "problem", text, command)
        text = f"{what}. Enough is accepted, but draft tokens and wide passes cost what that saves."
        return Finding("acceptance", "problem", text, f"specdec draft make {self._model}")

    @contextmanager
    def _at_most(self, seconds: float) -> Iterator[None]:
        """Let passes stop after so long. Raises Interrupted, as for a signal."""
        timer = Timer(seconds, self.abort.set, (_TIME_IS_UP,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if self.abort.is_set and self.abort.signal_number == _TIME_IS_UP:
                self.abort.clear()


def _too_late(name: str, stop: Interrupted, text: str) -> Finding:
    """Raises what a user's signal brought."""
    if stop.exit_code != Interrupted(_TIME_IS_UP).exit_code:
        raise stop
    return Finding(name, "warning", text)


def _timed(pair: Pair, seconds: float, clock: Callable[[], float]) -> Costs:
    """Rounds through all widths and a draft token, until the time is over, three at least."""
    target, draft = pair.target.session, pair.draft.session if pair.draft is not None else None
    widths = [width for width in WIDTHS if width <= pair.target.context.max_rows]
    context = max(min(_CONTEXT, target.n_ctx - max(widths) - 2), 1)
    text = [_STRIDE * i % target.n_vocab for i in range(1, context + max(widths) + 2)]
    passes: dict[int, list[float]] = {width: [] for width in widths}
    drafts: list[float] = []
    until = clock() + seconds
    for i in range(_MOST_ROUNDS):
        if i > _LEAST_ROUNDS and clock() > until:
            break
        for width in widths:
            target.score(text[:context], 1)
            began = clock()
            target.score(text[: context + width], width)
            passes[width].append(clock() - began)
        if draft is not None:
            draft.score(text[:context], 1)
            target.evaluate(text[:context])  # a head reads what this leaves; that is not its cost
            began = clock()
            draft.score(text[: context + 1], 1)
            drafts.append(clock() - began)
    return Costs(context, {width: seen[1:] for width, seen in passes.items()}, drafts[1:])


def _tasks(pair: Pair) -> list[Task]:
    """One short prompt of each kind."""
    prompts = [min(
        (prompt for prompt in read_prompts(SHIPPED) if prompt.kind == kind and len(prompt.turns) == 1),
        key=lambda prompt: len(prompt.turns[0]),
    ) for kind in _KINDS]  # fmt: skip
    return as_tasks(pair, prompts, _TOKENS, lambda _: None)


def _speed_of(cell: Cell, costs: Costs) -> float:
    """Of the rounds as they were, for a drafter that is no model."""
    curve = costs.curve
    rounds = [round_ for run in cell.runs for round_ in run.rounds[1:] if len(round_.drafted) + 1 in curve.target]
    if not rounds:
        return 1.0
    drafting = sum(round_.draft_seconds for round_ in rounds)
    return rounds_speedup(curve, [(len(r.drafted), r.n_accepted, len(r.tokens)) for r in rounds], drafting)


def _percent(share: float | None) -> str:
    return "nothing drafted" if share is None else f"{share:.0%}"
