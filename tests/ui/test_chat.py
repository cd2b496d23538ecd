"""A chat at a terminal: what a person types, what is sent to the model, and what is left behind."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.commands.chat_commands import COMMANDS
from specdec_cli.commands.questions import Questions, asked_before
from tests.cli import Models, text_of, word
from tests.terminals import HIDE_CURSOR, SHOW_CURSOR, Terminal

UP, ALT_ENTER, CTRL_C, CTRL_D, CTRL_Z = b"\x1b[A", b"\x1b\r", b"\x03", b"\x04", b"\x1a"
HINT = "Ctrl-D or /bye leaves."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("chat"))


def pasted(text: str) -> bytes:
    """What a terminal sends for a paste when it was asked to mark it."""
    return b"\x1b[200~" + text.encode() + b"\x1b[201~"


class Chat(Terminal):
    """A chat at a terminal, and its trace."""

    def __init__(self, trace: Path, *arguments: object, **options: Any) -> None:
        super().__init__("run", *arguments, "--jsonl", trace, **options)
        self._trace = trace
        self.wait_for_question()

    def wait_for_question(self) -> None:
        self.wait_for(lambda: self.lines and self.lines[-1] == ">")

    def say(self, text: str) -> None:
        """Type `text` and wait for the answer and the next question."""
        self.answers_to(f"{text}\n".encode())

    def answers_to(self, keys: bytes, n: int = 1) -> None:
        """Type these keys and wait for so many answers and the next question."""
        answers = self.n_answers + n
        self.send(keys)
        self.wait_for(lambda: self.n_answers == answers)
        self.wait_for_question()

    def tells(self, line: str) -> str:
        """Type a command and wait for the next question; what it said."""
        before = len(self.lines)
        self.send(f"{line}\n".encode())
        self.wait_for(lambda: len(self.lines) > before and self.lines[-1] == ">")
        return "\n".join(self.lines[before:-1])

    @property
    def n_answers(self) -> int:
        return sum(line["type"] == "end" for line in self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        """Of the trace, without one that is being written."""
        text = self._trace.read_text(encoding="utf-8") if self._trace.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def turns(self) -> list[dict[str, Any]]:
        """Of every answer the prompt, the settings, and the statistics of its end."""
        headers = [line for line in self._lines() if line["type"] == "header"]
        ends = [line for line in self._lines() if line["type"] == "end"]
        return [
            {"prompt": header["prompt_ids"], "settings": header["settings"], **end["stats"]}
            for header, end in zip(headers, ends, strict=True)
        ]

    @property
    def headers(self) -> list[dict[str, Any]]:
        return [line["header"] for line in self._lines() if line["type"] == "header"]

    @property
    def answers(self) -> list[str]:
        """Texts of the answers."""
        texts: list[str] = []
        for line in self._lines():
            texts += [""] if line["type"] == "header" else []
            texts[-1] += "".join(text for text, _ in line.get("spans", ()))
        return texts

    @property
    def asked(self) -> list[str]:
        """The last question of every prompt."""
        prompts = [text_of(turn["prompt"]).removesuffix("\nassistant:") for turn in self.turns]
        return [prompt[prompt.rindex("user:") + len("user:") :] for prompt in prompts]


@pytest.fixture
def chat(models: Models, tmp_path: Path) -> Iterator[Chat]:
    with Chat(tmp_path / "trace", models.chat, "-k", 4, "--draft", models.ring_draft) as terminal:
        yield terminal


def leaves(chat: Chat) -> None:
    chat.send(CTRL_D)
    assert chat.end() == 0
    assert chat.modes_now == chat.modes
    assert "Traceback" not in chat.text


# --- turns ------------------------------------------------------------------------------------------------


def test_chat_answers_turn_by_turn_and_evaluates_only_what_is_new(chat: Chat) -> None:
    chat.say("one")
    chat.say("two")
    leaves(chat)
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


def test_clear_forgets_the_conversation(chat: Chat) -> None:
    chat.say("one")
    for command in ("/clear", "/new"):
        assert "Started a new chat." in chat.tells(command)
        chat.say("one")
    leaves(chat)
    first, second, third = chat.turns
    assert first["prompt"] == second["prompt"] == third["prompt"]


def test_empty_line_asks_again(chat: Chat) -> None:
    chat.send(b"\n  \n")
    chat.say("one")
    leaves(chat)
    assert len(chat.turns) == 1


def test_undo_takes_back_a_turn_and_keeps_what_was_evaluated(chat: Chat) -> None:
    assert "There is nothing to take back." in chat.tells("/undo")
    for question in ("one", "two"):
        chat.say(question)
    assert "Took back: two" in chat.tells("/undo")
    chat.say("three")
    leaves(chat)
    first, second, third = chat.turns
    known = len(first["prompt"]) + first["tokens"] - 1
    assert third["prompt"][:known] == second["prompt"][:known]
    assert third["target_read_tokens"] < len(third["prompt"]) - known
    assert chat.asked == ["one", "two", "three"]
    assert "two" not in text_of(third["prompt"])


def test_retry_asks_again_with_another_seed_and_reads_nothing(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, "--draft", models.ring_draft, "--seed", 7) as chat:
        assert "There is nothing to answer again." in chat.tells("/retry")
        chat.say("one")
        chat.say("/retry")
        chat.say("/retry")
        chat.say("two")
        leaves(chat)
    first, second, third, last = chat.turns
    assert first["prompt"] == second["prompt"] == third["prompt"]
    assert second["target_read_tokens"] == 0
    assert [turn["settings"]["seed"] for turn in chat.turns] == [7, 8, 9, 7]
    assert text_of(last["prompt"]).count("user:one") == 1


def test_system_message_can_be_set_and_removed(chat: Chat) -> None:
    assert "No system message." in chat.tells("/system")
    assert "System message: be brief" in chat.tells("/system be brief")
    chat.say("one")
    chat.tells("/clear")
    chat.say("one")
    assert "No system message." in chat.tells("/system none")
    chat.say("two")
    leaves(chat)
    assert text_of(chat.turns[1]["prompt"]) == "<s> system:be brief\nuser:one\nassistant:"
    assert [turn["settings"]["system"] for turn in chat.turns] == ["be brief", "be brief", None]
    assert "system" not in text_of(chat.turns[2]["prompt"])
    assert "user:one" in text_of(chat.turns[2]["prompt"])


def test_a_file_goes_with_a_question(chat: Chat, tmp_path: Path) -> None:
    notes = tmp_path / "my notes"
    notes.write_text("x\ny\n", encoding="utf-8")
    chat.say(f'/file "{notes}" sum')
    assert "goes with your next question" in chat.tells(f'/file "{notes}"').replace("\n", " ")
    chat.say("what")
    chat.say("else")
    assert "Cannot read" in chat.tells(f"/file {tmp_path / 'none'}")
    os.mkfifo(tmp_path / "fifo")
    assert "it is not a regular file" in chat.tells(f"/file {tmp_path / 'fifo'}").replace("\n", "")
    leaves(chat)
    assert chat.asked == ["sum\n\nx\ny\n", "what\n\nx\ny\n", "else"]


def test_stats_are_those_of_the_last_answer(chat: Chat) -> None:
    assert "There is no answer yet." in chat.tells("/stats")
    chat.say("one")
    assert "tokens per pass" in chat.tells("/stats")
    leaves(chat)


# --- what changes between answers -------------------------------------------------------------------------


def test_settings_change_the_next_answer_and_nothing_is_read_again(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, "--draft", models.ring_draft, "--seed", 7) as chat:
        chat.say("one")
        for line in ("temperature 0", "top_k 5", "seed 11", "parameter num_predict 2", "stop ' c'"):
            chat.tells(f"/set {line}")
        chat.say("two")
        assert "temperature: 0.0" in chat.tells("/show temp")
        assert "seed: 11" in chat.tells("/show")
        chat.tells("/set n default")
        chat.say("three")
        leaves(chat)
    first, second, third = chat.turns
    assert [turn["settings"]["sampling"]["temperature"] for turn in chat.turns] == [0.8, 0, 0]
    assert [turn["settings"]["sampling"]["top_k"] for turn in chat.turns] == [40, 5, 5]
    assert [turn["settings"]["seed"] for turn in chat.turns] == [7, 11, 11]
    assert [turn["tokens"] for turn in chat.turns] == [6, 2, 3]
    assert [turn["settings"]["stop"] for turn in chat.turns] == [[], [" c"], [" c"]]
    known = len(first["prompt"]) + first["tokens"] - 1
    assert second["target_read_tokens"] == len(second["prompt"]) - known - 1
    assert text_of(third["prompt"]).count("user:") == 3


def test_what_cannot_be_changed_is_told_and_changes_nothing(models: Models, tmp_path: Path) -> None:
    refused = {
        "/set temprature 0": "Did you mean temperature?",
        "/set temperature cold": "Invalid temperature: 'cold'. Give a number, or default.",
        "/set temperature -1": "temperature cannot be -1.0. Use a value 0 or more.",
        "/set seed -1": "Give a whole number from 0 to",
        "/set ctx 100": "ctx needs the model to be loaded again.",
        "/set k 3": "Use /k.",
        "/set seed": "It is 7 now.",
        "/set": "repeat-penalty",
        "/k much": "Invalid -k: 'much'.",
        "/draft ngrams": "Did you mean 'ngram'?",
        "/draft mtp": "was loaded without its MTP layers",
        "/load /nowhere": "cannot be used",
        "/save": "/save needs one file.",
    }
    with Chat(tmp_path / "trace", models.chat, "--draft", models.ring_draft, "--seed", 7, columns=200) as chat:
        shown = chat.tells("/show")
        for line, words in refused.items():
            assert words in chat.tells(line)
            assert chat.tells("/show") == shown
        chat.say("one")
        leaves(chat)


def test_drafters_change_and_the_text_does_not(models: Models, tmp_path: Path) -> None:
    """The target is loaded once; without another context it reads only what is new."""
    with Chat(tmp_path / "trace", models.words_chat, "-n", 30, "--seed", 3) as chat:
        for change in (f"/draft {models.draft}", "/k 4", "/draft ngram", "/k auto", "/draft none", "/draft lookahead"):
            told = chat.tells(change)
            assert "drafter: " in told, told
            chat.say("a b")
            chat.tells("/undo")
        assert "drafter: none" in chat.tells("/draft default")
        chat.say("a b")
        leaves(chat)
    answers = chat.answers
    assert answers == [answers[-1]] * len(answers)
    drafters = [header["drafter"] for header in chat.headers]
    assert drafters == ["ngram+model", "model", "ngram", "ngram", "none", "lookahead", "none"]
    assert chat.turns[1]["drafted"] > 0  # with a fixed length; auto may find that nothing pays on a busy machine
    assert chat.turns[1]["target_read_tokens"] == 0


# --- saved chats ------------------------------------------------------------------------------------------


def test_a_saved_chat_goes_on_as_it_would_have(models: Models, tmp_path: Path) -> None:
    file = tmp_path / "saved chat.json"
    with Chat(tmp_path / "one", models.words_chat, "-n", 12, "--draft", models.draft, "--seed", 5) as chat:
        chat.tells("/system be brief")
        chat.say("a")
        chat.tells("/set temperature 1.5")
        chat.tells("/set seed 9")
        chat.say("b")
        assert "Saved 2 turns" in chat.tells(f'/save "{file}"')
        chat.say("c")
        leaves(chat)
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert [turn["question"] for turn in saved["turns"]] == ["a", "b"]
    assert [(turn["settings"]["temperature"], turn["settings"]["seed"]) for turn in saved["turns"]] == [
        (0.8, 5),
        (1.5, 9),
    ]
    for flags, keys in ((("--load", file), b""), ((), f'/load "{file}"\n'.encode())):
        with Chat(tmp_path / f"again{len(flags)}", models.words_chat, "--draft", "none", *flags) as again:
            again.answers_to(keys + b"c\n")
            leaves(again)
        assert again.turns[-1]["prompt"] == chat.turns[-1]["prompt"]
        assert again.answers[-1] == chat.answers[-1]
    with Chat(tmp_path / "other", models.words_chat, "--load", file, "--temp", 0, "--seed", 1) as given:
        given.say("c")
        leaves(given)
    assert given.turns[-1]["prompt"] == chat.turns[-1]["prompt"]
    assert given.turns[-1]["settings"]["sampling"]["temperature"] == 0
    assert given.turns[-1]["settings"]["seed"] == 1


def test_a_saved_chat_is_replayed_with_the_same_text(models: Models, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    with Chat(tmp_path / "one", models.words_chat, "-n", 12, "--seed", 5) as chat:
        chat.say("a")
        chat.say("/retry")
        chat.tells("/set top-k 3")
        chat.say("b")
        chat.tells(f"/save {file}")
        leaves(chat)
    with Chat(tmp_path / "two", models.words_chat, "--draft", models.draft) as again:
        told = again.tells(f"/replay {file}")
        assert "Identical text in 2 of 2 answers." in told
        leaves(again)
    assert again.answers == chat.answers[1:]


def test_files_that_are_no_chats_are_neither_loaded_nor_written_over(chat: Chat, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("{}", encoding="utf-8")
    chat.say("one")
    for command in ("/load", "/save", "/replay"):
        assert "it is not a saved chat" in chat.tells(f"{command} {notes}").replace("\n", "")
    assert notes.read_text(encoding="utf-8") == "{}"
    file = tmp_path / "chat.json"
    chat.tells(f"/save {file}")
    document = json.loads(file.read_text(encoding="utf-8"))
    for damage in ({"turns": [{}]}, {"turns": 5}, {"settings": {"temperature": "hot"}}, {"turns": [5]}):
        file.write_text(json.dumps({**document, **damage}), encoding="utf-8")
        told = chat.tells(f"/load {file}").replace("\n", "")
        assert "damaged" in told or "Invalid temperature" in told
    chat.say("two")
    leaves(chat)
    assert text_of(chat.turns[-1]["prompt"]).startswith("<s> user:one\nassistant: a b c d e</s>")


# --- what is typed ----------------------------------------------------------------------------------------


def test_what_begins_with_a_slash_never_reaches_the_model_by_mistake(chat: Chat) -> None:
    assert "Unknown command /set-up." in chat.tells("/set-up temperature 0")
    assert "Did you mean /retry?" in chat.tells("/rety")
    assert "/undo takes nothing after it." in chat.tells("/undo 2")
    chat.say("//etc is a folder")
    chat.say("/etc/passwd is a file")
    leaves(chat)
    assert chat.asked == ["/etc is a folder", "/etc/passwd is a file"]


@pytest.mark.parametrize("words", ["/bye", "exit"])
def test_words_that_leave(chat: Chat, words: str) -> None:
    chat.send(f"{words}\n".encode())
    assert chat.end() == 0
    assert chat.n_answers == 0


def test_words_that_help(chat: Chat) -> None:
    for words in ("/help", "/?", "?"):
        told = f"\n{chat.tells(words)}"
        for command in COMMANDS:
            assert f"\n  {command}" in told
    leaves(chat)
    assert chat.n_answers == 0


def test_help_fits_a_narrow_window(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, columns=40, rows=20, env={"COLUMNS": ""}) as chat:
        told = chat.tells("/help").splitlines()
        leaves(chat)
    assert "      Answer the last question again," in told
    assert "a slash. Tab completes, Ctrl-R searches, Ctrl-X Ctrl-E opens an editor. Ctrl-C stops" in " ".join(
        " ".join(told).split()
    )  # no word is broken


def test_four_pasted_lines_are_one_question(chat: Chat) -> None:
    chat.answers_to(pasted("one\rtwo\r\nthree\nfour") + b"\n")
    leaves(chat)
    assert chat.asked == ["one\ntwo\nthree\nfour"]


def test_a_paste_during_an_answer_waits_as_one_question(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.endless_chat, "--ctx", 20000, "-n", 120) as chat:
        chat.send(b"x\n")
        chat.wait_for(b"b c d e")
        chat.send(pasted("one\ntwo\nthree") + b"\n")
        chat.wait_for(lambda: chat.n_answers == 2)
        chat.wait_for_question()
        leaves(chat)
        assert chat.raw.rindex(b"\x1b[?2004l") > chat.raw.rindex(b"\x1b[?2004h")
    assert chat.asked == ["x", "one\ntwo\nthree"]


def test_quotes_and_alt_enter_make_several_lines(chat: Chat) -> None:
    chat.answers_to(b'"""one\ntwo\n/clear\n"""\n')
    chat.answers_to(b"three" + ALT_ENTER + b"four\n")
    chat.answers_to(b'"""/bye"""\n')
    leaves(chat)
    assert chat.asked == ["one\ntwo\n/clear", "three\nfour", "/bye"]


def test_tab_completes_commands_and_files(chat: Chat, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("x", encoding="utf-8")
    chat.send(b"/sta\t")
    chat.wait_for(lambda: chat.lines[-1] == "> /stats")
    chat.send(CTRL_C)
    chat.wait_for_question()
    chat.answers_to(f"/file {tmp_path}/no\t sum\n".encode())
    leaves(chat)
    assert chat.asked == ["sum\n\nx"]


def test_bytes_that_are_no_text_do_not_end_the_chat(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, env={"PYTHONIOENCODING": "utf-8:strict"}) as chat:
        chat.send(b"caf\xe9")
        chat.say("")
        leaves(chat)
        assert text_of(chat.turns[0]["prompt"]).startswith("<s> user:caf")


def test_questions_of_the_last_chat_are_there_again(models: Models, tmp_path: Path) -> None:
    def chatted(*flags: str, keys: bytes = UP + b"\n", answers: int = 1) -> list[str]:
        trace = tmp_path / "trace"
        trace.unlink(missing_ok=True)
        with Chat(trace, models.chat, *flags) as chat:
            chat.answers_to(keys, answers)
            leaves(chat)
            return chat.asked

    history = Path(os.environ["XDG_STATE_HOME"]) / "specdec" / "chat-history"
    chatted("--no-history", keys=b"secret\n")
    assert not history.exists()
    chatted(keys=b"one\ntwo\n", answers=2)
    assert history.stat().st_mode & 0o777 == 0o600
    assert chatted() == ["two"]
    assert chatted("--no-history", keys=UP + b"three\n") == ["three"]
    assert chatted(keys=pasted("four\nfive") + b"\n") == ["four\nfive"]
    assert chatted() == ["four\nfive"]
    history.unlink()
    os.mkfifo(history)
    assert chatted(keys=UP + b"four\n") == ["four"]


def test_history_stays_small_enough_to_be_read(tmp_path: Path) -> None:
    history = tmp_path / "history"
    questions = Questions(history, complete=lambda _: ())
    for i in range(30):
        questions.keep(f"{i}" + "y" * 60_000)
    questions.keep("z" * 2_000_000)
    assert history.stat().st_size <= 1 << 20
    assert asked_before(history)[-1].startswith("29y")


def test_a_question_is_kept_at_once(chat: Chat) -> None:
    chat.say("one")
    chat.process.kill()
    chat.process.wait()
    history = Path(os.environ["XDG_STATE_HOME"]) / "specdec" / "chat-history"
    assert history.read_text(encoding="utf-8") == "one\n"


# --- signals and keys that end something ------------------------------------------------------------------


def test_ctrl_c_ends_the_answer_and_not_the_chat(models: Models, tmp_path: Path) -> None:
    flags = (models.endless_chat, "--ctx", 20000, "--draft", models.ring_draft)
    with Chat(tmp_path / "trace", *flags) as chat:
        for n in (1, 2):  # the second turn goes on from what the first had written
            chat.send(b"x\n")
            chat.wait_for(b"b c d e")
            chat.send(CTRL_C)
            chat.wait_for(lambda n=n: chat.n_answers == n)
            chat.wait_for_question()
        leaves(chat)
        assert chat.raw.rindex(SHOW_CURSOR) > chat.raw.rindex(HIDE_CURSOR)
        first, second = chat.turns
    known = len(first["prompt"]) + first["tokens"] - 1
    assert second["prompt"][:known] == [*first["prompt"], *(word("abcde"[i % 5]) for i in range(first["tokens"] - 1))]
    assert second["target_read_tokens"] == len(second["prompt"]) - known - 1


def test_ctrl_c_again_and_again_ends_the_answer_alone(models: Models, tmp_path: Path) -> None:
    """Also where it comes after the answer, before the next question or while that is typed."""
    with Chat(tmp_path / "trace", models.endless_chat, "--ctx", 20000) as chat:
        chat.send(b"x\n")
        chat.wait_for(b"b c d e")
        for _ in range(200):
            chat.send(CTRL_C)
            chat.read_for(0.005)
        chat.wait_for(lambda: chat.n_answers == 1 and chat.lines[-1] == ">")
        chat.send(b"y\n")
        chat.wait_for(lambda: len(chat.answers) == 2 and "b c d e" in chat.answers[-1])
        chat.send(CTRL_C)
        chat.wait_for(lambda: chat.n_answers == 2)
        chat.wait_for_question()
        leaves(chat)
    assert chat.asked == ["x", "y"]


def test_ctrl_c_at_an_empty_question_tells_how_to_leave(chat: Chat) -> None:
    chat.send(CTRL_C)
    chat.wait_for(lambda: HINT in chat.text)
    chat.wait_for_question()
    chat.say("one")
    leaves(chat)


def test_ctrl_c_clears_a_line_that_is_half_typed(chat: Chat) -> None:
    chat.send(b"no good")
    chat.wait_for(lambda: chat.lines[-1] == "> no good")
    chat.send(CTRL_C)
    chat.wait_for_question()
    assert HINT not in chat.text
    chat.say("one")
    leaves(chat)
    assert chat.asked == ["one"]


def test_prompt_and_line_are_drawn_again_after_a_stop_from_outside(chat: Chat) -> None:
    """The shell has written on the screen meanwhile, and set the terminal's modes."""
    chat.send(b"half")
    chat.wait_for(lambda: chat.lines[-1] == "> half")
    chat.process.send_signal(signal.SIGSTOP)
    os.waitpid(chat.process.pid, os.WUNTRACED)
    chat.set_modes(chat.modes)
    os.write(chat._slave, b"\r\nfg\r\n")
    chat.wait_for(lambda: chat.lines[-1] == "fg")
    chat.process.send_signal(signal.SIGCONT)
    chat.wait_for(lambda: chat.lines[-1] == "> half")
    chat.say(" a line")
    leaves(chat)
    assert chat.asked == ["half a line"]


def test_prompt_and_line_are_drawn_again_after_ctrl_z_and_fg(models: Models, tmp_path: Path) -> None:
    shell = ("bash", "-c", 'set -m; "$@"; echo stopped; read; fg', "bash")
    with Chat(tmp_path / "trace", models.chat, before=shell) as chat:
        chat.send(b"half")
        chat.wait_for(lambda: chat.lines[-1] == "> half")
        chat.send(CTRL_Z)
        chat.wait_for(lambda: chat.lines[-1] == "stopped")
        assert chat.modes_now == chat.modes
        chat.send(b"\n")
        chat.wait_for(lambda: chat.lines[-1] == "> half")
        chat.say(" a line")
        leaves(chat)
    assert chat.asked == ["half a line"]


def test_sigterm_at_the_question_ends_the_chat(chat: Chat) -> None:
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 143
    chat.read_for(0.2)
    assert "without a chance" not in chat.text
    assert chat.modes_now == chat.modes


# --- what does not fit ------------------------------------------------------------------------------------


def test_question_that_finds_no_room_does_not_end_the_chat(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, "--ctx", 60) as chat:
        chat.say("0123456789")
        assert "The message was not sent" in chat.tells("0123456789012345678901234567890123456789")
        chat.tells("/clear")
        chat.say("0123456789")
        leaves(chat)
        first, second = chat.turns
        assert first["prompt"] == second["prompt"]


def test_answers_of_a_chat_can_go_to_a_file(models: Models, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    with answers.open("wb") as file, Chat(tmp_path / "trace", models.chat, stdout=file.fileno()) as chat:
        chat.say("one")
        leaves(chat)
    assert answers.read_text() == " a b c d e"


def test_a_dumb_terminal_gets_lines_without_escapes(models: Models, tmp_path: Path) -> None:
    with Chat(tmp_path / "trace", models.chat, env={"TERM": "dumb"}) as chat:
        chat.say("one")
        chat.send(CTRL_C)
        chat.wait_for(lambda: HINT in chat.text)
        chat.wait_for_question()
        chat.answers_to(b'"""two\nthree"""\n')
        leaves(chat)
    assert chat.asked == ["one", "two\nthree"]
    assert b"\x1b" not in chat.raw


def test_chat_needs_a_template_and_text(models: Models) -> None:
    for flags, words in (
        ((models.ring,), "This model has no chat template, so it cannot chat."),
        ((models.chat, "--json"), "--json needs a prompt."),
    ):
        with Terminal("run", *flags) as terminal:
            assert terminal.end() == 2
            assert words in " ".join(terminal.lines)
