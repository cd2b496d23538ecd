"""Following one answer: rounds become text, statistics, a view and a trace."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec_cli.advice import run_notes
from specdec_cli.errors import Interrupted
from specdec_cli.stats import RunStats
from specdec_cli.text import Piece, Reply
from specdec_cli.trace import Trace
from specdec_cli.types import FinishReason, Origin, Round
from specdec_cli.ui.view import Span, View


@dataclass
class Answer:
    """What came out. `interrupted` holds the signal when the user stopped it."""

    finish: FinishReason = "length"
    stats: RunStats = field(default_factory=RunStats)
    origins: list[Origin] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: Interrupted | None = None


def follow(rounds: Iterable[Round], reply: Reply, view: View, trace: Trace, drafter: str) -> Answer:
    """Show every round as it comes; the text so far and the summary are kept whatever ends it.

    `rounds` must feed `reply` (it is the engine's `ends`). An interruption ends the answer
    normally; any other error passes through, after the view has shown what there was.
    """
    answer = Answer()
    try:
        for round_ in rounds:
            answer.origins += round_.origins
            answer.stats.add(round_)
            spans = spans_of(reply.take(), answer.origins)
            view.show(spans, answer.stats)
            trace.round(round_, spans)
            answer.finish = round_.finish or answer.finish
            for note in run_notes(answer.stats, drafter) if answer.stats.drafted else ():
                _tell(note, answer, view)
    except Interrupted as stop:
        answer.finish, answer.interrupted = "interrupt", stop
    for note in run_notes(answer.stats, drafter):
        _tell(note, answer, view)
    view.finish(spans_of(reply.close(), answer.origins), answer.stats, answer.finish)
    trace.end(answer.stats, answer.finish)
    return answer


def _tell(note: str, answer: Answer, view: View) -> None:
    if note not in answer.notes:
        answer.notes.append(note)
        view.notice(note)


def spans_of(pieces: Sequence[Piece], origins: Sequence[Origin]) -> list[Span]:
    """Text with its origin; neighbours of one origin become one span."""
    spans: list[Span] = []
    for piece in pieces:
        origin = origins[piece.token_index]
        if spans and spans[-1].origin == origin:
            spans[-1] = Span(spans[-1].text + piece.text, origin)
        else:
            spans.append(Span(piece.text, origin))
    return spans
