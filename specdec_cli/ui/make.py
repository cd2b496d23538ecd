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
    clock: Callable[[], float] = time.perf_counter,
) -> View:
    """The live view where it was not refused and the terminal can show it; plain text elsewhere."""
    out, err = Terminal(stdout, environ), Terminal(stderr, environ)
    # Consoles before Windows 10 do not know the escapes that a frame is made of.
    if plain or not out.can_draw or detect_legacy_windows():
        return PlainView(header, out, err)
    return LiveView(header, out, redirect_stderr=err.is_tty, clock=clock)
