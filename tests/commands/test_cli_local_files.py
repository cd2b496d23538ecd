"""list, rm and verify-files, with the models that were made on this machine."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from huggingface_hub import constants

from specdec_cli.paths import config_folder
from specdec_cli.presets.derive import derived_path, record_of
from specdec_cli.presets.resolve import derived_folder
from specdec_cli.presets.schema import load_preset
from tests.cli import Models, inside


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def made(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ...]:
    """The demo's two models, of other bytes, with the notes of their making."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    demo = load_preset("demo")
    recipes = [source.derive for source in (demo.target, demo.draft) if source is not None and source.derive]
    places = tuple(derived_path(recipe, derived_folder()) for recipe in recipes)
    for place, model in zip(places, (models.ring, models.ring_draft), strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(model.read_bytes())
        record_of(place).write_text(f"{hashlib.sha256(place.read_bytes()).hexdigest()}  {place.name}\n")
    return places


def test_list_shows_them_with_their_sizes(made: tuple[Path, ...]) -> None:
    (pair,) = json.loads(inside("list", "--json").out)["pairs"]
    n_bytes = sum(place.stat().st_size for place in made)
    assert pair == {"name": "demo", "complete": True, "bytes": n_bytes, "files": [str(place) for place in made]}
    assert json.loads(inside("list", "--json").out)["total_bytes"] == n_bytes
    line = inside("list").out.splitlines()[1].split()
    assert (line[0], line[3]) == ("demo", "yes")


def test_half_of_them_is_partly_here(made: tuple[Path, ...]) -> None:
    made[0].unlink()
    assert inside("list").out.splitlines()[1].split()[3] == "partly"


def test_they_are_verified_by_the_note_of_their_making(made: tuple[Path, ...]) -> None:
    assert inside("verify-files").out.splitlines() == [f"ok  {place.name}" for place in made]
    assert inside("verify-files", "demo").code == 0


def test_one_from_before_such_notes_is_read_at_least(made: tuple[Path, ...]) -> None:
    record_of(made[0]).unlink()
    assert f"ok  {made[0].name}  (structure only; no hash is known)" in inside("verify-files").out
    made[0].write_bytes(made[0].read_bytes()[:1000])
    assert inside("verify-files").code == 29


def test_a_damaged_one_is_deleted_and_said(made: tuple[Path, ...]) -> None:
    data = bytearray(made[0].read_bytes())
    data[-1] ^= 1
    made[0].write_bytes(data)
    done = inside("verify-files")
    assert done.code == 29
    assert f"{made[0].name}, which was made here, is damaged: its hash differs" in done.err
    assert not made[0].exists()
    assert not record_of(made[0]).exists()
    assert inside("verify-files").code == 0


@pytest.mark.usefixtures("made")
def test_rm_deletes_them_and_their_notes() -> None:
    done = inside("rm", "demo", "--yes")
    assert done.code == 0
    assert done.err.startswith("Deleted demo: ")
    assert list(derived_folder().iterdir()) == []
    assert json.loads(inside("list", "--json").out)["total_bytes"] == 0


def test_what_another_preset_uses_is_kept(made: tuple[Path, ...]) -> None:
    own = config_folder() / "presets" / "own.yaml"
    own.parent.mkdir(parents=True)
    recipe = load_preset("demo").target.derive
    assert recipe is not None
    lines = "".join(f"    {name}: {value}\n" for name, value in asdict(recipe).items())
    own.write_text(f"description: the same target\nlicence: MIT\ntarget:\n  derive:\n{lines}")
    done = inside("rm", "demo", "--yes")
    assert f"{made[0].name} was kept: also used by own." in done.err
    assert [place.exists() for place in made] == [True, False]


def test_one_that_no_preset_names_any_more(made: tuple[Path, ...]) -> None:
    """As after an update of the demo."""
    old = made[0].with_name("Old-0123abcd-F32.gguf")
    made[0].rename(old)
    assert f"derived/{old.name}" in inside("list").out
    assert inside("rm", f"derived/{old.name}", "--yes").code == 0
    assert not old.exists()


def test_a_preset_of_another_format_is_named() -> None:
    folder = config_folder() / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("")
    (folder / ".hidden").write_text("")
    done = inside("list")
    assert done.err == f"{folder / 'mine.toml'} is not read: presets are YAML files called NAME.yaml.\n"
