"""The command line as a whole: help, wrong usage, how errors become words and exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_cli import __version__, app
from specdec_cli.commands.help import USUAL
from specdec_cli.errors import (
    DecodeFailed,
    Interrupted,
    ModelError,
    NoGpu,
    OutOfMemory,
    SpecdecError,
    UsageError,
    VocabularyMismatch,
)
from tests.cli import Models, inside, specdec

GLANCE = (
    r"\d+ tokens · [\d.]+ tok/s( · ~[\d.]+x plain(: slower)? · \d+% accepted)?( · seed \d+)?( · token limit reached)?"
)
ALL_FIGURES = [
    r"stopped: (token limit reached|end of answer|context full)",
    r"\d+ tokens, [\d.]+ tokens/s, first token after [\d.]+ m?s",
    r"(slower: )?[\d.]+x plain decoding \([\d.]+ m?s instead of [\d.]+ m?s\), estimated from .*, to within \d+%",
    r"\d+ rounds, [\d.]+ tokens per pass, drafted \d+, accepted \d+, acceptance (\d+%|-)",
    r"draft [\d.]+ m?s, verify [\d.]+ m?s, other [\d.]+ m?s",
    r"read: target \d+ tokens? in [\d.]+ m?s(, draft \d+ tokens? in [\d.]+ m?s)?",
    r"layers on GPU: 0/\d+ target(, 0/\d+ draft)?; memory: target \d+ MiB \+ \d+ MiB cache(, draft .*)?",
    r"greedy|temperature [\d.]+, top-k \d+, top-p [\d.]+, min-p [\d.]+, seed \d+",
]
"""What stderr holds with --verbose after a run in which nothing happened."""


# fmt: off
OPTIONS = [
    "--draft", "-k", "--p-min", "--predict", "--cross",
    "--lora", "--lora-draft", "--control-vector", "--force", "--file", "--system", "--raw", "--think",
    "--no-think", "-n", "--stop", "--temp", "--top-k", "--top-p", "--min-p", "--seed",
    "--ngl", "--ngl-draft", "--device", "--main-gpu", "--tensor-split", "--rpc", "--require-gpu", "--flash-attn",
    "--kv", "--kv-draft", "--ctx", "--ctx-draft", "--batch", "--ubatch", "--threads", "--threads-draft",
    "--mmap", "--no-mmap", "--mlock", "--plain", "--verbose", "--json", "--jsonl", "--log",
]
# fmt: on


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("cli"))


def test_version() -> None:
    done = specdec("--version")
    assert (done.code, done.out, done.err) == (0, f"specdec {__version__}\n", "")


def test_installed_command_is_the_module() -> None:
    command = Path(sys.executable).with_name("specdec")
    if not command.exists():
        pytest.skip("the package is not installed beside this Python")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"specdec {__version__}\n"


def test_help_names_the_commands_and_the_exit_codes() -> None:
    done = specdec("--help")
    assert (done.code, done.err) == (0, "")
    assert "run" in done.out
    assert "check" in done.out
    shown = " ".join(done.out.split())
    assert all(f"{code} " in shown for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 143))


def test_help_of_run_names_every_option() -> None:
    done = specdec("run", "--help", env={"COLUMNS": "160"})
    assert (done.code, done.err) == (0, "")
    assert [option for option in OPTIONS if option not in done.out] == []


def test_no_arguments_show_the_help() -> None:
    done = specdec()
    assert done.code == 2
    assert "Commands" in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "Missing argument"),
        (("run", "m.gguf", "a", "--tempo", "1"), "No such option: --tempo"),
        (("run", "m.gguf", "a", "b"), "extra argument"),
        (("check",), "Missing argument"),
        (("runn",), "No such command 'runn'"),
        (("--nonsense",), "No such option"),
        (("run", "m.gguf", "-k", "four"), "a number of draft tokens, or auto"),
        (("run", "m.gguf", "-n", "abc"), "Error: Invalid -n: 'abc'.\nHint: Give a whole number.\n"),
        (("run", "m.gguf", "--temp", "hot"), "Error: Invalid --temp: 'hot'.\nHint: Give a number.\n"),
        (("run", "m.gguf", "-n", "-3"), "Error: Invalid -n: '-3'.\nHint: Give 0 or more.\n"),
        (("runn",), "Hint: Did you mean 'run'?"),
        (("run", "m.gguf", "--tempp", "1"), "Hint: Did you mean --temp"),
        (("presets", "demoo"), "Hint: Did you mean 'demo'?"),
        (("ls",), "Hint: Use: specdec list\n"),
        (("chat",), "Hint: Use: specdec run MODEL\n"),
        (("ps",), "Hint: Use: specdec list\n"),
        (("show",), "Hint: Use: specdec presets NAME\n"),
        (("run", "m.gguf", "a", "--temperature", "1"), "Hint: Use --temp.\n"),
        (("run", "m.gguf", "a", "-c", "2048"), "Hint: Use --ctx.\n"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = inside(*arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


NAMES = "run race bench audit replay check doctor pull plan export draft presets list rm verify-files help"
COMMANDS = [(), *((name,) for name in NAMES.split()), ("draft", "make"), ("draft", "trim"), ("presets", "show")]


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_keeps_words_whole_and_gives_them_room(
    command: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    whole = set(inside(*command, "--help").out.split())
    monkeypatch.setenv("COLUMNS", str(columns))
    done = inside(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert set(done.out.split()) == whole
    assert all(len(line) <= columns or len(line.split()) == 1 for line in done.out.splitlines())
    assert inside("help", *command).out == done.out


@pytest.mark.parametrize("command", ["run", "bench", "audit", "doctor", "draft make", "draft trim"])
def test_the_short_help_shows_the_options_that_matter(command: str) -> None:
    short, whole = (inside(*command.split(), option).out for option in ("-h", "--help"))
    last = command.split()[-1]
    assert [name for name in USUAL[last].split() if not re.search(rf"^  (-., )?{name}\b", short, re.MULTILINE)] == []
    assert len(short.splitlines()) < len(whole.splitlines())
    assert "--mlock" in whole
    assert "--mlock" not in short
    assert short.rstrip().splitlines()[-1] == f"All {_n_options(whole)} options: specdec {command} --help"
    assert "Arguments:" in short


def _n_options(page: str) -> int:
    return len(re.findall(r"^  -", page, re.MULTILINE))


def test_the_short_help_of_run_fits_a_window_or_two() -> None:
    assert len(inside("run", "-h").out.splitlines()) < 60


def test_help_of_run_has_headings_and_fewer_than_two_hundred_lines() -> None:
    lines = inside("run", "--help").out.splitlines()
    assert len(lines) < 200
    assert [heading for heading in ("Arguments:", "Draft:", "Text:", "Output:") if heading not in lines] == []


def test_version_has_a_short_option() -> None:
    assert inside("-V").out == inside("--version").out != ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_presets_and_drafters(shell: str, tmp_path: Path) -> None:
    (tmp_path / "own.gguf").touch()

    def complete(*words: str) -> str:
        line = " ".join(("specdec", *words))
        env = {
            "_SPECDEC_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words)),
        }
        code = "import sys; sys.argv = ['specdec']; from specdec_cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(Path(app.__file__).parent.parent), **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    assert "llama-3.1-8b" in complete("run", "llama-3")
    assert "own.gguf" in complete("run", "ow")
    assert "ngram" in complete("run", "demo", "--draft", "ng")
    assert "demo" in complete("presets", "de")
    assert "demo" in complete("verify-files", "de")
    assert "q8_0" in complete("run", "demo", "--kv", "q8")
    assert "rejection" in complete("run", "demo", "--verify", "rej")
    assert "qa,summary" in complete("bench", "demo", "--kinds", "qa,su")
    assert "verify-files" in complete("ver")


def test_stderr_after_a_normal_run_is_the_summary(models: Models) -> None:
    flags = ("--draft", models.draft, "-n", 20, "--raw", "-k", 4)
    lines = specdec("run", models.words, "a b", *flags).err.splitlines()
    assert [bool(re.fullmatch(GLANCE, line)) for line in lines] == [False, True], lines
    lines = specdec("run", models.words, "a b", *flags, "--verbose").err.splitlines()
    expected = ["tokenizers match: SPM, 320 tokens", GLANCE, *ALL_FIGURES]
    assert len(lines) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, lines, strict=True)), lines


def test_real_model_leaves_no_log_behind(smollm2_q4_0: Path) -> None:
    done = specdec("run", smollm2_q4_0, "Say hello.", "-n", 8, *("--temp", 0, "--ctx", 256))
    assert done.code == 0
    assert done.out.isascii()
    assert len(done.out.split()) > 2
    lines = done.err.splitlines()
    expected = [GLANCE, r"speculation OFF \(--draft none\)"]
    assert len(lines) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, lines, strict=True)), lines


# --- errors -----------------------------------------------------------------------------------------------


def test_debug_shows_where_an_error_comes_from() -> None:
    plain = specdec("run", "/nowhere/model.gguf", "a")
    debug = specdec("run", "/nowhere/model.gguf", "a", env={"SPECDEC_DEBUG": "1"})
    assert plain.err == ("Error: File not found: /nowhere/model.gguf.\nHint: Check the path, or use a preset.\n")
    assert "Traceback" in debug.err
    assert "ModelError: File not found" in debug.err
    assert debug.code != 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecdecError("Bad."), 1),
        (UsageError("Bad.", hint="Do better."), 2),
        (ModelError("Bad.", hint="Do \x1b[2Jbetter."), 3),
        (VocabularyMismatch("Bad.\nWorse."), 4),
        (OutOfMemory("Bad."), 5),
        (NoGpu("Bad."), 6),
        (DecodeFailed("Bad."), 7),
    ],
)
def test_errors_become_words_and_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: SpecdecError, code: int
) -> None:
    assert main_of(error, monkeypatch) == code
    out, err = capsys.readouterr()
    hint = f"Hint: {error.hint}\n".replace("\x1b", "␛") if error.hint else ""
    assert (out, err) == ("", f"Error: {error}\n{hint}")


@pytest.mark.parametrize(("error", "code"), [(Interrupted(2), 130), (Interrupted(15), 143), (KeyboardInterrupt(), 130)])
def test_signals_end_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    assert main_of(error, monkeypatch) == code
    assert capsys.readouterr() == ("", "")


def test_debug_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    with pytest.raises(UsageError):
        main_of(UsageError("Bad."), monkeypatch)


def main_of(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of `main` when the command raises `error`."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as end:
        app.main()
    return end.value.code
