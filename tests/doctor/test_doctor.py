"""`specdec doctor`: its lines, its documents and its exit codes, for pairs that are well and others."""

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.doctor import measured
from specdec_cli.doctor.costs import WIDTHS, Costs
from specdec_cli.generation.pair import Pair
from tests.cli import Done, Models, inside
from tests.terminals import Terminal


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def fixed(passes: float, draft: float, slow: float = 1.0) -> Callable[..., Costs]:
    """In place of what is timed: milliseconds that each token of a pass takes longer, and of a draft token."""

    def timed(_pair: Pair, _seconds: float, _clock: object) -> Costs:
        seconds = {width: [(10 + passes * (width - 1)) / 1000] * 6 for width in WIDTHS}
        seconds[1] = [seconds[1][0]] * 4 + [slow * seconds[1][0]] * 2
        return Costs(64, seconds, [draft / 1000] * 3)

    return timed


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def run(*arguments: object, passes: float = 1.0, draft: float = 1.0, slow: float = 1.0) -> Done:
        monkeypatch.setattr(measured, "_timed", fixed(passes, draft, slow))
        return inside("doctor", *arguments, "--offline", "--threads", 1)

    return run


def by_name(done: Done) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


def test_a_pair_that_is_well(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.words, "--draft", models.draft, "--json")
    found = by_name(done)
    assert list(found) == [
        *("build", "GPU", "cores", "memory", "cache", "Hub cache", "presets", "history", "Hub"),
        *("files", "tokenizers", "fit", "opening", "costs", "acceptance"),
    ]
    assert done.code == 0, done.out
    assert json.loads(done.out)["problems"] is False
    assert {found[name]["verdict"] for name in ("files", "tokenizers", "fit", "opening", "costs", "acceptance")} == {
        "ok"
    }
    assert found["Hub"]["verdict"] == "skipped"
    assert "words.gguf (structure only; no hash is known)" in found["files"]["text"]
    assert "A pass takes 10.0 ms, one of 9 tokens 18.0 ms, a draft token 1.0 ms" in found["costs"]["text"]
    assert "of the draft tokens were accepted (code " in found["acceptance"]["text"]


def test_the_lines_that_a_person_reads(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.words, "--draft", models.draft)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split()[1] == "build"
    assert any(line.startswith("ok       tokenizers  Tokenizers match") for line in lines)
    assert lines[-1].startswith("Next: ")
    assert done.err == ""


def test_tokenizers_that_differ(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.ring, "--draft", models.other_words, "--json")
    found = by_name(done)
    assert done.code == 11
    assert found["tokenizers"]["verdict"] == "problem"
    assert "Tokenizers differ" in found["tokenizers"]["text"]
    assert json.loads(done.out)["next"] == f"specdec run {models.ring} --draft {models.other_words} --cross"
    assert (found["opening"]["verdict"], found["acceptance"]["verdict"]) == ("problem", "skipped")


def test_a_damaged_file(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.truncated, "--draft", "ngram")
    assert done.code == 11
    assert "problem  files       truncated.gguf is damaged" in done.out
    assert done.out.splitlines()[-1] == f"Next: sha256sum {models.truncated}"


def test_what_is_accepted_is_too_little(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.words, "--draft", models.ring_draft, "--json")
    found = by_name(done)["acceptance"]
    assert (done.code, found["verdict"]) == (11, "problem")
    assert "That is too little" in found["text"]
    assert found["command"] == f"specdec run {models.words} --draft ngram"


def test_a_draft_that_costs_too_much(checked: Callable[..., Done], models: Models) -> None:
    found = by_name(checked(models.ring, "--draft", models.ring_draft, "--json", passes=2.0, draft=11.0))
    assert found["costs"]["verdict"] == "problem"
    assert "even if it were always right" in found["costs"]["text"]
    assert found["costs"]["command"] == f"specdec draft make {models.ring}"


def test_wide_passes_that_cost_too_much(checked: Callable[..., Done], models: Models) -> None:
    found = by_name(checked(models.ring, "--draft", models.ring_draft, "--json", passes=11.0))["costs"]
    assert found["verdict"] == "problem"
    assert found["command"] == f"specdec run {models.ring} --draft none"


def test_speed_that_varies(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.ring, "--draft", models.ring_draft, "--json", slow=3.0)
    found = by_name(done)["costs"]
    assert (done.code, found["verdict"]) == (0, "warning")
    assert "--threads" in found["command"]


def test_memory_that_is_too_little(
    checked: Callable[..., Done], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_cli.planning.plan.available_memory", lambda: 61 * 10**6)
    done = checked(models.words, "--draft", models.draft, "--json")
    found = by_name(done)["fit"]
    assert (done.code, found["verdict"]) == (11, "problem")
    assert found["command"].startswith("specdec ")


def test_a_model_that_cannot_take_tokens_back(checked: Callable[..., Done], models: Models) -> None:
    found = by_name(checked(models.mamba, "--draft", "ngram", "--json"))
    assert found["opening"]["verdict"] in ("ok", "warning")
    assert found["tokenizers"]["verdict"] == "skipped"


def test_a_target_alone(checked: Callable[..., Done], models: Models) -> None:
    done = checked(models.ring, "--json")
    assert done.code == 0
    assert by_name(done)["acceptance"]["verdict"] == "ok"


def test_a_preset_that_was_not_pulled(checked: Callable[..., Done]) -> None:
    done = checked("llama-3.1-8b")
    assert done.code == 11
    assert done.out.splitlines()[-1] == "Next: specdec pull llama-3.1-8b"


def test_a_model_of_the_hub_by_its_name(checked: Callable[..., Done]) -> None:
    assert checked("acme/big-GGUF").out.splitlines()[-1] == "Next: specdec pull --target acme/big-GGUF"


def test_a_preset_whose_package_is_missing(checked: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("specdec_cli.presets.derive.distribution", none)
    done = checked("demo")
    assert done.code == 11
    assert done.out.splitlines()[-1] == 'Next: pip install "specdec-cli[demo]"'


def test_no_such_preset(checked: Callable[..., Done]) -> None:
    done = checked("nothing")
    assert done.code == 2
    assert "No file or preset is called 'nothing'" in done.err
    assert done.out == ""


def test_really_timed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes out: all widths, and a draft token."""
    monkeypatch.setattr(measured, "COST_SECONDS", 0.01)
    found = by_name(inside("doctor", models.words, "--draft", models.draft, "--offline", "--threads", 1, "--json"))
    assert found["costs"]["text"].startswith("A pass takes ")
    assert ", one of 9 tokens " in found["costs"]["text"]
    assert ", a draft token " in found["costs"]["text"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file" / "specdec"))
    done = inside("doctor", "--offline")
    assert done.code == 11
    assert done.out.splitlines()[-1] == "Next: export SPECDEC_CACHE=/path/to/a/writable/folder"


@pytest.mark.parametrize("columns", [80, 40])
def test_in_a_window(columns: int) -> None:
    with Terminal("doctor", "--offline", columns=columns, rows=24) as terminal:
        terminal.wait_for(b"Checking")
        assert terminal.end() == 0
    assert "ok       build" in terminal.text
    assert all(len(line) <= columns for line in terminal.lines)
    assert "Checking" not in terminal.text
    assert any(line.startswith("Next: ") for line in terminal.lines)
