"""`specdec` at a terminal: what a person sees, what Ctrl-C does, and what is left behind."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Models, run_json, text_of, word
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
        r"40 tokens · [\d.]+ tok/s · ~[\d.]+x plain(: slower)? · 100% accepted · seed 5 · token limit reached$",
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


# --- the chat ---------------------------------------------------------------------------------------------


class Chat(Terminal):
    """A chat at a terminal, and its trace."""

    def __init__(self, trace: Path, *arguments: object, **options: Any) -> None:
        super().__init__("run", *arguments, "--jsonl", trace, **options)
        self._trace = trace
        self.wait_for_question()

    def wait_for_question(self) -> None:
        self.wait_for(lambda: self.lines and self.lines[-1] == ">")
        self.read_for(0.1)  # a signal between the question and the wait for the answer would be seen with the next key

    def say(self, text: str) -> None:
        """Type `text` and wait for the answer and the next question."""
        answers = self.n_answers
        self.send(f"{text}\n".encode())
        self.wait_for(lambda: self.n_answers > answers)
        self.wait_for_question()

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The header of every answer with the statistics of its end."""
        lines = [json.loads(line) for line in self._trace.read_text(encoding="utf-8").splitlines()]
        headers = [line for line in lines if line["type"] == "header"]
        ends = [line for line in lines if line["type"] == "end"]
        return [{"prompt": header["prompt_ids"], **end["stats"]} for header, end in zip(headers, ends, strict=True)]


@pytest.fixture
def chat(models: Models, tmp_path: Path) -> Iterator[Chat]:
    with Chat(tmp_path / "trace", models.chat, "-k", 4, "--draft", models.ring_draft) as terminal:
        yield terminal


def test_chat_answers_turn_by_turn_and_evaluates_only_what_is_new(chat: Chat) -> None:
    chat.say("one")
    chat.say("two")
    chat.send(b"\x04")
    assert chat.end() == 0
    assert chat.modes_now == chat.modes
    first, second = chat.turns
    assert [text_of(turn["prompt"]) for turn in (first, second)] == [
        "<s> user:one\nassistant:",
        "<s> user:one\nassistant: a b c d e</s> \nuser:two\nassistant:",
    ]
    # Of the first turn all but the end token stayed in both caches.
    known = len(first["prompt"]) + first["tokens"] - 1
    assert second["prompt"][:known] == [*first["prompt"], *map(word, "abcde")]
    assert second["target_read_tokens"] == len(second["prompt"]) - known - 1  # the last comes with the first pass
    new = len(second["prompt"]) - known
    assert second["target_tokens_evaluated"] == new + second["tokens"] - 1 + second["drafted"] - second["accepted"]
    assert second["draft_tokens_evaluated"] < new + second["tokens"] + second["drafted"]


def test_new_forgets_the_conversation(chat: Chat) -> None:
    chat.say("one")
    chat.send(b"/new\n")
    chat.wait_for_question()
    chat.say("one")
    chat.send(b"\x04")
    assert chat.end() == 0
    first, second = chat.turns
    assert first["prompt"] == second["prompt"]


def test_empty_line_asks_again(chat: Chat) -> None:
    chat.send(b"\n  \n")
    chat.say("one")
    chat.send(b"\x04")
    assert chat.end() == 0
    assert len(chat.turns) == 1


def test_ctrl_c_ends_the_answer_and_ctrl_c_again_the_chat(models: Models, tmp_path: Path) -> None:
    flags = (models.endless_chat, "--ctx", 20000, "--draft", models.ring_draft)
    with Chat(tmp_path / "trace", *flags) as chat:
        for _ in range(2):  # the second turn goes on from what the first had written
            chat.send(b"x\n")
            chat.wait_for(b"b c d e")
            chat.send(b"\x03")
            chat.wait_for(b"interrupted")
            chat.wait_for_question()
        chat.send(b"\x03")
        assert chat.end() == 130
        assert chat.modes_now == chat.modes
        assert chat.raw.rindex(SHOW_CURSOR) > chat.raw.rindex(HIDE_CURSOR)
        assert b"Traceback" not in chat.raw
        first, second = chat.turns
    known = len(first["prompt"]) + first["tokens"] - 1
    assert second["prompt"][:known] == [*first["prompt"], *(word("abcde"[i % 5]) for i in range(first["tokens"] - 1))]
    assert second["target_read_tokens"] == len(second["prompt"]) - known - 1


def test_ctrl_c_clears_a_line_that_is_half_typed(chat: Chat) -> None:
    chat.send(b"no good")
    chat.wait_for(lambda: chat.lines[-1] == "> no good")
    chat.send(b"\x03")
    chat.wait_for_question()
    chat.say("one")
    chat.send(b"\x03")
    assert chat.end() == 130
    assert "Traceback" not in chat.text
    assert [text_of(turn["prompt"]) for turn in chat.turns] == ["<s> user:one\nassistant:"]
    assert chat.modes_now == chat.modes


def test_prompt_and_line_are_drawn_again_after_a_pause(chat: Chat) -> None:
    """What Ctrl-Z and `fg` do; the shell has written on the screen meanwhile."""
    chat.send(b"half")
    chat.wait_for(lambda: chat.lines[-1] == "> half")
    chat.process.send_signal(signal.SIGSTOP)
    os.waitpid(chat.process.pid, os.WUNTRACED)
    os.write(chat._slave, b"\r\nfg\r\n")
    chat.wait_for(lambda: chat.lines[-1] == "fg")
    chat.process.send_signal(signal.SIGCONT)
    chat.wait_for(lambda: chat.lines[-1] == "> half")
    chat.say(" a line")
    chat.send(b"\x04")
    assert chat.end() == 0
    assert text_of(chat.turns[0]["prompt"]).startswith("<s> user:half a line\n")


def test_questions_of_the_last_chat_are_there_again(models: Models, tmp_path: Path) -> None:
    def chatted(*flags: str, keys: bytes = b"\x1b[A\n", answers: int = 1) -> list[str]:
        with Chat(tmp_path / "trace", models.chat, *flags) as chat:
            chat.send(keys)
            chat.wait_for(lambda: chat.n_answers == answers)
            chat.wait_for_question()
            chat.send(b"\x04")
            assert chat.end() == 0
            return [text_of(turn["prompt"]).split("\n")[-2] for turn in chat.turns]

    history = Path(os.environ["XDG_STATE_HOME"]) / "specdec" / "chat-history"
    chatted("--no-history", keys=b"secret\n")
    assert not history.exists()
    chatted(keys=b"one\ntwo\n", answers=2)
    assert history.stat().st_mode & 0o777 == 0o600
    assert chatted() == ["<s> user:two"]
    assert chatted("--no-history", keys=b"\x1b[Athree\n") == ["<s> user:three"]
    history.unlink()
    os.mkfifo(history)
    assert chatted(keys=b"\x1b[Afour\n") == ["<s> user:four"]


def test_bytes_that_are_no_text_do_not_end_the_chat(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, env={"PYTHONIOENCODING": "utf-8:strict"}) as chat:
        chat.send(b"caf\xe9")
        chat.say("")
        chat.send(b"\x04")
        assert chat.end() == 0
        assert text_of(chat.turns[0]["prompt"]).startswith("<s> user:caf")


def test_question_that_finds_no_room_does_not_end_the_chat(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, "--ctx", 60) as chat:
        chat.say("0123456789")
        chat.send(b"0123456789012345678901234567890123456789\n")
        chat.wait_for(b"The message was not sent")
        chat.wait_for_question()
        chat.send(b"/new\n")
        chat.say("0123456789")
        chat.send(b"\x04")
        assert chat.end() == 0
        first, second = chat.turns
        assert first["prompt"] == second["prompt"]


def test_answers_of_a_chat_can_go_to_a_file(models: Models, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    with answers.open("wb") as file, Chat(tmp_path / "trace", models.chat, stdout=file.fileno()) as chat:
        chat.say("one")
        chat.send(b"\x04")
        assert chat.end() == 0
        assert b"\x1b[?25l" not in chat.raw
    assert answers.read_text() == " a b c d e"


def test_sigterm_at_the_question_ends_the_chat(chat: Chat) -> None:
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 143
    chat.read_for(0.2)
    assert "without a chance" not in chat.text
    assert chat.modes_now == chat.modes


def test_chat_needs_a_template_and_text(models: Models) -> None:
    for flags, words in (
        ((models.ring,), "This model has no chat template, so it cannot chat."),
        ((models.chat, "--json"), "--json needs a prompt."),
        ((models.chat, "--compare"), "--compare needs a prompt."),
    ):
        with Terminal("run", *flags) as terminal:
            assert terminal.end() == 2
            assert words in " ".join(terminal.lines)


def test_piped_input_is_no_chat(models: Models) -> None:
    with Terminal("run", models.chat, stdin=piped("one\ntwo\n")) as terminal:
        assert terminal.end() == 0
        terminal.assert_clean()
        assert terminal.answer == ["a", "b", "c", "d", "e"]
        assert terminal.n_answers == 1
