"""The line editor of chats. The only place that knows prompt_toolkit; importing it takes a moment."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus, is_searching
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from specdec_cli.foreground import modes_of, set_modes
from specdec_cli.ui.plain_lines import Cleared

Complete = Callable[[str], Sequence[str]]
"""Candidates for the last word of what is typed; each replaces that word."""


class LineEditor:
    """Reads one text after the other at a terminal, with history, completion and several lines.

    Enter ends a text that is whole, Alt-Enter begins another line, and what is pasted is one text, however many lines
    it has. `is_whole` says whether Enter ends what was typed.
    """

    def __init__(
        self,
        output: TextIO,
        prompt: str,
        *,
        history: Sequence[str],
        is_whole: Callable[[str], bool],
        complete: Complete,
    ) -> None:
        self._is_whole = is_whole
        self._is_stopping = self._is_terminated = False
        self._usual_modes: list[Any] | None = None
        self._raw_modes: list[Any] | None = None
        self._output = _Output(create_output(output))
        self._session: PromptSession[str] = PromptSession(
            prompt,
            multiline=True,
            prompt_continuation="." * (len(prompt) - 1) + " ",
            key_bindings=self._keys(),
            history=InMemoryHistory(history),
            completer=_Completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_open_in_editor=True,
            output=self._output.output,
        )

    def ask(self) -> str | None:
        """A text; None for Ctrl-D. Raises Cleared for Ctrl-C."""
        self._is_stopping = self._is_terminated = False
        self._usual_modes = modes_of(sys.stdin)
        text = asyncio.run(self._ask())
        if self._is_terminated:
            signal.raise_signal(signal.SIGTERM)  # now that the terminal is as it was, for whoever handles it
        # What is not UTF-8 came in as surrogates.
        return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._output.stop_marking_pastes()
        self._output.output.flush()

    async def _ask(self) -> str | None:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if self._is_terminated:
                self._end(EOFError())
            else:  # after the first drawing, for which the terminal's modes are set
                loop.call_soon(self._remember_modes)

        with _signals(loop, {"SIGTERM": self._terminate, "SIGCONT": self._draw_again}):
            try:
                return await self._session.prompt_async(pre_run=begin)
            except EOFError:
                return None

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER) & ~is_searching

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._is_whole(buffer.text):
                buffer.validate_and_handle()
            else:
                buffer.insert_text("\n")

        @keys.add("escape", "enter", filter=typing)
        @keys.add("escape", "c-j", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self._end(Cleared(was_empty=not event.current_buffer.text))

        if hasattr(signal, "SIGTSTP"):

            @keys.add("c-z")
            def _(_event: KeyPressEvent) -> None:
                run_in_terminal(self._stop)

        return keys

    def _stop(self) -> None:
        """Until somebody says `fg`; afterwards prompt_toolkit draws again by itself."""
        self._is_stopping = True
        self.close()
        if self._usual_modes is not None:
            set_modes(sys.stdin, self._usual_modes)
        os.kill(0, signal.SIGTSTP)

    def _remember_modes(self) -> None:
        if self._session.app.is_running:
            self._raw_modes = modes_of(sys.stdin)

    def _terminate(self) -> None:
        self._is_terminated = True
        self._end(EOFError())

    def _end(self, why: Exception) -> None:
        """A signal may come before the editor has begun, and after its end."""
        app = self._session.app
        if app.future is not None and not app.future.done():
            app.exit(exception=why)

    def _draw_again(self) -> None:
        """After a stop: a shell has set the terminal's modes and moved the cursor."""
        if self._is_stopping:
            self._is_stopping = False
            return
        app = self._session.app
        if not app.is_running:
            return
        if self._raw_modes is not None:
            set_modes(sys.stdin, self._raw_modes)
        app.output.write_raw("\r")
        app.renderer.reset()
        app.invalidate()


class _Completer(Completer):
    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        before = document.text_before_cursor
        word = before.split(" ")[-1]
        for candidate in self._complete(before):
            yield Completion(candidate, start_position=-len(word))


class _Output:
    """Where the editor draws. It does not ask terminals where their cursor is: some answer late, into what follows.

    Pastes stay marked from one question to the next: one that comes during an answer waits as the text that it is.
    """

    def __init__(self, output: Output) -> None:
        self.output = output
        self.stop_marking_pastes = output.disable_bracketed_paste
        output.disable_bracketed_paste = _nothing  # type: ignore[method-assign]
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False


def _nothing() -> None:
    """What prompt_toolkit does not get to do after each text."""


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, handlers: dict[str, Callable[[], None]]) -> Iterator[None]:
    """Call these in the loop when a signal of that name comes; a system may lack some."""
    before = {}
    for name, handler in handlers.items():
        if hasattr(signal, name):
            number = getattr(signal, name)
            before[number] = signal.signal(number, lambda *_, handler=handler: loop.call_soon_threadsafe(handler))
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
