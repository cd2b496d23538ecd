"""One broken preset file is refused in one sentence, and takes nothing else down."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.presets.schema import read_preset
from specdec_cli.presets.strict_yaml import read_yaml
from tests.cli import inside, specdec

GOOD = "description: d\nlicence: MIT\ntarget: {path: a.gguf}\n"
BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def as_text(text: str | bytes) -> Callable[[Path], None]:
    return lambda file: void(file.write_bytes(text if isinstance(text, bytes) else text.encode()))


def void(_: object) -> None:
    pass


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a date that is none": (as_text(f"{GOOD}note: 2024-99-99\n"), "'2024-99-99' is not a value (line 4)"),
    "a tag": (as_text(f"{GOOD}note: !!bool z\n"), "tags are not allowed (line 4)"),
    "a number of 5,000 digits": (as_text(f"{GOOD}k: {'9' * 5000}\n"), "is not a value (line 4)"),
    "a hexadecimal number of 5,000 digits": (as_text(f"{GOOD}k: 0x{'9' * 5000}\n"), "number out of range"),
    "a number in base 60": (as_text(f"{GOOD}p_min: {'1:' * 1000}1.0\n"), "is not a value (line 4)"),
    "a whole number in base 60": (as_text(f"{GOOD}k: {'1:' * 1000}1\n"), "number out of range"),
    "a path with a NUL": (
        as_text(GOOD.replace("a.gguf", r'"a\0b.gguf"')),
        "target.path has an invalid value: 'a\\x00b.gguf'",
    ),
    "an empty path": (as_text(GOOD.replace("a.gguf", "''")), "target.path has an invalid value: ''"),
    "a path of half a character": (
        as_text(GOOD.replace("a.gguf", r'"\ud800.gguf"')),
        "path has an invalid value: '\\ud800.gguf'",
    ),
    "a text of half a character": (as_text(f'{GOOD}system: "\\udcff"\n'), "system has an invalid value: '\\udcff'"),
    "not a number": (as_text(f"{GOOD}p_min: .nan\n"), "number out of range"),
    "3,000 brackets": (as_text(f"{GOOD}note: {'[' * 3000}"), "nested deeper than 20 levels"),
    "30 levels": (as_text(f"{GOOD}note: {'[' * 30}{']' * 30}\n"), "nested deeper than 20 levels (line 4)"),
    "an anchor": (as_text(f"{GOOD}note: &a x\n"), "aliases and anchors are not allowed (line 4)"),
    "a bomb of aliases": (as_text(BOMB), "aliases and anchors are not allowed (line 1)"),
    "a merge": (as_text(f"{GOOD}<<: {{k: 1}}\n"), "a key is not plain text (line 4)"),
    "a list as a key": (as_text(f"{GOOD}? [a]\n: b\n"), "a key is not plain text (line 4)"),
    "a key given twice": (as_text(f"{GOOD}k: 1\nk: 2\n"), "the key 'k' is duplicated (line 5)"),
    "a key given twice inside": (as_text(f"{GOOD}sampling: {{top_k: 1, top_k: 2}}\n"), "'top_k' is duplicated"),
    "two documents": (as_text(f"{GOOD}---\n{GOOD}"), "more than one document (line 4)"),
    "a NUL byte": (as_text(f"{GOOD}note: a\0b\n"), "control character"),
    "50 MB": (as_text(GOOD + "#" * 50_000_000), "larger than 65,536 bytes"),
    "no UTF-8": (as_text(b"\xff\xfe\xfa"), "not UTF-8"),
    "a folder": (Path.mkdir, "not a regular file"),
    "a FIFO": (lambda file: os.mkfifo(file), "not a regular file"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "not a regular file"),
    "a link to nothing": (lambda file: file.symlink_to("nothing"), "No such file"),
    "a link to itself": (lambda file: file.symlink_to(file.name), "symbolic links"),
    "text": (as_text("x" * 60_000), "must be a mapping"),
    "a key of 60,000 letters": (as_text(f"{GOOD}{'x' * 1000}: 1\n? {'y' * 60_000}\n: 1\n"), "is not a key of a preset"),
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A preset file in a folder of the user's own, and words of its error."""
    make, words = BROKEN[request.param]
    file = tmp_path / "presets" / "broken.yaml"
    file.parent.mkdir()
    make(file)
    return file, words


def test_it_is_refused_in_one_sentence(broken: tuple[Path, str]) -> None:
    file, words = broken
    with pytest.raises(UsageError) as caught:
        read_preset(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert caught.value.hint


def test_commands_that_list_name_it_and_go_on(broken: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, words = broken
    (file.parent / "good.yaml").write_text(GOOD)
    monkeypatch.setenv("SPECDEC_CONFIG", str(file.parent.parent))
    for command in (("presets",), ("list",), ("verify-files",)):
        done = inside(*command)
        assert done.code == 0, done.err
        assert done.err.count("broken.yaml") == 1
        assert words in done.err
    assert "good" in inside("presets").out
    run = inside("run", "broken", "hello")
    assert run.code == 2
    assert words in run.err


def test_what_is_within_bounds_is_read_as_before(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\nb: [1.5, yes, ~, 'x: y']\n")
    assert read_yaml(file) == {"a": 1, "b": [1.5, True, None, "x: y"]}
    file.write_text("")
    assert read_yaml(file) is None


def test_a_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    for name in (b"\xff.yaml", b"\x1b[31mred.yaml"):
        (tmp_path / "presets" / os.fsdecode(name)).write_text(GOOD)
    for command in ("presets", "list"):
        done = specdec(command, env={"SPECDEC_CONFIG": str(tmp_path)})
        assert (done.code, "Traceback" in done.err) == (0, False), done.err
        assert "\x1b" not in done.out
