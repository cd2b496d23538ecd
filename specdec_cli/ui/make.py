"""Chooses the view."""

import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import detect_legacy_windows

from specdec_cli.ui.dashboard import LiveView
from specdec_cli.ui.stream import PlainView
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.view import Header, View


def open_view(
    header: Header,
    *,
    plain: bool,
    stdout: TextIO,
    stderr: TextIO,
    environ: Mapping[str, str],
    verbose: bool = False,
    introduce: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> View:
    """The live view where it was not refused and the terminal can show it; plain text elsewhere.

    With `verbose` all statistics follow an answer. The live view says before it what the models are, if it is to
    `introduce` them.
    """
    out, err = Terminal(stdout, environ), Terminal(stderr, environ)
    # Consoles before Windows 10 do not know the escapes that a frame is made of.
    if plain or not out.can_draw or detect_legacy_windows():
        return PlainView(header, out, err, verbose=verbose)
    return LiveView(header, out, redirect_stderr=err.is_tty, verbose=verbose, introduce=introduce, clock=clock)
