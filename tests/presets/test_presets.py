"""Presets: what is written is what is meant, or an error that helps."""

import re
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.errors import UsageError
from specdec_cli.presets.schema import (
    SHIPPED,
    Derive,
    HubFile,
    ModelSource,
    Preset,
    Report,
    load_preset,
    preset_names,
    read_preset,
)

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

FROM_THE_HUB = """\
description: a pair
licence: MIT (target) and Apache-2.0 (draft)
chat: ChatML
target:
  hub:
    repo: some-owner/Big-1.0_GGUF
    file: folder/big-00001-of-00002.gguf
    revision: 0123456789abcdef0123456789abcdef01234567
    bytes: 12345678901
    gated: true
draft:
  hub:
    repo: some-owner/small
    file: small.gguf
    sha256: "{sha256}"
p_min: 0.75
reports:
  - hardware: a machine
    source: "some tracker #12"
    speed: 2 times
    acceptance: 0.5
    k: 8
  - {{hardware: another, source: a page}}
note: Slow.
unconfirmed: Everything.
""".format(sha256="0a" * 32)

OF_THE_HUB = "draft: {{hub: {{repo: a/b, file: b.gguf{}}}}}"


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


def test_every_key_of_a_preset_from_the_hub_arrives(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    preset = read_preset(written(tmp_path, FROM_THE_HUB))
    assert preset == Preset(
        name="pair",
        description="a pair",
        licence="MIT (target) and Apache-2.0 (draft)",
        target=ModelSource(
            hub=HubFile(
                "some-owner/Big-1.0_GGUF", "folder/big-00001-of-00002.gguf", commit, bytes=12_345_678_901, gated=True
            )
        ),
        draft=ModelSource(hub=HubFile("some-owner/small", "small.gguf", "main", sha256="0a" * 32)),
        chat="ChatML",
        p_min=0.75,
        reports=(
            Report("a machine", "some tracker #12", speed="2 times", acceptance=0.5, k=8),
            Report("another", "a page"),
        ),
        note="Slow.",
        unconfirmed="Everything.",
    )
    assert preset.target.hub is not None
    assert preset.target.hub.is_pinned
    assert preset.draft is not None
    assert preset.draft.hub is not None
    assert not preset.draft.hub.is_pinned


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ("descripton: x", "descripton", "'description'"),
        ("Target: x", "Target", "'target'"),
        ("drafts: {path: x}", "drafts", "'draft'"),
        ("sampling: {temprature: 1}", "sampling.temprature", "'temperature'"),
        ("draft: {derive: {packages: x}}", "draft.derive.packages", "'package'"),
        ("draft: {file: x}", "draft.file", "path"),
        ("draft: {hubs: {}}", "draft.hubs", "'hub'"),
        ("draft: {hub: {repo: a/b, file: a.gguf, sha265: x}}", "draft.hub.sha265", "'sha256'"),
        ("reports: [{hardware: x, source: x, acceptence: 1}]", "reports[0].acceptence", "'acceptance'"),
        ("reports: [{hardware: x, source: x}, {hardwear: x}]", "reports[1].hardwear", "'hardware'"),
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
        ("k: four", "k has an invalid value: 'four'"),
        ("k: 4.5", "k has an invalid value: 4.5"),
        ("k: yes", "k has an invalid value: True"),
        ("k: -1", "k has an invalid value: -1"),
        ("k:", "k has an invalid value: None"),
        ("system: 12", "system has an invalid value: 12"),
        ("sampling: {temperature: hot}", "sampling.temperature has an invalid value: 'hot'"),
        ("sampling: {temperature: -1}", "sampling.temperature cannot be -1"),
        ("sampling: {top_k: 0.5}", "sampling.top_k has an invalid value: 0.5"),
        ("sampling: [0.7]", "sampling must be a mapping"),
        ("draft: small.gguf", "draft must be a mapping"),
        ("draft: {path: 2024-01-01}", "draft.path has an invalid value"),
        ("draft: {path: a.gguf, hub: {repo: a/b, file: a.gguf}}", "exactly one is required"),
        ("draft: {}", "exactly one is required"),
        ("draft: {hub: a/b}", "draft.hub must be a mapping"),
        ("draft: {hub: {repo: a/b}}", "draft.hub.file is missing"),
        ("draft: {hub: {repo: b, file: a.gguf}}", "draft.hub.repo has an invalid value: 'b'"),
        ("draft: {hub: {repo: a/b/c, file: a.gguf}}", "draft.hub.repo has an invalid value: 'a/b/c'"),
        ("draft: {hub: {repo: 'https://a/b', file: a.gguf}}", "draft.hub.repo has an invalid value: 'https://a/b'"),
        ("draft: {hub: {repo: a/b, file: a.bin}}", "draft.hub.file has an invalid value: 'a.bin'"),
        ("draft: {hub: {repo: a/b, file: ../a.gguf}}", "draft.hub.file has an invalid value: '../a.gguf'"),
        ("draft: {hub: {repo: a/b, file: /a.gguf}}", "draft.hub.file has an invalid value: '/a.gguf'"),
        (OF_THE_HUB.format(", revision: a b"), "draft.hub.revision has an invalid value: 'a b'"),
        (OF_THE_HUB.format(", revision: ../x"), "draft.hub.revision has an invalid value: '../x'"),
        (OF_THE_HUB.format(f", sha256: {'0a' * 31}"), "draft.hub.sha256 has an invalid value: '0a0a"),
        (OF_THE_HUB.format(f", sha256: {'0A' * 32}"), "draft.hub.sha256 has an invalid value: '0A0A"),
        (OF_THE_HUB.format(", bytes: 0"), "draft.hub.bytes has an invalid value: 0"),
        (OF_THE_HUB.format(", bytes: 1.5"), "draft.hub.bytes has an invalid value: 1.5"),
        (OF_THE_HUB.format(", gated: 1"), "draft.hub.gated has an invalid value: 1"),
        ("p_min: 1.5", "p_min has an invalid value: 1.5"),
        ("p_min: often", "p_min has an invalid value: 'often'"),
        ("reports: {hardware: x, source: x}", "reports must be a list"),
        ("reports: some text", "reports must be a list"),
        ("reports: [x]", "reports must be a mapping"),
        ("reports: [{hardware: x}]", "reports[0].source is missing"),
        ("reports: [{hardware: x, source: x, acceptance: 50 %}]", "reports[0].acceptance has an invalid value: '50 %'"),
        ("reports: [{hardware: x, source: x, k: 4.5}]", "reports[0].k has an invalid value: 4.5"),
        # A checksum of digits only has to be quoted in YAML; the message says so.
        (
            "draft: {derive: {package: x, file: x, sha256: 123, quantize: x, extra: x}}",
            "sha256 has an invalid value: 123",
        ),
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
        with pytest.raises(UsageError, match="Cannot read"):
            read_preset(file)


def test_yaml_runs_no_code(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read"):
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


def test_an_unknown_name_is_answered_with_the_nearest_or_with_where_they_are_listed(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        written(tmp_path, SMALLEST, name)

    with pytest.raises(UsageError, match="'alpah'") as caught:
        load_preset("alpah", [tmp_path])
    assert caught.value.hint == "Did you mean 'alpha'?"

    with pytest.raises(UsageError) as caught:
        load_preset("xyz", [tmp_path, tmp_path / "missing"])
    assert "specdec presets" in str(caught.value.hint)


SHIPPED_NAMES = tuple(preset_names([SHIPPED]))
SHIPPED_PRESETS = {name: load_preset(name, [SHIPPED]) for name in SHIPPED_NAMES}


def hub_files(preset: Preset) -> Iterator[HubFile]:
    for source in (preset.target, preset.draft):
        if source is not None and source.hub is not None:
            yield source.hub


DOCS = (Path(__file__).parent.parent.parent / "docs" / "pairs.md").read_text(encoding="utf-8")
ALL_FILES = {(hub.repo, hub.file): hub for preset in SHIPPED_PRESETS.values() for hub in hub_files(preset)}


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_shipped_preset_is_two_models_with_settings_for_a_draft(name: str) -> None:
    preset = SHIPPED_PRESETS[name]
    assert preset.name == name
    assert re.fullmatch(r"[a-z0-9.-]+", name)
    for source in (preset.target, preset.draft):
        assert source is None or source.path is None
        if source is not None and source.derive is not None:
            assert len(source.derive.sha256) == 64
            assert source.derive.extra in (metadata("specdec-cli").get_all("Provides-Extra") or ())
    assert preset.draft is not None
    assert preset.target != preset.draft
    assert preset.k
    for hub in hub_files(preset):
        assert hub.is_pinned or hub.revision == "main"
        assert not hub.gated
        # Files beside a model that are none: a projector for images, and heads that llama.cpp finds by name.
        assert not re.search(r"mmproj|mtp-|eagle3-|dflash-|dspark-|\.part\d", hub.file, re.IGNORECASE)
    sizes = [hub.bytes for hub in hub_files(preset)]
    if len(sizes) == 2 and None not in sizes:
        assert sizes[0] > sizes[1]


def test_a_shipped_preset_says_what_nobody_has_checked() -> None:
    for name, preset in SHIPPED_PRESETS.items():
        files = list(hub_files(preset))
        if files:
            said = preset.unconfirmed or ""
            assert "Nobody of this project has run this pair." in said, name
            assert ("pinned" in said) == (not all(hub.is_pinned for hub in files)), name
            assert ("checksum" in said) == any(hub.sha256 is None for hub in files), name


def test_shipped_reports_are_figures_with_a_source() -> None:
    reports = [(name, report) for name, preset in SHIPPED_PRESETS.items() for report in preset.reports]
    assert reports
    for name, report in reports:
        assert report.hardware, name
        assert report.source, name
        assert report.speed or report.acceptance is not None, name
        assert report.acceptance is None or 0 < report.acceptance < 1, name


def test_a_file_has_the_same_facts_in_every_preset() -> None:
    for preset in SHIPPED_PRESETS.values():
        for hub in hub_files(preset):
            assert hub == ALL_FILES[hub.repo, hub.file], preset.name


@pytest.mark.parametrize("fact", ["sha256", "bytes"])
def test_no_two_files_have_the_same_facts(fact: str) -> None:
    known = [getattr(hub, fact) for hub in ALL_FILES.values() if getattr(hub, fact) is not None]
    assert len(set(known)) == len(known) > 10


def test_no_two_repositories_have_the_same_commit() -> None:
    repos: dict[str, str] = {}
    for hub in ALL_FILES.values():
        if hub.is_pinned:
            assert repos.setdefault(hub.revision, hub.repo) == hub.repo


def test_every_shipped_preset_is_in_the_docs() -> None:
    """In a row of its own, which tells of both files."""
    for name, preset in SHIPPED_PRESETS.items():
        rows = [line for line in DOCS.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, name
        for hub in hub_files(preset):
            assert hub.repo in rows[0], name
        for report in preset.reports:
            assert report.source.removesuffix(", 2024-11-19") in rows[0], name


def test_something_is_shipped() -> None:
    assert "demo" in SHIPPED_NAMES
    assert len(SHIPPED_NAMES) > 30
