"""The plain view, and when it is chosen."""

import io
import os

import pytest

from specdec_cli.decode.stats import RunStats
from specdec_cli.ui.dashboard import LiveView
from specdec_cli.ui.make import open_view
from specdec_cli.ui.stream import PlainView
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.view import View
from tests.ui_fakes import HEADER, Clock, FakeTty, a_round, say, spans_of

WILD = "[bold]ü 日本語[/foo] \x1b[31m\r\n"


class Pipe(io.TextIOWrapper):
    def __init__(self, encoding: str = "cp1252") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding)


def plain_view(stdout: io.TextIOBase, stderr: io.TextIOBase) -> View:
    environ = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    return open_view(HEADER, plain=True, stdout=stdout, stderr=stderr, environ=environ)


def run(view: View, *texts: str) -> None:
    stats = RunStats()
    with view:
        for text in texts:
            say(view, stats, text)
        view.finish([], stats, "stop")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a_pipe_gets_the_text_unchanged_as_utf8(encoding: str) -> None:
    out = Pipe(encoding)
    run(plain_view(out, io.StringIO()), WILD, "end")

    assert out.bytes.getvalue() == (WILD + "end").encode()


def test_text_is_there_as_soon_as_it_is_shown() -> None:
    out, stats = Pipe(), RunStats()
    view = plain_view(out, io.StringIO())
    say(view, stats, "now")

    assert out.bytes.getvalue() == b"now"


def test_a_terminal_gets_it_cleaned() -> None:
    tty = FakeTty()
    run(plain_view(tty, tty), WILD, "cut\r", "\nend")

    assert "\x1b" not in tty.getvalue()
    assert tty.display()[:3] == ["[bold]ü 日本語[/foo] ␛[31m", "cut", "end"]


def test_a_terminal_of_another_encoding_gets_ascii() -> None:
    tty = FakeTty()
    tty.encoding = "cp1252"
    run(plain_view(tty, tty), "ü 日本語")

    assert tty.getvalue().isascii()
    assert tty.display()[0] == "? ???"


def test_the_summary_goes_to_stderr_on_its_own_line() -> None:
    out, err = Pipe(), FakeTty()
    run(plain_view(out, err), "no line end")

    assert out.bytes.getvalue() == b"no line end"
    assert err.getvalue().startswith("\n2 tokens · ")
    assert " · 33% accepted" in err.getvalue()

    both = FakeTty()
    run(plain_view(both, both), "no line end")
    assert both.display()[0] == "no line end"
    assert both.display()[1].startswith("2 tokens · ")


def test_all_statistics_only_if_they_are_wanted() -> None:
    for verbose in (False, True):
        err = FakeTty()
        environ = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        run(open_view(HEADER, plain=True, stdout=Pipe(), stderr=err, environ=environ, verbose=verbose), "text")

        for told in ("stopped: end of answer", "acceptance 33%", "layers on GPU: 29/29 target"):
            assert (told in err.getvalue()) == verbose


def test_news_are_told_once() -> None:
    err = io.StringIO()
    view = plain_view(Pipe(), err)
    for text in ("old wheel", "old wheel", "no GPU"):
        view.notice(text)

    assert err.getvalue() == "old wheel\nno GPU\n"


def test_a_reader_that_went_away_is_an_error_of_show() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    view = PlainView(HEADER, Terminal(stream, {}), Terminal(io.StringIO(), {}))
    round_, stats = a_round(0), RunStats()
    stats.add(round_)

    with pytest.raises(BrokenPipeError):
        view.show(spans_of(round_, ["x"]), stats)

    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize(
    ("changes", "plain", "expected"),
    [
        ({}, False, LiveView),
        ({}, True, PlainView),
        ({"TERM": "dumb"}, False, PlainView),
        ({"COLUMNS": "19"}, False, PlainView),
        ({"LINES": "4"}, False, PlainView),
        ({"NO_COLOR": "1"}, False, LiveView),
    ],
)
def test_which_view(changes: dict[str, str], plain: bool, expected: type) -> None:
    tty = FakeTty()
    view = open_view(HEADER, plain=plain, stdout=tty, stderr=tty, environ={**tty.environ, **changes}, clock=Clock())

    assert type(view) is expected


def test_a_pipe_has_no_live_view() -> None:
    view = open_view(HEADER, plain=False, stdout=Pipe(), stderr=FakeTty(), environ={"TERM": "xterm"})

    assert type(view) is PlainView


def test_color_follows_the_environment() -> None:
    tty = FakeTty()

    assert Terminal(tty, {}).color
    assert Terminal(tty, {"NO_COLOR": ""}).color, "an empty NO_COLOR forbids nothing"
    assert not Terminal(tty, {"NO_COLOR": "1"}).color
    assert not Terminal(tty, {"TERM": "dumb"}).color
    assert not Terminal(io.StringIO(), {}).color
