"""Files of another hand: bounded in size, depth and numbers; nothing that is not a file is waited for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_cli.untrusted_files import DEEPEST, parse_json, read_file, read_json, reason


def test_json_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": [1, 2.5, "é", null, true]}', encoding="utf-8")
    assert read_json(file) == {"a": [1, 2.5, "é", None, True]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * (DEEPEST + 1) + "1" + "]" * (DEEPEST + 1), f"nested deeper than {DEEPEST} levels"),
        ('{"a":' * 30 + "1" + "}" * 30, f"nested deeper than {DEEPEST} levels"),
        ("[NaN]", "number out of range"),
        ('{"a": -Infinity}', "number out of range"),
        ("1e999", "number out of range"),
        (f"[{10**30}]", "number out of range"),
        ("9" * 5000, "number out of range"),
        ("{", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_json_out_of_bounds_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)


def test_the_bounds_themselves_are_allowed() -> None:
    assert parse_json("[" * DEEPEST + "1" + "]" * DEEPEST)
    assert parse_json(str(2**63 - 1)) == 2**63 - 1
    assert parse_json(b'"\xc3\xa9"') == "é"
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_json(b'"\xe9"')


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("made", [fifo, folder, lambda _: Path("/dev/zero"), lambda _: Path("/dev/null")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        read_file(made(tmp_path / "it"))


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * 11)
    assert read_file(file, 11) == b"x" * 11
    with pytest.raises(OSError, match="larger than 10 bytes") as caught:
        read_file(file, 10)
    assert reason(caught.value) == "it is larger than 10 bytes"
