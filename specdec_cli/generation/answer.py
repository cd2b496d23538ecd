"""Following one answer: rounds become text, statistics, a view and a trace."""

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specdec_cli.advice import run_notes
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Reply
from specdec_cli.decode.types import FinishReason, Round, TokenLogprob
from specdec_cli.errors import Interrupted, SpecdecError
from specdec_cli.generation.trace import Trace
from specdec_cli.ui.view import View


@dataclass
class Answer:
    """What came out. `error` is what ended it early: the user's signal, or a failure. `is_complete` says whether the
    text is all that its grammar asks for; None without a grammar."""

    finish: FinishReason = "length"
    stats: RunStats = field(default_factory=RunStats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: SpecdecError | None = None
    is_complete: bool | None = None


def follow(
    rounds: Iterable[Round],
    reply: Reply,
    view: View,
    trace: Trace,
    drafter: str,
    close: Callable[[Answer], list[str]],
) -> Answer:
    """Show every round as it comes; the text so far and the summary are kept whatever ends it.

    `reply` makes text of them and ends the answer at a stop string; `close` adds to the answer, at the end, what only
    the pair knows, and returns notes on it. An interruption or a failure of a model ends the answer like an end token
    does, and is found in it.
    """
    answer = Answer()
    try:
        for emitted in rounds:
            round_, spans = reply.add(emitted)
            answer.logprobs += round_.logprobs
            answer.stats.add(round_)
            view.show(spans, answer.stats)
            trace.round(round_, spans)
            answer.finish = round_.finish or answer.finish
            for note in run_notes(answer.stats, drafter) if answer.stats.drafted else ():
                _tell(note, answer, view)
            if round_.finish:
                break
    except KeyboardInterrupt:  # a second Ctrl-C, or one that came outside a pass
        answer.finish, answer.error = "interrupt", Interrupted(signal.SIGINT)
    except SpecdecError as error:
        answer.finish, answer.error = ("interrupt" if isinstance(error, Interrupted) else "error"), error
    late = close(answer)
    spans = reply.close()
    late += [note for note in run_notes(answer.stats, drafter) if note not in answer.notes]
    answer.notes += late
    view.finish(spans, answer.stats, answer.finish, late)
    trace.end(answer.stats, answer.finish, spans)
    return answer


def _tell(note: str, answer: Answer, view: View) -> None:
    if note not in answer.notes:
        answer.notes.append(note)
        view.notice(note)
