"""A check, what it finds, and the limit of its time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Thread
from typing import Any, Literal

from specdec_cli.errors import SpecdecError

Verdict = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, in a sentence or two, and what to do about it as a command of the shell."""

    name: str
    verdict: Verdict
    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """`look` is given `seconds`; `about` says what is looked at while it lasts.

    One that keeps to its limit by itself has None: native code must not be left running in a thread.
    """

    name: str
    about: str
    look: Callable[[], Finding]
    seconds: float | None = None
    late: Finding | None = None
    """What is found where the time was not enough; by default a warning that says so."""


def found_by(check: Check) -> Finding:
    """What the check finds within its time. What goes wrong in words is a problem, in these words."""
    if check.seconds is None:
        return _answered(check)
    found: list[Finding | BaseException] = []

    def look() -> None:
        try:
            found.append(_answered(check))
        except BaseException as error:
            found.append(error)

    thread = Thread(target=look, name=check.name, daemon=True)
    thread.start()
    thread.join(check.seconds)
    if not found:
        late = f"This check did not finish within {check.seconds:g} seconds."
        return check.late or Finding(check.name, "warning", late)
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _answered(check: Check) -> Finding:
    try:
        return check.look()
    except SpecdecError as error:
        return failed(check.name, error)
    except OSError as error:
        return Finding(check.name, "problem", f"{error.strerror or error}: {error.filename}.")


def failed(name: str, error: SpecdecError, command: str | None = None) -> Finding:
    """An error as a problem: its own words and its hint."""
    return Finding(name, "problem", f"{error} {error.hint}" if error.hint else str(error), command)


def has_problem(findings: Sequence[Finding]) -> bool:
    return any(finding.verdict == "problem" for finding in findings)


def next_command(findings: Sequence[Finding], otherwise: str) -> str:
    """The one thing to do next: for the first problem, else for the first warning, else `otherwise`."""
    told = [finding for verdict in ("problem", "warning") for finding in findings if finding.verdict == verdict]
    return next((finding.command for finding in told if finding.command is not None), otherwise)


def document(findings: Sequence[Finding], next_step: str) -> Mapping[str, Any]:
    """All of it as JSON values."""
    return {"problems": has_problem(findings), "checks": [asdict(one) for one in findings], "next": next_step}
