"""LoRA adapters: the text of the adapted target, whoever drafts; keys by the adapter's hash and scale; refusals."""

import string
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specdec_cli import commands
from specdec_cli.lengths.learned import LearnedKey
from specdec_cli.planning.profile import key_for
from specdec_cli.presets.adapters import named_adapters
from specdec_cli.settings import Adapter, Adapters, ContextSettings, ModelSettings
from tests.cli import HEADS, VOCAB, Done, inside, json_inside, ring, word
from tests.planted import Chain, log_chain, write_planted

N = len(VOCAB)
LETTERS = [word(letter) for letter in string.ascii_lowercase]
FORWARDS, BACKWARDS = ring(*LETTERS), ring(*reversed(LETTERS))
FLAGS = ("d e f", "--raw", "--temp", 0, "-n", 20)


def write_adapter(path: Path, before: Chain, after: Chain, *, architecture: str = "llama", width: int = N) -> Path:
    """An adapter that makes a planted model of one chain a model of the other: output.weight + B A."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(N))
    difference = (log_chain(after) - log_chain(before)).T / np.sqrt(N)
    writer.add_tensor("output.weight.lora_a", np.eye(N, width, dtype=np.float32))
    writer.add_tensor("output.weight.lora_b", difference.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Files:
    """A model that says the alphabet forwards, and an adapter by which it says it backwards."""

    def __init__(self, folder: Path) -> None:
        self.forwards = write_planted(folder / "forwards.gguf", FORWARDS, vocab=VOCAB, n_head=HEADS)
        self.backwards = write_planted(folder / "backwards.gguf", BACKWARDS, vocab=VOCAB, n_head=HEADS)
        self.draft = write_planted(folder / "draft.gguf", FORWARDS, vocab=VOCAB, n_head=HEADS)
        self.turns = write_adapter(folder / "turns.gguf", FORWARDS, BACKWARDS)
        self.narrow = write_adapter(folder / "narrow.gguf", FORWARDS, BACKWARDS, width=64)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("lora"))


def ids(document: dict[str, Any]) -> list[int]:
    found: list[int] = document["token_ids"]
    return found


def test_the_text_is_that_of_the_adapted_weights(files: Files) -> None:
    merged = json_inside(files.backwards, *FLAGS).document
    adapted = json_inside(files.forwards, *FLAGS, "--lora", files.turns).document

    assert ids(adapted) == ids(merged) != ids(json_inside(files.forwards, *FLAGS).document)
    assert adapted["settings"]["lora"][0]["scale"] == 1


def test_the_scale_is_how_much_is_added(files: Files) -> None:
    plain = json_inside(files.forwards, *FLAGS).document
    none = json_inside(files.forwards, *FLAGS, "--lora", f"{files.turns}:0").document
    halves = json_inside(files.forwards, *FLAGS, *("--lora", f"{files.turns}:0.5") * 2).document

    assert ids(none) == ids(plain)
    assert ids(halves) == ids(json_inside(files.backwards, *FLAGS).document), "two halves are one"


@pytest.mark.parametrize("temperature", [0, 0.7, 1])
def test_the_adapted_targets_text_with_a_draft(files: Files, temperature: float) -> None:
    """With its own adapter the draft is always right; without, the text is the same and a note says why it is slow."""
    flags = ("d e f", "--raw", "--temp", temperature, "-n", 20, "--seed", 3, "-k", 4, "--lora", files.turns)
    draft = ("--draft", files.draft, "--force")
    plain = json_inside(files.forwards, *flags)
    without, with_own = (
        json_inside(files.forwards, *flags, *draft),
        json_inside(files.forwards, *flags, *draft, "--lora-draft", files.turns),
    )

    assert ids(without.document) == ids(with_own.document) == ids(plain.document)
    assert with_own.stats["acceptance"] == 1
    assert without.stats["acceptance"] < 0.5
    assert "The draft has no adapter" in without.err
    assert "The draft has no adapter" not in with_own.err


# --- control vectors -------------------------------------------------------------------------------------


def write_vector(path: Path, directions: dict[int, Any]) -> Path:
    """A control vector as llama.cpp's generator writes it."""
    writer = gguf.GGUFWriter(path, "controlvector")
    for layer, direction in directions.items():
        writer.add_tensor(f"direction.{layer}", np.asarray(direction, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Steered:
    """A model of two layers that says the alphabet, and a vector that makes it think of "g" all the time."""

    def __init__(self, folder: Path) -> None:
        self.model = write_planted(folder / "two.gguf", FORWARDS, vocab=VOCAB, n_head=HEADS, n_layers=2)
        self.draft = write_planted(folder / "one.gguf", FORWARDS, vocab=VOCAB, n_head=HEADS)
        self.to_g = write_vector(folder / "g.gguf", {1: 50 * np.eye(N)[word("g")]})
        self.narrow = write_vector(folder / "narrow.gguf", {1: np.ones(64)})


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Steered:
    return Steered(tmp_path_factory.mktemp("steered"))


def test_a_control_vector_steers_the_target_and_no_draft(steered: Steered) -> None:
    plain = json_inside(steered.model, *FLAGS).document
    turned = json_inside(steered.model, *FLAGS, "--control-vector", steered.to_g).document
    drafted = json_inside(
        steered.model, *FLAGS, "--control-vector", steered.to_g, "--draft", steered.draft, "--force", "-k", 4
    ).document

    assert ids(turned) == ids(drafted) == [word("h")] * 20
    assert ids(plain)[:3] == [word(letter) for letter in "ghi"]


@pytest.mark.parametrize("end", [":0", ":1:2-2", ":2-9"])
def test_scale_and_layers_of_a_control_vector(steered: Steered, end: str) -> None:
    """Nothing is added with a scale of 0, or in layers for which there is no direction."""
    turned = json_inside(steered.model, *FLAGS, "--control-vector", f"{steered.to_g}{end}").document

    assert ids(turned) == ids(json_inside(steered.model, *FLAGS).document)


def test_control_vectors_that_do_not_fit_are_refused(steered: Steered) -> None:
    def given(text: object) -> Done:
        return inside("run", steered.model, *FLAGS, "--control-vector", text)

    refused(given(steered.narrow), 3, "narrow.gguf is no control vector for two.gguf", "shape [64]")
    refused(given(steered.draft), 3, "one.gguf is no control vector")
    refused(given(f"{steered.to_g}:1:3-2"), 2, "Invalid layers in --control-vector")
    refused(given(f"{steered.to_g}:nan"), 2, "Invalid scale in --control-vector")


def test_a_prompt_cache_of_another_control_vector_is_not_used(steered: Steered, tmp_path: Path) -> None:
    cache = ("--prompt-cache", tmp_path / "cache", "-n", 4, "--raw")
    prompt = " ".join(string.ascii_lowercase)
    json_inside(steered.model, prompt, *cache)

    assert "different weights" in json_inside(steered.model, prompt, *cache, "--control-vector", steered.to_g).err


# --- keys ------------------------------------------------------------------------------------------------


def test_a_prompt_cache_of_other_adapters_is_not_used(files: Files, tmp_path: Path) -> None:
    cache = ("--prompt-cache", tmp_path / "cache")
    prompt = " ".join(string.ascii_lowercase)
    first = json_inside(files.forwards, prompt, "--raw", "-n", 4, *cache)
    again = json_inside(files.forwards, prompt, "--raw", "-n", 4, *cache)
    adapted = json_inside(files.forwards, prompt, "--raw", "-n", 4, *cache, "--lora", files.turns)

    assert "written" in first.err
    assert "loaded" in again.err
    assert "was made with a different weights" in adapted.err


def test_profiles_and_what_was_learned_are_kept_apart(files: Files) -> None:
    def keys(*adapters: Adapter) -> tuple[Path, Path]:
        profile = key_for(files.forwards, None, Adapters(adapters))
        models = (ModelSettings(files.forwards, adapters=adapters), None)
        return profile.file, LearnedKey(profile, None, models, (ContextSettings(), ContextSettings())).file

    one = named_adapters("--lora", [str(files.turns)])
    half, other = named_adapters("--lora", [f"{files.turns}:0.5"]), named_adapters("--lora", [str(files.narrow)])
    found = [keys(), keys(*one), keys(*half), keys(*other)]

    assert len({profile for profile, _ in found}) == len({learned for _, learned in found}) == 4
    assert keys()[0] == key_for(files.forwards, None).file, "profiles of before stay"


# --- refusals --------------------------------------------------------------------------------------------


def refused(done: Done, code: int, *words: str) -> None:
    assert (done.code, done.out) == (code, "")
    assert all(one in done.err for one in words), done.err
    assert len(done.err.splitlines()) == 2


def test_an_adapter_of_another_model_is_refused_with_llama_cpps_reason(files: Files) -> None:
    refused(
        inside("run", files.forwards, *FLAGS, "--lora", files.narrow),
        3,
        "narrow.gguf is no LoRA adapter for forwards.gguf",
        "output.weight",
    )


@pytest.mark.parametrize("scale", ["nan", "inf", "1e9"])
def test_a_scale_is_a_number(files: Files, scale: str) -> None:
    refused(inside("run", files.forwards, *FLAGS, "--lora", f"{files.turns}:{scale}"), 2, "Invalid scale in --lora")


def test_what_is_no_adapter_is_refused(files: Files, tmp_path: Path) -> None:
    refused(inside("run", files.forwards, *FLAGS, "--lora", files.draft), 3, "draft.gguf is no LoRA adapter")
    refused(inside("run", files.forwards, *FLAGS, "--lora", tmp_path / "missing.gguf"), 3, "missing.gguf")


def test_an_output_does_not_overwrite_an_adapter(files: Files) -> None:
    refused(inside("run", files.forwards, *FLAGS, "--lora", files.turns, "--jsonl", files.turns), 2, "--lora")


COMMANDS = Path(commands.__file__).parent


@pytest.mark.parametrize(
    "command", [path.stem for path in COMMANDS.glob("*.py") if "pairing: DraftOptions" in path.read_text("utf-8")]
)
def test_no_command_ignores_adapters(command: str) -> None:
    """Each that has the options hands them on, or refuses them."""
    makes_request = {"run": "chat_options"}.get(command, command)
    assert "files.adapters" in (COMMANDS / f"{makes_request}.py").read_text("utf-8")


def test_export_refuses_adapters(files: Files) -> None:
    refused(inside("export", files.forwards, "--to", "llama-server", "--lora", files.turns), 2, "LoRA adapters")


def test_an_adapter_for_the_draft_needs_a_draft(files: Files) -> None:
    refused(inside("run", files.forwards, *FLAGS, "--lora-draft", files.turns), 2, "--lora-draft needs a draft model")
