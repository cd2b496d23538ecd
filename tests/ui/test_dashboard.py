"""The live view, seen through the screen of a terminal."""

import io
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyte
import pytest

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.ui.dashboard import LiveView
from specdec_cli.ui.make import open_view
from specdec_cli.ui.paint import Line
from specdec_cli.ui.panel import panel
from specdec_cli.ui.view import Header
from tests.ui_fakes import HEADER, Clock, FakeTty, a_round, everything, live, say, sentences, spans_of

SIZES = [(80, 24), (40, 10), (120, 40), (20, 5)]
LEAST_PAUSE, PANEL_PAUSE = 0.1, 0.4


def run(tty: FakeTty, texts: list[str], *, clock: Clock | None = None, finish: bool = True) -> RunStats:
    """An answer of one round per text, at a pace that draws every round."""
    clock = clock or Clock()
    stats = RunStats()
    with live(tty, clock) as view:
        for text in texts:
            clock.now += LEAST_PAUSE
            say(view, stats, text)
        if finish:
            view.finish([], stats, "stop")
    return stats


def drawn(tty: FakeTty, *rounds: Round, header: Header = HEADER) -> list[str]:
    """The window while the answer is being written."""
    clock, stats = Clock(), RunStats()
    view = LiveView(header, tty.terminal, introduce=False, clock=clock)
    with view:
        for round_ in rounds:
            clock.now += PANEL_PAUSE
            stats.add(round_)
            view.show([], stats)
        return tty.display()


def answer_words(tty: FakeTty) -> list[str]:
    return [word for row in tty.everything() for word in row.split() if word.startswith("word")]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_whole_answer_stays_exactly_once_and_the_panel_goes(columns: int, rows: int) -> None:
    tty = FakeTty(columns, rows)
    run(tty, list(sentences(300)))

    seen = tty.everything()
    assert answer_words(tty) == [f"word{i:03d}" for i in range(300)]
    assert " ".join(seen).replace("  ", " ").endswith("600 tokens · 100 tok/s · 33% accepted")
    assert not [row for row in seen if "last pass" in row or "ms: draft" in row]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_live_region_never_outgrows_the_window(columns: int, rows: int) -> None:
    tty, clock, stats = FakeTty(columns, rows), Clock(), RunStats()
    with live(tty, clock) as view:
        for text in sentences(60):
            clock.now += LEAST_PAUSE
            say(view, stats, text)
            cursor = tty.screen.cursor
            region = tty.display()[cursor.y :]
            assert cursor.x == 0
            assert sum(map(bool, region[1:])) == (8 if rows > 16 else 3 if rows > 5 else 2), "the panel is whole"
            assert len("\n".join(region).rstrip().splitlines()) <= rows - 1


def test_a_window_that_became_tiny_is_not_outgrown_either() -> None:
    tty, clock, stats = FakeTty(80, 24), Clock(), RunStats()
    with live(tty, clock, introduce=False) as view:
        say(view, stats, "word000 ")
        tty.resize(20, 2)
        clock.now += LEAST_PAUSE
        say(view, stats, "word001")
        assert tty.display() == ["word000 word001", ""]
        view.finish([], stats, "stop")

    assert answer_words(tty) == ["word000", "word001"]


def test_the_full_panel_says_what_the_run_does() -> None:
    seen = drawn(FakeTty(80, 24), a_round(0, drafted=0, seconds=0.25), a_round(3), a_round(1))
    assert seen[1:9] == [
        "─ 150 tok/s · 67% accepted ─ 7 tokens ─",
        " passes      ◆ ■■■◆ ■□□◆",
        " last pass   1 of 3 drafted, corrected",
        " per pass    2.33 tokens in 3 passes",
        " accepted    █▃",
        " position    █▅▅  100 50 50%",
        " ms per pass draft 4.0, verify 14.0",
        " time        40.0 ms",
    ]
    assert not any(seen[9:])


def test_the_gain_stands_in_the_first_line_with_its_times_below() -> None:
    plain = [a_round(0, drafted=0)] * 3
    seen = drawn(FakeTty(80, 24), *plain, *[a_round(3)] * 6)

    assert seen[1].startswith("─ 162 tok/s · 100% accepted · ~2.6x plain ─")
    assert seen[8] == " time        160 ms instead of 416 ms (±20%)"
    slow = [a_round(0, seconds=0.1)] * 6
    assert " · ~0.20x plain: slower ─" in drawn(FakeTty(80, 24), *plain, *slow)[1]
    assert drawn(FakeTty(40, 10), *plain, *[a_round(3)] * 6)[1] == "162 tok/s · ~2.6x plain · 100% accepted"


@pytest.mark.parametrize("columns", [80, 120])
def test_acceptance_of_each_source_where_several_take_turns(columns: int) -> None:
    rounds = [replace(a_round(n), source=source) for n, source in ((3, "ngram"), (1, "model"), (0, "model"))]
    assert drawn(FakeTty(columns, 40), *rounds)[5] == " accepted    model 17%, ngram 100%"
    assert drawn(FakeTty(columns, 40), rounds[0], rounds[0])[5] == " accepted    █"


def test_a_last_pass_in_words() -> None:
    def last_pass(round_: Round) -> str:
        return drawn(FakeTty(80, 24), round_)[3].removeprefix(" last pass   ")

    assert last_pass(a_round(3)) == "3 of 3 drafted, bonus"
    assert last_pass(a_round(0)) == "0 of 3 drafted, corrected"
    assert last_pass(a_round(2, own=None)) == "2 of 3 drafted"
    assert last_pass(a_round(0, drafted=0)) == "no draft"


def test_all_but_the_headline_fits_in_half_a_window() -> None:
    """Where a window is made narrower, long rows become two, and push those above out of reach."""
    long = replace(a_round(11, drafted=12, seconds=0.5), source="model")
    other = replace(a_round(15, drafted=15, own=None), source="lookahead")
    seen = drawn(FakeTty(120, 40), *[long, other] * 300)

    assert max(map(len, seen[2:])) <= 40


def test_a_small_window_gets_the_most_telling_lines() -> None:
    assert drawn(FakeTty(40, 10), a_round(0, drafted=0), a_round(3), a_round(1))[1:5] == [
        "150 tok/s · 67% accepted",
        "◆ ■■■◆ ■□□◆",
        "ms: draft 4.0, verify 14.0",
        "",
    ]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_what_does_not_change_is_told_once_above_the_answer(columns: int, rows: int) -> None:
    tty, clock, stats = FakeTty(columns, rows), Clock(), RunStats()
    with live(tty, clock) as view:
        for text in sentences(30):
            clock.now += LEAST_PAUSE
            say(view, stats, text)
        view.finish([], stats, "stop")

    above, _, below = " ".join(" ".join(tty.everything()).split()).partition("word000")
    assert above == (
        "big-Q4_K_M + small-Q8_0, context 4096, greedy layers on GPU: 29/29 target, 25/25 draft; "
        "memory: target 4.36 GiB + 224 MiB cache, draft 506 MiB + 48 MiB cache "
        "green text was drafted and accepted, plain text is the target's own "
    )
    assert "cache" not in below


def test_a_chats_second_answer_is_not_introduced() -> None:
    assert drawn(FakeTty(80, 24))[1] == "─ big-Q4_K_M + small-Q8_0 ─ prompt: 37 tokens ─"


def test_before_the_first_token_there_are_dashes_not_zeros() -> None:
    seen = drawn(FakeTty(80, 24))

    assert "prompt: 37 tokens" in seen[1]
    assert seen[3].startswith(" last pass   -")


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_off_is_shown_at_every_size(columns: int, rows: int) -> None:
    tty, clock, stats = FakeTty(columns, rows), Clock(), RunStats()
    with live(tty, clock) as view:
        stats.add(Round(drafted=(), n_accepted=0, own=1, off_reason="tie"))
        view.show([], stats)
        (where,) = [y for y, row in enumerate(tty.display()) if "speculation OFF" in row]
        x = tty.display()[where].index("speculation")
        assert tty.screen.buffer[where][x].reverse
        view.finish([], stats, "context")

    assert "speculation OFF (tie)" in "\n".join(tty.everything()).replace("\n(", " (")


def test_names_from_files_cannot_break_the_panel() -> None:
    header = Header.from_fields({**fields(HEADER), "drafter": "a\nb\x1b[2J\x9b", "draft": None})
    seen = drawn(FakeTty(80, 24), header=header)

    assert "big-Q4_K_M + a b␛[2J\ufffd" in seen[1]


def test_header_survives_json() -> None:
    import json

    assert Header.from_fields(json.loads(json.dumps(fields(HEADER)))) == HEADER


def fields(header: Header) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(header)


@pytest.mark.parametrize(("no_color", "mark"), [("", "fg"), ("1", "underscore")])
def test_as_many_tokens_are_marked_as_were_accepted(no_color: str, mark: str) -> None:
    tty, clock, stats = FakeTty(), Clock(), RunStats()
    tty.environ["NO_COLOR"] = no_color
    with live(tty, clock, introduce=False) as view:
        for n_accepted, texts in [(0, ["a"]), (3, ["b", "c", "d", "e"]), (1, ["f", "g"])]:
            round_ = a_round(n_accepted)
            stats.add(round_)
            clock.now += LEAST_PAUSE
            view.show(spans_of(round_, texts), stats)
        cells = [tty.screen.buffer[0][x] for x in range(7)]

    marked = [c.data for c in cells if getattr(c, mark) not in ("default", False)]
    assert [c.data for c in cells] == list("abcdefg")
    assert marked == ["b", "c", "d", "f"]
    assert len(marked) == stats.accepted
    if no_color:
        assert {c.fg for row in tty.screen.buffer.values() for c in row.values()} == {"default"}


def test_model_text_is_shown_literally() -> None:
    tty = FakeTty()
    run(tty, ["[/foo] [bold]x :smile:\n", "\x1b[2J\x1b[?25h\x1b]0;title\x07\n", "日本語\tx\r\nlast\r"])

    assert tty.everything()[4:8] == [
        "[/foo] [bold]x :smile:",
        "␛[2J␛[?25h␛]0;title␇",
        "日本語  x",
        "last␍",
    ]
    assert tty.screen.title == ""


@pytest.mark.parametrize(
    "sizes",
    [
        [(80, 24), (140, 50)],
        [(80, 24), (100, 24)],
        [(80, 24), (80, 10), (80, 24)],
        [(80, 24), (60, 12)],
        [(80, 24), (30, 24), (60, 40)],
        [(120, 40), (40, 10), (120, 40)],
    ],
)
def test_a_resize_leaves_no_copies_and_loses_no_text(sizes: list[tuple[int, int]]) -> None:
    tty, clock, stats = FakeTty(*sizes[0]), Clock(), RunStats()
    with live(tty, clock) as view:
        for number, text in enumerate(sentences(120)):
            if number in (40, 80) and number // 40 < len(sizes):
                tty.resize(*sizes[number // 40])
            clock.now += LEAST_PAUSE
            say(view, stats, text)
            assert len([row for row in tty.everything() if " tok/s" in row]) == 1
        view.finish([], stats, "stop")

    words = [word for word in answer_words(tty) if len(word) == len("word000")]
    assert words == sorted(set(words)), "nothing is there twice"
    if [columns for columns, _ in sizes] == sorted(columns for columns, _ in sizes):
        assert words == [f"word{i:03d}" for i in range(120)]
    else:
        # This terminal cuts what stands beyond its new edge, and nothing else may be missing.
        assert [w for w in words if w > "word080"] == [f"word{i:03d}" for i in range(81, 120)]


def test_at_most_ten_draws_a_second_whatever_the_token_rate() -> None:
    clock = Clock()
    tty, stats = FakeTty(clock=clock), RunStats()
    with live(tty, clock) as view:
        for text in sentences(4000):
            clock.now += 0.001
            say(view, stats, text)
        assert 38 <= tty.frames <= 41 + 1


@pytest.mark.parametrize(("cost", "figures"), [(0.005, 0.0), (0.00025, 0.00065), (0.0003, 0.003), (0.0, 0.0008)])
def test_drawing_takes_a_quarter_of_a_hundredth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, cost: float, figures: float
) -> None:
    """Also where most draws show the figures of before, and those that work out new ones cost more."""
    clock, spent = Clock(), 0.0

    def slow_panel(*args: Any) -> list[Line]:
        nonlocal spent
        clock.now += figures
        spent += figures
        return panel(*args)

    monkeypatch.setattr("specdec_cli.ui.dashboard.panel", slow_panel)
    tty, stats = FakeTty(clock=clock, cost=cost), RunStats()
    with live(tty, clock) as view:
        before, spent = tty.frames, 0.0
        while clock.now < 60:
            clock.now += 0.01
            say(view, stats, "x ")
        assert 60 * 0.0018 <= (tty.frames - before) * cost + spent <= 60 * 0.00275


def test_figures_change_less_often_than_text_but_off_is_told_at_once() -> None:
    tty, clock, stats = FakeTty(80, 24), Clock(), RunStats()
    with live(tty, clock) as view:
        seen = []
        for number in range(9):
            clock.now += LEAST_PAUSE
            say(view, stats, f"w{number} ")
            seen.append(next(row for row in tty.display() if "per pass " in row and "ms" not in row))
            assert f"w{number}" in " ".join(tty.everything())
        assert 2 <= len(set(seen)) <= 4
        stats.add(replace(a_round(0), off_reason="it does not pay"))
        clock.now += LEAST_PAUSE
        view.show([], stats)
        assert "it does not pay" in " ".join(tty.display())


def test_one_slow_draw_does_not_stop_the_picture() -> None:
    clock = Clock()
    tty, stats = FakeTty(clock=clock), RunStats()
    with live(tty, clock) as view:
        for number in range(100):
            tty._cost = 0.5 if number == 50 else 0.0
            clock.now += LEAST_PAUSE
            before = tty.frames
            say(view, stats, "x ")
            assert tty.frames == before + 1


def test_the_first_text_is_drawn_at_once() -> None:
    clock = Clock()
    tty = FakeTty(clock=clock, cost=1.0)
    with live(tty, clock) as view:
        say(view, RunStats(), "first ")
        assert "first" in tty.display()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, None])
def test_the_cursor_is_back_on_every_way_out(error: type[BaseException] | None) -> None:
    tty, clock, stats = FakeTty(), Clock(), RunStats()

    def answer() -> None:
        with live(tty, clock) as view:
            say(view, stats, "drawn ")
            assert tty.screen.cursor.hidden
            say(view, stats, "pending")
            if error is not None:
                raise error
            view.finish([], stats, "stop")

    if error is None:
        answer()
    else:
        with pytest.raises(error):
            answer()

    assert not tty.screen.cursor.hidden
    written = tty.getvalue()
    assert written[written.rindex("\x1b") :] == "\x1b[?25h"
    assert tty.everything()[4] == "drawn pending"
    assert len(tty.everything()) == (7 if error is None else 5), "no panel is left"
    assert tty.screen.cursor.x == 0


def test_the_cursor_is_back_when_drawing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    tty = FakeTty()
    monkeypatch.setattr("specdec_cli.ui.dashboard.panel", broken)
    with pytest.raises(ZeroDivisionError), live(tty):
        pass

    assert not tty.screen.cursor.hidden


def test_interrupted_in_the_first_frame_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = FakeTty()
    write = tty.write

    def interrupted(text: str) -> int:
        if "last pass" in text:
            monkeypatch.setattr(tty, "write", write)
            write(text)
            raise KeyboardInterrupt
        return write(text)

    monkeypatch.setattr(tty, "write", interrupted)
    with pytest.raises(KeyboardInterrupt), live(tty):
        pass

    assert tty.everything()[3:] == ["green text was drafted and accepted, plain text is the target's own"]
    assert not tty.screen.cursor.hidden


@pytest.mark.parametrize("stderr", [FakeTty(), io.StringIO()], ids=["terminal", "file"])
def test_what_others_print_to_stderr_goes_above_or_where_it_was_sent(
    stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tty = FakeTty()
    monkeypatch.setattr(sys, "stderr", stderr)
    with open_view(HEADER, plain=False, stdout=tty, stderr=stderr, environ=tty.environ):
        print("stray", file=sys.stderr)

    assert sys.stderr is stderr
    assert tty.everything()[4:] == (["stray"] if stderr.isatty() else [])
    assert stderr.getvalue() == ("" if stderr.isatty() else "stray\n")


def test_news_stand_above_once() -> None:
    tty, clock, stats = FakeTty(), Clock(), RunStats()
    with live(tty, clock) as view:
        say(view, stats, "answer")
        view.notice("no GPU \x1b[1m")
        view.notice("no GPU \x1b[1m")
        view.finish([], stats, "stop")

    assert tty.everything()[4:6] == ["no GPU ␛[1m", "answer"]


def test_another_encoding_gets_ascii() -> None:
    tty = FakeTty()
    tty.encoding = "cp1252"
    run(tty, ["ü 日本語 "] * 5, finish=False)
    run(tty, ["x"])

    assert tty.getvalue().isascii()
    assert "? ??? ? ??? ? ??? ? ??? ? ???" in tty.everything()


CHILD = """
import os, sys, time
from tests.ui_fakes import HEADER, say, sentences
from specdec_cli.decode.stats import RunStats
from specdec_cli.ui.make import open_view

stats, words = RunStats(), sentences(1000)
with open_view(HEADER, plain=False, stdout=sys.stdout, stderr=sys.stderr, environ=os.environ) as view:
    for _ in range(int(sys.argv[2])):
        say(view, stats, next(words))
    time.sleep(0.5)
    say(view, stats, next(words))
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    for _ in range(40):
        say(view, stats, next(words))
    view.finish([], stats, "stop")
"""


def child(go: Path, n_before: int = 200) -> tuple[list[str], dict[str, str]]:
    top = str(Path(__file__).parent.parent.parent)
    return [sys.executable, "-c", CHILD, str(go), str(n_before)], {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONPATH": top,
    }


def read_until(fd: int, wanted: bytes | None, seconds: float = 10) -> bytes:
    """What a pty writes until `wanted` was there; until its end with None."""
    seen, end = b"", time.monotonic() + seconds
    while wanted is None or wanted not in seen:
        assert time.monotonic() < end, f"never came: {wanted!r} in {seen!r}"
        if select.select([fd], [], [], 0.1)[0]:
            try:
                piece = os.read(fd, 65536)
            except OSError:  # Linux reports the end of a pty as an input/output error
                piece = b""
            if not piece:
                assert wanted is None, f"ended without {wanted!r}: {seen!r}"
                return seen
            seen += piece
    return seen


def test_interrupted_in_a_real_terminal_the_cursor_comes_back(tmp_path: Path) -> None:
    command, environ = child(tmp_path / "never")
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environ) as process:
        os.close(slave)
        seen = read_until(master, b"word200")
        process.send_signal(signal.SIGINT)
        seen += read_until(master, None)
    os.close(master)

    screen = pyte.HistoryScreen(80, 24)
    pyte.ByteStream(screen).feed(seen)
    assert b"\x1b[?25l" in seen
    assert not screen.cursor.hidden
    assert seen[seen.rindex(b"\x1b") :].startswith(b"\x1b[?25h")
    text = "\n".join(everything(screen))
    assert "KeyboardInterrupt" in text
    assert [text.count(f"word{i:03d}") for i in range(201)] == [1] * 201
    assert "last pass" not in text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, a terminal that reflows its lines")
@pytest.mark.parametrize(("n_before", "size"), [(200, (40, 24)), (200, (120, 40)), (3, (40, 24))])
def test_a_terminal_that_reflows_keeps_no_copies(tmp_path: Path, n_before: int, size: tuple[int, int]) -> None:
    command, environ = child(tmp_path / "go", n_before)

    def tmux(*words: str) -> str:
        base = ["tmux", "-S", str(tmp_path / "socket"), "-f", os.devnull]
        return subprocess.run([*base, *words], env=environ, check=True, capture_output=True, text=True).stdout

    def shown() -> str:
        return tmux("capture-pane", "-p", "-J", "-S", "-500")

    def wait_until(happened: Callable[[], bool]) -> None:
        for _ in range(1200):
            if happened():
                return
            time.sleep(0.05)
        raise AssertionError(shown())

    tmux("new-session", "-d", "-x", "80", "-y", "24", *command, ";", "set", "-g", "remain-on-exit", "on")
    try:
        wait_until(lambda: f"word{n_before:03d}" in shown())
        tmux("resize-window", "-x", str(size[0]), "-y", str(size[1]))
        (tmp_path / "go").touch()
        # Not by tmux's own line "Pane is dead": a resize may draw over it.
        wait_until(lambda: tmux("display-message", "-p", "#{pane_dead}") == "1\n")
        seen = shown()
    finally:
        tmux("kill-server")

    n_all = n_before + 41
    assert [seen.count(f"word{i:03d}") for i in range(n_all)] == [1] * n_all
    assert "last pass" not in seen
    assert "─" not in seen
