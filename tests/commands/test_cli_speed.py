"""plan --speed: forecasts on the command line, with costs that no clock has to be right for."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.commands.speed import chances_of
from specdec_cli.errors import ModelError
from specdec_cli.forecast.made_up import MadeUp
from specdec_cli.forecast.passes import WIDTHS, Seconds, Way
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.presets.schema import ModelSource, Preset, Report
from tests.cli import inside
from tests.hubstub import HubStub
from tests.planted import random_chain, write_planted
from tests.shop import add

Measure = Callable[[Sequence[MadeUp], Way, float], Sequence[Seconds]]

TARGET_PASS, DRAFT_PASS, WIDER = 0.1, 0.005, 0.1
"""Seconds of a pass of one token, and by what share of it each further token makes it longer."""


def measured(models: Sequence[MadeUp], _way: Way, _seconds: float) -> Sequence[Seconds]:
    """Targets have more than one layer. In half precision they take twice as long."""
    found = []
    for model in models:
        n = sum(name.endswith("attn_norm.weight") for name in model.tensors)
        slower = 2 if any(matrix.type == "F16" for matrix in model.tensors.values()) else 1
        one = DRAFT_PASS if n == 1 else slower * TARGET_PASS
        found.append({w: one * (1 + WIDER * (w - 1)) for w in WIDTHS})
    return found


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, measured)
    monkeypatch.setattr("specdec_cli.hub.inspect.read_vocabulary_apart", read_vocabulary)  # no process for each


def use(monkeypatch: pytest.MonkeyPatch, measure: Measure) -> None:
    monkeypatch.setattr("specdec_cli.forecast.costs.time_passes", measure)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("speed")
    target = write_planted(folder / "target-F32.gguf", random_chain(320, 1), n_layers=6)
    return target, write_planted(folder / "draft-F32.gguf", random_chain(320, 2))


def test_a_pair_of_files(files: tuple[Path, Path]) -> None:
    target, draft = files
    speed = json.loads(inside("plan", target, "--draft", draft, "--speed", "--json").out)["speed"]
    assert [row["acceptance"] for row in speed] == [0.6, 0.7, 0.8]
    assert {(row["quant"], row["target_file"], row["draft_file"]) for row in speed} == {
        ("F32", target.name, draft.name)
    }
    assert {row["plain_tokens_per_second"] for row in speed} == {10.0}
    assert all(row["k"] > 1 and row["tokens_per_second"] == round(10 * row["speedup"], 3) for row in speed)
    assert speed == sorted(speed, key=lambda row: row["speedup"])


def test_the_table(files: tuple[Path, Path]) -> None:
    target, draft = files
    done = inside("plan", target, "--draft", draft, "--speed")
    assert done.code == 0
    header, row = (line for line in done.out.splitlines() if line.startswith(("FORMAT", "F32")))
    assert header.split() == ["FORMAT", "SIZE", "PLAIN", "0.6", "ACCEPTED", "0.7", "ACCEPTED", "0.8", "ACCEPTED"]
    assert "10.0" in row
    assert "x, k " in row


def test_without_a_draft_there_is_the_plain_speed(files: tuple[Path, Path]) -> None:
    (row,) = json.loads(inside("plan", files[0], "--speed", "--json").out)["speed"]
    assert (row["draft_file"], row["k"], row["speedup"], row["acceptance"]) == (None, 0, 1.0, None)
    assert "ACCEPTED" not in inside("plan", files[0], "--speed").out
    assert "lookup cost and bring is not forecast" in inside("plan", files[0], "--draft", "ngram", "--speed").err


def test_drafts_that_do_not_pay(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda models, _way, _seconds: [{w: float(w) for w in WIDTHS} for _ in models])
    done = inside("plan", *(files[0], "--draft", files[1]), "--speed")
    assert done.out.count("drafts do not pay") == 3


def test_every_format_of_the_repository(files: tuple[Path, Path], tmp_path: Path, request: Any) -> None:
    target, draft = files
    half = write_planted(tmp_path / "half.gguf", random_chain(320, 1), n_layers=6, dtype="float16")
    for name, source in (("target-F32.gguf", target), ("target-F16.gguf", half), ("other-F16.gguf", half)):
        add(tmp_path / "hub", "acme/target-GGUF", name, source)
    patch = request.getfixturevalue("monkeypatch")
    with HubStub(tmp_path / "hub") as stub:
        patch.setenv("HF_ENDPOINT", stub.endpoint)
        patch.setenv("NO_PROXY", "127.0.0.1")
        arguments = ("plan", "acme/target-GGUF:target-F32.gguf", "--draft", draft, "--speed", "--json")
        speed = json.loads(inside(*arguments).out)["speed"]
    found = {row["quant"]: row["plain_tokens_per_second"] for row in speed}
    assert found == {"F32": 10.0, "F16": 5.0}
    assert {row["target_file"] for row in speed} == {"target-F32.gguf", "target-F16.gguf"}


def test_what_cannot_be_measured_is_told_and_the_rest_stays(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Sequence[Seconds]:
        raise ModelError("llama.cpp does not know this.", hint="-")

    use(monkeypatch, refuse)
    done = inside("plan", files[0], "--speed", "--json")
    assert json.loads(done.out)["speed"] == []
    assert f"{files[0].name}: llama.cpp does not know this." in done.err
    assert "Nothing could be measured." in inside("plan", files[0], "--speed").out


def test_want_of_time_is_told(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.commands.plan.SECONDS", 0.0)
    assert "Not measured for want of time: F32." in inside("plan", files[0], "--speed").err


def test_options_that_do_not_go_together(files: tuple[Path, Path]) -> None:
    other = inside("plan", files[0], "--speed", "--ram", "8G")
    assert (other.code, "--speed measures this machine" in other.err) == (2, True)
    assert inside("plan", files[0], "--again").code == 2


def preset(*reports: Report, p_min: float | None = None) -> Preset:
    return Preset("p", "d", "l", ModelSource(path="x.gguf"), p_min=p_min, reports=reports)


def test_chances_are_those_reported_of_the_preset() -> None:
    assert chances_of(None) == chances_of(preset(Report("h", "s"))) == (0.6, 0.7, 0.8)
    always_three = Report("h", "s", acceptance=round((0.8 + 0.64 + 0.512) / 3, 6), k=3)
    assert chances_of(preset(always_three)) == (0.8,)
    assert chances_of(preset(always_three, p_min=0.5)) == (round((0.8 + 0.64 + 0.512) / 3, 3),)
    assert chances_of(preset(Report("h", "s", acceptance=0.7))) == (0.7,)


def test_presets_that_are_here(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEC_CONFIG", str(tmp_path))
    monkeypatch.setattr("specdec_cli.presets.schema.SHIPPED", tmp_path / "none")
    (tmp_path / "presets").mkdir()
    for name, draft in (("pair", files[1]), ("gone", tmp_path / "no.gguf")):
        lines = ["description: a pair", "licence: none", "target:", f"  path: {files[0]}", "draft:", f"  path: {draft}"]
        (tmp_path / "presets" / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    found = {row["name"]: row for row in json.loads(inside("presets", "--speed", "--json").out)["presets"]}
    assert found["gone"]["speed"] is None
    speed = found["pair"]["speed"]
    assert (speed["plain"], speed["acceptance"]) == (pytest.approx(10.0), 0.7)
    shown = inside("presets", "--speed").out
    assert f"10.0, {speed['tokens_per_second']:.1f} with k {speed['k']}" in shown
    assert "TOKENS/S" not in inside("presets").out
