"""Presets: what is written is what is meant, or an error that helps."""

from importlib.metadata import metadata
from pathlib import Path

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.presets import SHIPPED, Derive, ModelSource, Preset, load_preset, preset_names, read_preset
from specdec_cli.sampling import SamplingParams

SMALLEST = """\
description: a pair
licence: MIT
target:
  path: big.gguf
"""

WHOLE = """\
description: a pair
licence: MIT
target:
  path: ~/big.gguf
draft:
  derive: {package: some-package, file: models/small.gguf, sha256: 0a1b, quantize: Q4_0, extra: demo}
k: 5
sampling: {temperature: 0, top_k: 20, top_p: 1}
system: Be short.
"""


def written(folder: Path, text: str, name: str = "pair") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_smallest_preset_has_the_defaults(tmp_path: Path) -> None:
    assert read_preset(written(tmp_path, SMALLEST)) == Preset("pair", "a pair", "MIT", ModelSource(path="big.gguf"))


def test_every_key_arrives(tmp_path: Path) -> None:
    assert read_preset(written(tmp_path, WHOLE)) == Preset(
        name="pair",
        description="a pair",
        licence="MIT",
        target=ModelSource(path="~/big.gguf"),
        draft=ModelSource(derive=Derive("some-package", "models/small.gguf", "0a1b", "Q4_0", "demo")),
        k=5,
        sampling=SamplingParams(temperature=0, top_k=20, top_p=1),
        system="Be short.",
    )


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ("descripton: x", "descripton", "'description'"),
        ("Target: x", "Target", "'target'"),
        ("drafts: {path: x}", "drafts", "'draft'"),
        ("sampling: {temprature: 1}", "sampling.temprature", "'temperature'"),
        ("draft: {derive: {packages: x}}", "draft.derive.packages", "'package'"),
        ("draft: {file: x}", "draft.file", "path"),
        ("xyz: 1", "xyz", "description, licence"),
        ("1: 1", "1", "description, licence"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_that_is_known(line: str, key: str, hint: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"{SMALLEST}{line}\n")

    with pytest.raises(UsageError) as caught:
        read_preset(file)
    assert f"{file}: {key} is not a key" in str(caught.value)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("missing", ["description", "licence", "target"])
def test_a_missing_key_is_named(missing: str, tmp_path: Path) -> None:
    lines = [line for line in SMALLEST.splitlines() if not line.startswith(missing)]
    if missing == "target":
        lines = [line for line in lines if "path" not in line]

    with pytest.raises(UsageError, match=f"{missing} is missing"):
        read_preset(written(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize("missing", ["package", "file", "sha256", "quantize", "extra"])
def test_a_missing_key_inside_is_named_with_its_place(missing: str, tmp_path: Path) -> None:
    keys = {"package", "file", "sha256", "quantize", "extra"} - {missing}
    text = f"{SMALLEST}draft:\n  derive:\n" + "".join(f"    {key}: x\n" for key in keys)

    with pytest.raises(UsageError, match=f"draft.derive.{missing} is missing"):
        read_preset(written(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("k: four", "k cannot be 'four'"),
        ("k: 4.5", "k cannot be 4.5"),
        ("k: yes", "k cannot be True"),
        ("k: -1", "k cannot be -1"),
        ("k:", "k cannot be None"),
        ("system: 12", "system cannot be 12"),
        ("sampling: {temperature: hot}", "sampling.temperature cannot be 'hot'"),
        ("sampling: {temperature: -1}", "sampling.temperature cannot be -1"),
        ("sampling: {top_k: 0.5}", "sampling.top_k cannot be 0.5"),
        ("sampling: [0.7]", "sampling must be a mapping"),
        ("draft: small.gguf", "draft must be a mapping"),
        ("draft: {path: 2024-01-01}", "draft.path cannot be"),
        # A checksum of digits only has to be quoted in YAML; the message says so.
        ("draft: {derive: {package: x, file: x, sha256: 123, quantize: x, extra: x}}", "sha256 cannot be 123"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error_in_words(line: str, words: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"{SMALLEST}{line}\n")

    with pytest.raises(UsageError) as caught:
        read_preset(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "a: [1\n", "a: 'x\n", "\t- x"])
def test_a_file_that_is_no_mapping_is_an_error_in_words(text: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)

    with pytest.raises(UsageError) as caught:
        read_preset(file)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"description: \xe9\n")

    for file in (tmp_path / "latin.yaml", tmp_path / "missing.yaml"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_preset(file)


def test_yaml_runs_no_code(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_preset(written(tmp_path, f"{SMALLEST}system: !!python/object/apply:os.getcwd []\n"))


def test_ones_own_preset_hides_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CONFIG", str(tmp_path))
    assert load_preset("demo").description != "a pair"

    own = written(tmp_path / "presets", SMALLEST, "demo")
    written(tmp_path / "presets", SMALLEST, "mine")
    written(tmp_path / "presets", "not even YAML: [", "broken")
    (tmp_path / "presets" / "notes.txt").write_text("no preset")

    assert load_preset("demo").description == "a pair"
    assert preset_names()["demo"] == own
    assert {"demo", "mine", "broken"} <= preset_names().keys()
    assert "notes" not in preset_names()


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        written(tmp_path, SMALLEST, name)

    with pytest.raises(UsageError, match="'alpah'") as caught:
        load_preset("alpah", [tmp_path])
    assert caught.value.hint == "Did you mean 'alpha'?"

    with pytest.raises(UsageError) as caught:
        load_preset("xyz", [tmp_path, tmp_path / "missing"])
    assert "alpha, beta" in str(caught.value.hint)


@pytest.mark.parametrize("name", preset_names([SHIPPED]))
def test_what_is_shipped_can_be_loaded(name: str) -> None:
    preset = load_preset(name, [SHIPPED])

    assert preset.name == name
    for source in (preset.target, preset.draft):
        assert source is None or (source.path is None) != (source.derive is None)
        if source is not None and source.derive is not None:
            assert len(source.derive.sha256) == 64
            assert source.derive.extra in (metadata("specdec-cli").get_all("Provides-Extra") or ())


def test_something_is_shipped() -> None:
    assert "demo" in preset_names([SHIPPED])
