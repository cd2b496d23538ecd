"""Renders chat templates in a separate process: one JSON request per line on stdin, one reply per line on stdout.

A template is a program that came with a file from the internet. The sandbox keeps it from reaching anything; this
process keeps it from taking all memory or all time: its address space is limited here, and a timer ends it. The
parent runs it by its name; it imports nothing but the standard library and jinja2, the only one to do so.
"""

import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

import jinja2
import jinja2.meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # Windows limits no process this way
    resource = None  # type: ignore[assignment]

MEMORY_BYTES = 512 << 20
"""Address space of this process. Python and jinja2 take 40 MB of it."""
MAX_SOURCE = 1 << 20
"""Characters of a template. The longest of known models has 20,000."""
MAX_TEXT = 4 << 20
"""Characters that a template may write, beside four times what it was given."""
MAX_REASON = 300

_GENERATION_MARK = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""Tags that only training needs; jinja2 alone does not know them."""


class Absent(jinja2.Undefined):
    """What transformers passes as None (`tools`, `documents`): not defined, and none, and empty.

    Templates ask in any of these ways, and each of them has to hear that there are none.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, jinja2.Undefined)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(None)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """{"text": ...} for a request with messages, {"names": [...]} (free variables) for one without, {"error": reason}
    where the template fails.

    A request has "source", "now" (ISO 8601), "variables", "seconds" (of computing, at most), and "messages" with
    "add_generation_prompt".
    """
    try:
        source = str(request["source"])
        if "messages" not in request:
            return {"names": _free_names(source)}
        return {"text": _render(source, request)}
    except MemoryError:
        return {"error": f"it takes more than {MEMORY_BYTES >> 20} MB of memory"}
    except Exception as error:  # a template is somebody else's program: it can fail in any way
        reason = str(getattr(error, "message", None) or error) or type(error).__name__
        return {"error": reason[:MAX_REASON].rstrip(". \n")}


def _render(source: str, request: Mapping[str, Any]) -> str:
    now = datetime.fromisoformat(request["now"])
    messages = request["messages"]
    text = _compiled(source).render(
        {name: Absent(name=name) for name in ("tools", "documents")}
        | dict(request["variables"])
        | {"strftime_now": lambda pattern: now.strftime(pattern)},
        messages=messages,
        add_generation_prompt=request["add_generation_prompt"],
    )
    limit = MAX_TEXT + 4 * len(json.dumps(messages))
    if len(text) > limit:
        raise ValueError(f"it writes more than {limit:,} characters")
    text.encode()  # half a character is no text
    return text


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    _free_names(source)
    return _environment().from_string(_plain(source))


def _free_names(source: str) -> list[str]:
    """Also compiles, so that a template that cannot be used is known by its source alone."""
    if len(source) > MAX_SOURCE:
        raise ValueError(f"it is longer than {MAX_SOURCE:,} characters")
    environment = _environment()
    tree = environment.parse(_plain(source))
    environment.compile(tree)
    return sorted(jinja2.meta.find_undeclared_variables(tree))


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = _to_json
    environment.tests["none"] = lambda value: value is None or isinstance(value, Absent)
    return environment


def _plain(source: str) -> str:
    return _GENERATION_MARK.sub(_always, source)


def _always(mark: re.Match[str]) -> str:
    """A block that changes nothing in place of a tag: the tag's own handling of white space stays."""
    return f"{mark[1]}{'endif' if mark[2] else 'if true'}{mark[3]}"


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own writes HTML escapes."""
    value = None if isinstance(value, Absent) else value
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _requests() -> Iterator[Mapping[str, Any]]:
    for line in sys.stdin:
        yield cast(Mapping[str, Any], json.loads(line))


def _limit_memory() -> None:
    if resource is None:
        return
    with suppress(OSError, ValueError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_computing(seconds: float) -> None:
    """SIGPROF ends this process after so many seconds of computing, also when its parent is gone; 0 is no limit."""
    if hasattr(signal, "setitimer"):  # Windows: the parent's deadline alone
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer until stdin ends. Ctrl-C ends this process without a word; the parent speaks."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _limit_memory()
    print("ready", flush=True)
    for request in _requests():
        _limit_computing(float(request["seconds"]))
        reply = json.dumps(answer(request))
        _limit_computing(0)
        print(reply, flush=True)
