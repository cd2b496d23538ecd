"""`specdec race`: measured one after the other, shown together, saved."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Models, inside
from tests.terminals import SHOW_CURSOR, Terminal


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("race"))


def flags(models: Models, *more: object) -> tuple[object, ...]:
    return ("race", models.words, "a b", "--raw", "--draft", models.draft, "-n", 60, "--seed", 3, "--trust", *more)


def test_in_a_pipe_only_the_figures_are_told(models: Models) -> None:
    done = inside(*flags(models))

    assert (done.code, done.out) == (0, "")
    drafted, plain, verdict = done.err.splitlines()[-3:]
    assert drafted.startswith("drafted: 60 tokens, ")
    assert plain.startswith("plain:   60 tokens, ")
    assert re.fullmatch(r"identical text, [\d.]+x plain decoding(: slower)?", verdict)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 20)])
def test_at_a_terminal_the_end_of_the_race_stays(models: Models, columns: int, rows: int) -> None:
    with Terminal(*flags(models), columns=columns, rows=rows) as terminal:
        assert terminal.end() == 0
        seen = terminal.lines
    assert re.search(r"identical text, [\d.]+x plain decoding(: slower)?$", " ".join(seen))
    titles = [row for row in seen if "tok/s" in row]
    assert len(titles) == (1 if columns >= 80 else 2)
    assert all("60 tokens" in row for row in titles)
    assert terminal.raw.rstrip().endswith(SHOW_CURSOR)


def test_what_is_saved(models: Models, tmp_path: Path) -> None:
    for name in ("race.svg", "race.cast", "race.gif"):
        path = tmp_path / name
        done = inside(*flags(models, "--save", path))
        assert done.code == 0, done.err
        assert f"Wrote {path}." in done.err
    assert (tmp_path / "race.svg").read_text(encoding="utf-8").startswith("<svg")
    assert json.loads((tmp_path / "race.cast").read_text(encoding="utf-8").splitlines()[0])["version"] == 2
    assert (tmp_path / "race.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ("--save", "a.mp4"),
            "Error: Unknown format: a.mp4.\nHint: Use a name that ends in .svg, .gif, .cast.\n",
        ),
        (("--prompt-cache", "cache"), "Error: race reads each prompt anew.\nHint: Omit --prompt-cache.\n"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(models: Models, more: tuple[str, ...], words: str) -> None:
    done = inside(*flags(models, *more))
    assert (done.code, done.err) == (2, words)


def test_a_gif_without_pillow_is_refused_in_words(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.delitem(sys.modules, "specdec_cli.ui.race_gif", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", missing)
    done = inside(*flags(models, "--save", "race.gif"))
    assert done.code == 2
    assert "A GIF needs Pillow" in done.err
    assert 'pip install "specdec-cli[gif]"' in done.err


def test_a_race_needs_a_prompt(models: Models) -> None:
    with Terminal("race", models.chat) as terminal:
        assert terminal.end() == 2
        assert "race needs a prompt." in terminal.text
