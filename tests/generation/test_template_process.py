"""Templates that would take all time or all memory end in words, and what comes after them works."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.generation.chat import ChatTemplate
from specdec_cli.generation.template_process import TemplateProcess

SECONDS = 1.0
USER = {"role": "user", "content": "Hi"}
NESTED = "".join("{% for _" + str(i) + " in range(99999) %}" for i in range(3)) + "x" + "{% endfor %}" * 3

TOO_LONG = {
    "nested loops": NESTED,
    "nested loops that write nothing": NESTED.replace("x", ""),
    "a power": "{{ 10 ** (10 ** 10) }}",
    "digits of a power": "{{ (7 ** 999999) ** 99 }}",
    "recursion by two": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2] if loop.depth < 60 else []) }}{% endfor %}",
    "joins": "{{ (range(99999) | list * 99) | sum(start=0) }}" + "{{ (range(99999) | list * 500) | sort | join }}",
}
TOO_MUCH = {
    "a long text": "{{ 'a' * 10 ** 10 }}",
    "a doubled text": "{% set n = namespace(s='ab') %}{% for _ in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "a doubled list": "{% set n = namespace(s=[1]) %}{% for _ in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "padding": "{{ '%999999999d' % 1 }}",
    "padding by a filter": "{{ 'a' | center(999999999) }}",
    "indentation": "{{ 'a\na' | indent(999999999) }}",
    "output": "{% for _ in range(60000) %}{{ 'a' * 6000 }}{% endfor %}",
}


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    process = TemplateProcess(seconds=SECONDS)
    yield process
    process.close()


def rendered(process: TemplateProcess, source: str) -> str:
    now = datetime(2024, 7, 26, tzinfo=UTC)
    template = ChatTemplate(source, bos_text="", eos_text="", now=lambda: now, options={}, process=process)
    return template.render([USER], add_generation_prompt=True).text


@pytest.mark.parametrize("source", TOO_LONG.values(), ids=TOO_LONG)
def test_time_is_bounded(process: TemplateProcess, source: str) -> None:
    rendered(process, "{{ messages[0].content }}")
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"(takes more than 1 seconds|MB of memory)\.") as caught:
        rendered(process, source + "{{ messages[0].content }}")
    assert time.monotonic() - began < 8 * SECONDS, "it is not asked a second time"
    assert caught.value.hint


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_memory_is_bounded(process: TemplateProcess, source: str) -> None:
    with pytest.raises(UsageError, match=r"memory|characters|takes more than"):
        rendered(process, source + "{{ messages[0].content }}")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content }}{{ '\\ud800' }}", "surrogates"),
        ("{% if true %}" * 3000 + "{% endif %}" * 3000, "."),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "."),
        ("{{ " + "-" * 200000 + "1 }}", "."),
        ("{{ 1 }}" * 200_000, "longer than 1,048,576 characters"),
        ("{{ raise_exception('No system role.') }}", r"No system role\.$"),
        ("{{ raise_exception('a' * 10000) }}", "a{300}.$"),
        ("{{ raise_exception(range(99999) | list) }}", "."),
    ],
)
def test_other_oddities_are_errors_in_words(process: TemplateProcess, source: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        rendered(process, source)
    assert ".." not in str(caught.value)


def test_after_an_attack_the_next_template_is_rendered(process: TemplateProcess) -> None:
    with pytest.raises(UsageError):
        rendered(process, NESTED)
    assert rendered(process, "[{{ messages[0].content }}]") == "[Hi]"


def test_a_process_that_was_killed_is_replaced() -> None:
    process = TemplateProcess()
    assert rendered(process, "[{{ messages[0].content }}]") == "[Hi]"
    kill(process, signal.SIGKILL)
    assert rendered(process, "({{ messages[0].content }})") == "(Hi)"
    process.close()


def test_ctrl_c_ends_a_template_that_hangs() -> None:
    process = TemplateProcess(seconds=30)
    rendered(process, "{{ messages[0].content }}")
    threading.Timer(0.3, kill, (process, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        rendered(process, NESTED)
    assert time.monotonic() - began < 10


def test_the_current_folder_lends_no_modules(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jinja2", "json", "re"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    process = TemplateProcess()
    assert rendered(process, "[{{ messages[0].content }}]") == "[Hi]"
    process.close()


def kill(process: TemplateProcess, number: int) -> None:
    """As the terminal does with every process in its foreground."""
    assert process.pid is not None
    os.kill(process.pid, number)
