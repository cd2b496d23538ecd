"""`specdec` at a terminal: what a person sees, what Ctrl-C does, and what is left behind."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.cli import Models, run_json
from tests.terminals import FRAME, HIDE_CURSOR, PANEL, SHOW_CURSOR, Terminal

PROMPT_TO_STOP = 3.0
"""Seconds that an interrupted run may take to end on a busy machine. Alone it needs a tenth of them."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("pty"))


def letters(n: int) -> list[str]:
    """What `ring` writes after "e"."""
    return ["abcde"[i % 5] for i in range(n)]


# --- the dashboard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (24, 5)])
def test_answer_stays_in_the_history_and_the_panel_goes(models: Models, columns: int, rows: int) -> None:
    flags = (models.words, "a b", "--raw", "--draft", models.draft, "-n", 400, "--seed", 9)
    with Terminal("run", *flags, columns=columns, rows=rows) as terminal:
        assert terminal.end() == 0
        terminal.assert_clean()
        assert "".join(terminal.answer) == run_json(*flags).document["text"].replace(" ", "")
        assert terminal.raw.count(FRAME) >= 2


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10)])
def test_panel_stands_under_the_growing_text(models: Models, columns: int, rows: int) -> None:
    flags = (models.endless, "e", "--draft", models.ring_draft)
    with Terminal("run", *flags, columns=columns, rows=rows) as terminal:
        terminal.wait_for(lambda: len(terminal.screen.history.top) > 5)
        terminal.wait_for(FRAME)
        terminal.read_for(0.05)  # the rest of that frame
        seen = [line for line in terminal.screen.display if any(word in line for word in PANEL)]
        assert 1 <= len(seen) < rows
        above = "\n".join(terminal.lines[:-rows])
        assert [word for word in PANEL if word in above] == []
        terminal.send(b"\x03")
        assert terminal.end() == 130
        terminal.assert_clean()


def test_panel_tells_what_the_run_does(models: Models) -> None:
    with Terminal("run", models.endless, "e", "--draft", models.ring_draft, "-k", 3, "--seed", 5) as terminal:
        figures = (
            r" tok/s · 100% accepted · ~[\d.]+x plain",
            r"passes .*■■■◆ ■■■◆",
            r"last pass +3 of 3 drafted, bonus",
            r"per pass +[1-4]\.\d\d tokens",
        )
        terminal.wait_for(lambda: all(re.search(figure, terminal.text) for figure in figures))
        terminal.send(b"\x03")
        terminal.end()


def test_what_stays_the_same_is_told_once_before_the_answer(models: Models) -> None:
    with Terminal("run", models.endless, "e", "--draft", models.ring_draft, "-n", 40, "--seed", 5) as terminal:
        assert terminal.end() == 0
    for told in (
        "slow.gguf + ring-draft.gguf, context 4096",
        "layers on GPU: 0/9 target, 0/2 draft",
        "temperature 0.8",
        "green text was drafted and accepted, plain text is the target's own",
    ):
        assert terminal.text.count(told) == 1, terminal.text
    assert re.search(r"memory: target \d+ MiB \+ \d+ MiB cache", terminal.text)
    assert re.search(
        r"40 tokens · [\d.]+ tok/s · ~[\d.]+x plain(: slower)? · 100% accepted · seed 5 · token limit reached",
        " ".join(terminal.lines),
    )


def test_verbose_tells_all_figures_after_the_answer(models: Models) -> None:
    with Terminal("run", models.ring, "e", "--draft", models.ring_draft, "-n", 40, "-v") as terminal:
        assert terminal.end() == 0
        assert "\nstopped: token limit reached\n40 tokens, " in terminal.text
        assert "x plain decoding (" in terminal.text


def test_accepted_tokens_are_coloured_and_counted(models: Models) -> None:
    flags = (models.words, "a b", "--raw", "-k", 4, "--draft", models.draft, "-n", 60, "--seed", 9)
    with Terminal("run", *flags) as terminal:
        assert terminal.end() == 0
        rows = [*terminal.screen.history.top, *(terminal.screen.buffer[y] for y in range(24))]
        cells = [cell for row in rows for _, cell in sorted(row.items())]
    green = sum(cell.fg == "green" and cell.data.isalnum() for cell in cells)
    document = run_json(*flags).document
    assert green == document["stats"]["accepted"] == document["origins"].count("draft")


def test_ten_frames_a_second_at_most(models: Models) -> None:
    began = time.monotonic()
    with Terminal("run", models.endless, "e", "-n", 200) as terminal:
        assert terminal.end() == 0
    assert terminal.raw.count(FRAME) <= 10 * (time.monotonic() - began) + 3


def test_speculation_off_is_shown_while_it_runs(models: Models) -> None:
    with Terminal("run", models.endless, "e", "--draft", "none") as terminal:
        terminal.wait_for(lambda: "speculation OFF (--draft none)" in "\n".join(terminal.screen.display))
        terminal.send(b"\x03")
        terminal.end()
        assert terminal.lines[-1] == "speculation OFF (--draft none)"


def test_resize_while_it_runs(models: Models) -> None:
    with Terminal("run", models.endless, "e", "-n", 800, "--draft", models.ring_draft) as terminal:
        for size in ((100, 30), (60, 14), (40, 10), (90, 24)):
            terminal.wait_for(FRAME)
            terminal.resize(*size)
        assert terminal.end() == 0
        terminal.assert_clean()


def test_model_text_is_data(models: Models) -> None:
    """Neither markup nor escapes of the model reach the terminal, in the live view or plainly."""
    for plain in ((), ("--plain",)):
        with Terminal("run", models.bytes, "x", "-n", 20, *plain) as terminal:
            assert terminal.end() == 0
            assert "␛c[red]\ufffd␇␛c[red]\ufffd␇" in terminal.text
            assert b"\x1bc" not in terminal.raw
            assert b"\x07" not in terminal.raw
            assert b"\xc2\x9b" not in terminal.raw


def test_document_on_a_terminal_is_data_too(models: Models) -> None:
    with Terminal("run", models.bytes, "x", "-n", 20, "--json") as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw
        assert b"\xc2\x9b" not in terminal.raw


@pytest.mark.parametrize(
    ("flags", "env"), [(("--plain",), {}), ((), {"TERM": "dumb"}), (("--plain",), {"FORCE_COLOR": "1"})]
)
def test_plain_text_has_no_escapes(models: Models, flags: tuple[str, ...], env: dict[str, str]) -> None:
    with Terminal("run", models.ring, "e", "-n", 60, *flags, env=env) as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw
        assert terminal.answer[-60:] == letters(60)


def test_no_color_leaves_out_colours_only(models: Models) -> None:
    flags = ("run", models.words, "a", "--draft", models.draft, "-n", 60)
    with Terminal(*flags, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        terminal.assert_clean()
    assert FRAME in terminal.raw
    assert not re.search(rb"\x1b\[[0-9;]*[34][0-7]m", terminal.raw)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_console_that_is_not_utf8(models: Models, encoding: str) -> None:
    with Terminal("run", models.wide, "x", "-n", 27, env={"PYTHONIOENCODING": encoding}) as terminal:
        assert terminal.end() == 0
        terminal.assert_clean()
    assert terminal.raw.isascii()
    assert "?????????" in terminal.text


# --- the ways out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [(), ("--plain",)])
@pytest.mark.parametrize("draft", ["none", "ring_draft"])
def test_ctrl_c_while_writing(models: Models, plain: tuple[str, ...], draft: str) -> None:
    with Terminal(
        "run", models.endless, "e", "--ctx", 20000, "--draft", getattr(models, draft, draft), *plain
    ) as terminal:
        terminal.wait_for(lambda: "a b c d e" in terminal.text)
        terminal.read_for(0.3)
        asked = time.monotonic()
        terminal.send(b"\x03")
        assert terminal.end() == 130
        assert time.monotonic() - asked < PROMPT_TO_STOP
        terminal.assert_clean()
        answer = [word for word in terminal.answer if word in "abcde"]
        assert answer[-len(answer) :] == letters(len(answer))
        assert "interrupted" in "".join(terminal.lines)
        assert " tok/s · " in terminal.text
        assert "Error" not in terminal.text


def test_what_is_waited_for_is_told_and_gone_afterwards(models: Models) -> None:
    with Terminal("run", models.endless, "e", "-n", 5, "--draft", models.ring_draft) as terminal:
        terminal.wait_for(b"Loading slow.gguf + ring-draft.gguf (")
        assert terminal.end() == 0
        terminal.assert_clean()
        assert terminal.raw.index(b"Loading ") < 10  # the first thing of all
        assert "Loading" not in terminal.text
    for flags in (("run", models.endless, "--ctx", 1), ("run", "/nowhere/model.gguf")):
        with Terminal(*flags, "e") as terminal:
            assert terminal.end() != 0
            assert "Loading" not in terminal.text
    bench = ("bench", models.words, "--draft", models.draft, "-k", 2, "--kinds", "code", "-n", 8, "--temp", 0)
    with Terminal(*bench, "--repeats", 1) as terminal:
        terminal.wait_for(b"Loading words.gguf + draft.gguf (")
        terminal.send(b"\x03")
        terminal.end()
        assert "Loading" not in terminal.text


@pytest.mark.parametrize("leads", [True, False])
def test_in_the_background_the_terminal_is_left_alone(models: Models, leads: bool) -> None:
    """As with `timeout` and `&`, which SIGTTOU stopped; and as with `setsid`, where a shell has the terminal."""
    job = ("bash", "-c", 'set -m; "$@" & wait $!', "bash") if leads else ()
    with Terminal("run", models.endless, "e", "--ctx", 20000, leads=leads, before=job) as terminal:
        terminal.wait_for(lambda: "a b c d e" in terminal.text)
        assert terminal.modes_now == terminal.modes
        names = f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children"
        child = Path(names).read_text().split()[0] if leads else terminal.process.pid
        os.kill(int(child), signal.SIGTERM)
        assert terminal.end() == 143
        terminal.read_for(0.3)
        terminal.assert_clean()


@pytest.mark.parametrize("seconds", [0.0, 0.4, 1.0])
def test_sigterm_at_any_moment_is_no_traceback(models: Models, seconds: float) -> None:
    with Terminal("run", models.endless, "e", "--ctx", 20000) as terminal:
        terminal.read_for(seconds)
        for _ in range(3):
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() in (143, -signal.SIGTERM)
        terminal.read_for(0.2)
        assert "Traceback" not in terminal.text
        assert terminal.modes_now == terminal.modes


def test_what_is_typed_meanwhile_does_not_stand_in_the_answer(models: Models) -> None:
    with Terminal("run", models.endless, "e", "--ctx", 20000) as terminal:
        terminal.wait_for(lambda: "a b c d e" in terminal.text)
        terminal.send(b"impatient\n")
        terminal.read_for(0.5)
        terminal.send(b"\x03")
        assert terminal.end() == 130
        assert "impatient" not in terminal.text
        assert terminal.modes_now == terminal.modes


def test_sigterm_while_writing(models: Models) -> None:
    with Terminal("run", models.endless, "e", "--ctx", 20000) as terminal:
        terminal.wait_for(lambda: "a b c d e" in terminal.text)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        terminal.assert_clean()
        assert " · interrupted" in " ".join(terminal.lines)


def test_ctrl_c_while_reading_a_long_prompt(smollm2_q4_0: Path, tmp_path: Path) -> None:
    """One pass of 4096 tokens takes many seconds: only llama.cpp itself can end it sooner."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("The quick brown fox jumps over the lazy dog. " * 600, encoding="utf-8")
    with Terminal("run", smollm2_q4_0, "-f", prompt, "--ctx", 8192, "--batch", 4096) as terminal:
        terminal.wait_for(b"prompt: 60")
        terminal.read_for(1.0)
        assert terminal.process.poll() is None
        asked = time.monotonic()
        terminal.send(b"\x03")
        assert terminal.end() == 130
        assert time.monotonic() - asked < PROMPT_TO_STOP
        terminal.assert_clean()
        assert "\n0 tokens · " in terminal.text
        assert " · interrupted" in " ".join(terminal.lines)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_death_without_a_chance_gives_the_terminal_back(models: Models, number: signal.Signals) -> None:
    """SIGABRT is what a failed assertion of llama.cpp ends with."""
    with Terminal("run", models.endless, "e", "--ctx", 20000, leads=False) as terminal:
        terminal.wait_for(lambda: "a b c d e" in terminal.text)
        assert HIDE_CURSOR in terminal.raw
        terminal.process.send_signal(number)
        assert terminal.end() == -number
        terminal.wait_for(lambda: terminal.text.endswith("llama.cpp said last."))
        terminal.assert_clean()
        assert terminal.raw.rindex(SHOW_CURSOR) > terminal.raw.rindex(HIDE_CURSOR)
        assert terminal.modes_now == terminal.modes
        assert "\nspecdec ended without a chance to clean up" in terminal.text


def test_refusal_at_a_terminal_is_two_lines(models: Models) -> None:
    with Terminal("run", models.ring, "e", "--ctx", 1) as terminal:
        assert terminal.end() == 2
        assert b"\x1b" not in terminal.raw
        assert "Error: The prompt has 2 tokens" in terminal.text


def test_text_in_a_file_leaves_the_summary_to_the_terminal(models: Models, tmp_path: Path) -> None:
    text = tmp_path / "text"
    with text.open("wb") as file, Terminal("run", models.bytes, "x", "-n", 10, stdout=file.fileno()) as terminal:
        assert terminal.end() == 0
        assert re.search(r"10 tokens · .* · token limit reached", "".join(terminal.lines))
        assert b"\x1b" not in terminal.raw
    assert text.read_bytes() == b"\x1bc[red]\xc2\x9b\x07"  # a file gets what the model wrote


def piped(text: str) -> int:
    """A pipe that holds `text` and ends."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader


def test_piped_input_is_no_chat(models: Models) -> None:
    with Terminal("run", models.chat, stdin=piped("one\ntwo\n")) as terminal:
        assert terminal.end() == 0
        terminal.assert_clean()
        assert terminal.answer[-5:] == ["a", "b", "c", "d", "e"]
        assert terminal.n_answers == 1
