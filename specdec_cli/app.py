"""The command line: commands are registered here, errors become words and exit codes here."""

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from specdec_cli import __version__
from specdec_cli.commands.audit import audit
from specdec_cli.commands.bench import bench
from specdec_cli.commands.check import check
from specdec_cli.commands.draft import draft_app
from specdec_cli.commands.local_files import list_files, rm, verify_files
from specdec_cli.commands.plan import plan
from specdec_cli.commands.presets import presets_app
from specdec_cli.commands.pull import pull
from specdec_cli.commands.replay import replay
from specdec_cli.commands.run import run
from specdec_cli.errors import Interrupted, SpecdecError
from specdec_cli.ui.clean import printable

EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 wrong usage, 3 a model cannot be used, 4 tokenizers differ, 5 out of memory, "
    "6 no GPU where one is required, 7 llama.cpp failed, 8 (check) match with notes, 9 (bench, audit) a text differs, "
    "10 (draft) no draft pays, "
    "20 to 32 from the Hub (see the README), 130 stopped by Ctrl-C, 143 by SIGTERM."
)

app = typer.Typer(
    help="Speculative decoding for GGUF models: faster text, the same text.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(bench)
app.command()(audit)
app.command()(replay)
app.command()(check)
app.command()(pull)
app.command()(plan)
app.add_typer(draft_app, name="draft")
app.add_typer(presets_app, name="presets")
app.command("list")(list_files)
app.command()(rm)
app.command("verify-files")(verify_files)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Known errors end with their words and code; SPECDEC_DEBUG=1 shows tracebacks."""
    _open_closed_streams()
    try:
        app()
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except SpecdecError as error:
        if os.environ.get("SPECDEC_DEBUG"):
            raise
        # Parts of the words come from files.
        print(printable(f"Error: {error}"), file=sys.stderr)
        if error.hint:
            print(printable(f"Hint: {error.hint}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(
            "Error: There is no space left for the output.\nHint: Free some, or write to another disk.", file=sys.stderr
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway; another signal would only be a traceback


def _open_closed_streams() -> None:
    """What is written to a stream that was closed by the caller (`>&-`) is dropped.

    Were it left closed, the next file to be opened would get its number, and with it what native code prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
