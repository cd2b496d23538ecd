"""Text as it arrives, for pipes, plain terminals and `--plain`."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import FinishReason
from specdec_cli.ui.clean import Cleaner, printable
from specdec_cli.ui.summary import one_line, placement, summary, warnings
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.view import Header


class PlainView:
    """The answer on stdout, everything else on stderr, no escapes anywhere.

    A pipe gets the model's text unchanged, as UTF-8 whatever the locale says; a terminal gets it
    cleaned. When the reader of a pipe goes away, `show` and `finish` raise BrokenPipeError.
    """

    def __init__(self, header: Header, stdout: Terminal, stderr: Terminal, *, verbose: bool = False) -> None:
        self._header = header
        self._verbose = verbose
        self._stdout = stdout
        self._stderr = stderr
        self._cleaner = Cleaner(ascii_only=not stdout.utf8) if stdout.is_tty else None
        self._at_line_start = True
        self._noticed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore: nothing was changed."""

    def show(self, spans: Sequence[Span], stats: RunStats) -> None:  # noqa: ARG002
        text = "".join(span.text for span in spans)
        self._write(self._cleaner.push(text) if self._cleaner else text)

    def notice(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            self._say([text])

    def finish(self, spans: Sequence[Span], stats: RunStats, reason: FinishReason, notes: Sequence[str] = ()) -> None:
        self.show(spans, stats)
        if self._cleaner:
            self._write(self._cleaner.close())
        more = [*summary(stats, reason), *placement(self._header)] if self._verbose else []
        glance = one_line(self._header, stats, reason, utf8=self._stderr.utf8)
        self._say([glance, *more, *warnings(stats), *notes])

    def _write(self, text: str) -> None:
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        stream = self._stdout.stream
        buffer = getattr(stream, "buffer", None)
        if buffer is None or self._stdout.is_tty:
            stream.write(text)
        else:
            stream.flush()
            buffer.write(text.encode("utf-8", "replace"))
        stream.flush()

    def _say(self, lines: Sequence[str]) -> None:
        if not self._at_line_start and (self._stderr.is_tty or self._stderr.is_same_as(self._stdout)):
            self._break_line()
        stream = self._stderr.stream
        for line in lines:
            stream.write(printable(line, ascii_only=not self._stderr.utf8) + "\n")
        stream.flush()

    def _break_line(self) -> None:
        """End the answer's line on the screen, or where notes follow it. Never in a pipe of its own: its text stays the
        model's."""
        where = self._stdout if self._stdout.is_tty else self._stderr
        where.write("\n")
        self._at_line_start = True
