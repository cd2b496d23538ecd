"""The command line: registers commands, turns errors into messages and exit codes."""

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from specdec_cli import __version__
from specdec_cli.commands.help import Command
from specdec_cli.commands.options import stop_waiting
from specdec_cli.commands.table import AllCommands
from specdec_cli.commands.wrong_usage import wrong_usage
from specdec_cli.errors import Interrupted, SpecdecError
from specdec_cli.ui.clean import printable

_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for every command line that it does not understand."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 usage error, 3 a model cannot be used, 4 tokenizers differ, 5 out of memory, "
    "6 no GPU where one is required, 7 llama.cpp failed, 8 (check) match with notes, 9 (bench, audit) a text "
    "differs, "
    "10 (draft) no draft pays, 11 (doctor) a problem was found, "
    "20 to 32 Hub errors (docs/exit-codes.md), 130 stopped by Ctrl-C, 143 by SIGTERM."
)

app = typer.Typer(
    help="Speculative decoding for GGUF models: the same text, faster.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=AllCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("help", cls=Command)
def show_help(
    context: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="The command.")] = None,
) -> None:
    """Show the help of a command."""
    root = context.find_root()
    root.command.main([*(command or ()), "--help"], prog_name=root.info_name)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Known errors end with their words and code; SPECDEC_DEBUG=1 shows tracebacks."""
    _open_closed_streams()
    try:
        try:
            code = app(standalone_mode=False) or 0
        finally:
            stop_waiting()
        sys.stdout.flush()  # a short text has been waiting until here
        sys.exit(code)
    except _WrongUsage as error:
        _tell(wrong_usage(error))
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except SpecdecError as error:
        if os.environ.get("SPECDEC_DEBUG"):
            raise
        _tell(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader has gone. What is still buffered would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(
            "Error: No space is left on the disk for the output.\nHint: Free some space, or write to another disk.",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway; another signal would only be a traceback


def _tell(error: SpecdecError) -> None:
    # Parts of the words come from files.
    print(printable(f"Error: {error}"), file=sys.stderr)
    if error.hint:
        print(printable(f"Hint: {error.hint}"), file=sys.stderr)


def _open_closed_streams() -> None:
    """What is written to a stream that was closed by the caller (`>&-`) is dropped.

    Were it left closed, the next file to be opened would get its number, and with it what native code prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
