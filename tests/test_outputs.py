"""Outputs: nothing that is read is written over, no model ever; what lay there is replaced, not emptied."""

import errno
import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs, open_output, write_output
from tests.cli import COMMAND, PATIENCE, Models, inside, specdec

MODEL = b"GGUF\x03\0\0\0 and so on"
HEADS = (2).to_bytes(8, "little") + b"{}"

# --- what is refused -------------------------------------------------------------------------------------


def itself(path: Path) -> Path:
    return path


def by_a_link(path: Path) -> Path:
    path.with_name("link").symlink_to(path.name)
    return path.with_name("link")


def by_two_links(path: Path) -> Path:
    path.with_name("folder").symlink_to(path.parent)
    return path.with_name("folder") / by_a_link(path).name


def by_a_hard_link(path: Path) -> Path:
    os.link(path, path.with_name("hard"))
    return path.with_name("hard")


def by_another_spelling(path: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


NAMED = [itself, by_a_link, by_two_links, by_a_hard_link, by_another_spelling]


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("content", [MODEL, HEADS], ids=["GGUF", "safetensors"])
def test_a_model_is_never_an_output(tmp_path: Path, named: Callable[[Path], Path], content: bytes) -> None:
    model = tmp_path / "some.bin"
    model.write_bytes(content)
    with pytest.raises(UsageError, match="--json would overwrite the model file"):
        check_outputs({"--json": named(model)}, {})


@pytest.mark.parametrize("named", NAMED)
def test_an_input_is_never_an_output(tmp_path: Path, named: Callable[[Path], Path]) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear all,")
    with pytest.raises(UsageError, match=r"--json would overwrite .*, which -f reads"):
        check_outputs({"--json": named(letter)}, {"-f": letter})
    check_outputs({"--json": letter}, {"-f": None, "--draft": tmp_path / "other"})


@pytest.mark.parametrize("named", NAMED)
def test_two_outputs_are_two_files(tmp_path: Path, named: Callable[[Path], Path]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("")
    with pytest.raises(UsageError, match="--json and --md name the same file"):
        check_outputs({"--json": file, "--md": named(file)}, {})
    file.unlink()
    if named is not by_a_hard_link:
        with pytest.raises(UsageError, match="--json and --md name the same file"):
            check_outputs({"--json": file, "--md": tmp_path / ".." / tmp_path.name / "a.txt"}, {})


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none" / "a", Path("/dev/null/a")):
        with pytest.raises(UsageError, match=r"Cannot write to|not a writable file"):
            check_outputs({"--json": place}, {})
        with pytest.raises(UsageError, match="Cannot write to"):
            write_output(place, "x")
        with pytest.raises(UsageError, match="Cannot write to"):
            open_output(place)


# --- how it is written -----------------------------------------------------------------------------------


def test_what_lay_there_is_replaced_and_not_emptied(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    for write in (lambda path: write_output(path, "new"), lambda path: open_output(path).close()):
        file.write_text("old")
        other.unlink(missing_ok=True)
        os.link(file, other)
        write(file)
        assert other.read_text() == "old"
        assert file.read_text() != "old"
        assert len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_a_link_and_modes_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "b"
    link.symlink_to("a")
    for write in (lambda path: write_output(path, b"new"), lambda path: open_output(path).close()):
        file.write_text("old")
        file.chmod(0o600)
        write(link)
        assert link.is_symlink()
        assert file.read_text() != "old"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "a"
    file.write_text("old")
    monkeypatch.setattr("specdec_cli.paths.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_output(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_renamed_to_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is mounted itself, as containers do, cannot be replaced."""

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    file = tmp_path / "a"
    file.write_text("something old")
    monkeypatch.setattr("specdec_cli.paths.os.replace", busy)
    write_output(file, "new")
    assert file.read_text() == "new"
    with open_output(file) as out:
        out.write("newer")
    assert file.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [file]


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with open_output(tmp_path / "a") as out:
        out.write("one\n")
        out.flush()
        assert (tmp_path / "a").read_text() == "one\n"


def test_planted_links_at_temporary_names_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.paths.secrets.token_hex", lambda _: "0")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".a.0.half").symlink_to("precious")
    for write in (lambda path: write_output(path, "new"), lambda path: open_output(path).close()):
        with pytest.raises(UsageError, match="File exists"):
            write(tmp_path / "a")
    assert (tmp_path / "precious").read_text() == "precious"


def test_streams_are_written_as_they_are(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_outputs({"--json": fifo, "--md": Path("/dev/null"), "--plot": Path("/dev/null")}, {})
    for write in (lambda: write_output(fifo, "hello"), lambda: print("hello", end="", file=open_output(fifo))):
        read: list[str] = []
        reader = threading.Thread(target=lambda read=read: read.append(fifo.read_text()))
        reader.start()
        write()
        reader.join(10)
        assert read == ["hello"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    write_output(Path("/dev/null"), "x")
    open_output(Path("/dev/null")).close()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
def test_stdout_goes_on_where_it_is(tmp_path: Path, name: str) -> None:
    code = f"""
from pathlib import Path
from specdec_cli.outputs import write_output
print("one", flush=True)
write_output(Path({name!r}), "two\\n")
print("three")
"""
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([COMMAND[0], "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "one\ntwo\nthree\n"


# --- the commands ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("option", ["--jsonl", "--log", "--prompt-cache", "--ngram-store"])
@pytest.mark.parametrize("named", NAMED)
def test_run_never_writes_over_its_models(
    models: Models, tmp_path: Path, option: str, named: Callable[[Path], Path]
) -> None:
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    for copy, original in ((target, models.words), (draft, models.draft)):
        copy.write_bytes(original.read_bytes())
    place, before = named(draft), draft.read_bytes()
    done = inside("run", target, "a b", "--draft", draft, "-n", 3, option, place)
    assert done.code == 2, done.err
    assert draft.read_bytes() == before
    assert "Hint: " in done.err


def test_the_drafts_prompt_cache_is_an_output_too(models: Models, tmp_path: Path) -> None:
    given = ("run", models.words, "a b", "--prompt-cache", tmp_path / "p", "--jsonl", tmp_path / "p.draft")
    assert "name the same file" in inside(*given).err


def test_run_never_writes_over_what_it_reads(models: Models, tmp_path: Path) -> None:
    text, grammar = tmp_path / "a.txt", tmp_path / "b.gbnf"
    text.write_text("a b")
    grammar.write_text('root ::= "a"+')
    given = ("run", models.words, "-f", text, "--grammar", grammar, "-n", 2)
    for option in ("--jsonl", "--log", "--prompt-cache", "--ngram-store"):
        for file in (text, grammar):
            assert inside(*given, option, file).code == 2
    assert (text.read_text(), grammar.read_text()) == ("a b", 'root ::= "a"+')


@pytest.mark.parametrize("option", ["--json", "--md", "--plot"])
def test_bench_never_writes_over_its_models(models: Models, tmp_path: Path, option: str) -> None:
    target = tmp_path / "t.svg"
    target.write_bytes(models.words.read_bytes())
    before = target.read_bytes()
    assert "would overwrite" in inside("bench", target, option, target).err
    assert "would overwrite" in inside("bench", models.words, option, target).err
    assert target.read_bytes() == before


def test_audit_and_draft_make_never_write_over_a_model(models: Models, tmp_path: Path) -> None:
    target = tmp_path / "t.gguf"
    target.write_bytes(models.words.read_bytes())
    before = target.read_bytes()
    assert "would overwrite" in inside("audit", target, "--json", target).err
    assert "already exists" in inside("draft", "make", target, "--out", target).err
    (tmp_path / "dangling").symlink_to("nowhere")
    assert "already exists" in inside("draft", "make", target, "--out", tmp_path / "dangling").err
    assert target.read_bytes() == before


def test_an_old_trace_survives_what_does_not_start(models: Models, tmp_path: Path) -> None:
    trace, log = tmp_path / "old.jsonl", tmp_path / "old.log"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    for model in ("demoo", tmp_path / "none.gguf", broken):
        trace.write_text("old")
        log.write_text("old")
        done = inside("run", model, "a", "--jsonl", trace, "--offline")
        assert done.code in (2, 3), done.err
        assert trace.read_text() == "old"
        inside("run", model, "a", "--log", log, "--offline")
        assert log.read_text() == "old" or model == broken, "what fails to load is what a log is for"
    done = inside("run", models.words, "a b", "-n", 3, "--raw", "--plain", "--jsonl", trace, "--log", log)
    assert done.code == 0, done.err
    assert json.loads(trace.read_text().splitlines()[0])["type"] == "header"
    assert "llama" in log.read_text()


def test_streams_as_outputs_of_run(models: Models) -> None:
    given = ("run", models.words, "a b", "-n", 3, "--raw", "--plain", "--seed", 1)
    plain = specdec(*given)
    assert specdec(*given, "--jsonl", "/dev/null", "--log", "/dev/null").out == plain.out
    both = specdec(*given, "--jsonl", "/dev/stdout")
    assert both.code == 0, both.err
    assert both.out.count('"type": "round"') >= 1
    log = specdec(*given, "--log", "/dev/stdout")
    assert "llama" in log.out


@pytest.mark.parametrize("option", ["--log", "--jsonl", "--ngram-store"])
@pytest.mark.parametrize(("stream", "mode"), [("stdin", "r"), ("stdout", "a"), ("stderr", "a")])
def test_the_file_of_a_standard_stream_is_not_written_over(
    models: Models, tmp_path: Path, option: str, stream: str, mode: str
) -> None:
    text = tmp_path / "text"
    text.write_text("a b\n")
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with text.open(mode) as file:
        command = [*COMMAND, "run", str(models.ring), "a", "-n", "2", option, str(text)]
        done = subprocess.run(command, **{**streams, stream: file}, check=False, timeout=PATIENCE)
    told = text.read_text() if stream == "stderr" else "a b\n" + done.stderr.decode()
    name = {"stdin": "input", "stdout": "output", "stderr": "error"}[stream]
    assert (done.returncode, told[:4]) == (2, "a b\n")
    assert f"{option} would overwrite standard {name}" in told
    assert stream == "stderr" or text.read_text() == "a b\n"
