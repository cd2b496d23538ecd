"""What is written for each engine has the pair's files and settings, in a form that the engine's own format reads."""

import configparser
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdec_cli.errors import UsageError
from specdec_cli.export.engines import ENGINES
from specdec_cli.export.pair import ExportedPair

PAIR = ExportedPair(
    name="qwen",
    target=Path("/models/a target's.gguf"),
    drafter="model",
    draft=Path("/models/draft.gguf"),
    k=5,
    p_min=0.75,
    n_ctx=8192,
    threads=8,
    threads_draft=4,
    cache_type="q8_0",
    cache_type_draft="q4_0",
    flash_attention="on",
    sampling={"temp": 0.6, "top-p": 0.9},
    hub_target="Qwen/Qwen3-8B",
    hub_draft="Qwen/Qwen3-0.6B",
)
LOOKUP = replace(PAIR, drafter="ngram", draft=None, k=12)
PLAIN = replace(PAIR, drafter="none", draft=None, k=0)


def options(command: str) -> dict[str, str]:
    """The long options of a command line with their values."""
    words = shlex.split(command)
    return {word: words[i + 1] for i, word in enumerate(words) if word.startswith("--")}


def text(engine: str, pair: ExportedPair = PAIR) -> str:
    return ENGINES[engine](pair).text


SERVER = {
    "--model": "/models/a target's.gguf",
    "--ctx-size": "8192",
    "--threads": "8",
    "--flash-attn": "on",
    "--cache-type-k": "q8_0",
    "--cache-type-v": "q8_0",
    "--spec-type": "draft-simple",
    "--spec-draft-model": "/models/draft.gguf",
    "--spec-draft-n-max": "5",
    "--spec-draft-p-min": "0.75",
    "--spec-draft-threads": "4",
    "--spec-draft-type-k": "q4_0",
    "--spec-draft-type-v": "q4_0",
    "--temp": "0.6",
    "--top-p": "0.9",
}


def test_llama_server_gets_every_setting() -> None:
    command = text("llama-server")
    assert command.split()[0] == "llama-server"
    assert options(command) == SERVER


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        ("model", "draft-simple"),
        ("ngram+model", "ngram-simple,draft-simple"),
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
    ],
)
def test_the_type_of_the_draft_is_always_named(drafter: str, kind: str) -> None:
    """With a draft model alone llama-server loads it and never drafts."""
    for engine in ("llama-server", "llama-swap", "llama-server-ini"):
        assert kind in text(engine, replace(PAIR, drafter=drafter)), engine


def test_mtp_needs_no_file() -> None:
    found = options(text("llama-server", replace(PAIR, drafter="mtp", draft=None)))
    assert found["--spec-type"] == "draft-mtp"
    assert "--spec-draft-model" not in found


def test_lookup_and_plain_decoding_have_no_draft_model() -> None:
    lookup, plain = (options(text("llama-server", pair)) for pair in (LOOKUP, PLAIN))
    assert (lookup["--spec-type"], lookup["--spec-ngram-simple-size-m"]) == ("ngram-simple", "12")
    assert not [name for name in plain if name.startswith("--spec")]


def test_the_ini_file_says_the_same() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text("llama-server-ini"))
    assert {f"--{name}": value for name, value in parser["qwen"].items()} == SERVER


def test_a_line_break_in_a_name_makes_no_second_setting() -> None:
    with pytest.raises(UsageError, match="line break"):
        text("llama-server-ini", replace(PAIR, target=Path("/models/a\nspec-type = none.gguf")))


def test_llama_swap_reads_the_command_back() -> None:
    models = yaml.safe_load(text("llama-swap"))["models"]
    assert set(models) == {"qwen"}
    found = options(models["qwen"]["cmd"])
    assert (found.pop("--port"), found) == ("${PORT}", SERVER)


def test_vllm_gets_the_originals() -> None:
    command = text("vllm")
    assert shlex.split(command)[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    config: dict[str, Any] = json.loads(options(command)["--speculative-config"])
    assert config == {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5}
    lookup = json.loads(options(text("vllm", LOOKUP))["--speculative-config"])
    assert (lookup["method"], lookup["num_speculative_tokens"]) == ("ngram", 12)
    assert "original weights" in ENGINES["vllm"](PAIR).notes[0]


def test_sglang_counts_the_token_of_the_target_as_well() -> None:
    found = options(text("sglang"))
    assert found["--speculative-algorithm"] == "STANDALONE"
    assert found["--speculative-draft-model-path"] == "Qwen/Qwen3-0.6B"
    assert (found["--speculative-num-steps"], found["--speculative-num-draft-tokens"]) == ("5", "6")


def test_the_other_formats_read_back() -> None:
    tabby = yaml.safe_load(text("tabbyapi"))
    assert (tabby["model"]["model_name"], tabby["draft_model"]["draft_model_name"]) == ("Qwen3-8B", "Qwen3-0.6B")
    kobold = json.loads(text("koboldcpp"))
    assert (kobold["draftmodel"], kobold["draftamount"]) == ("/models/draft.gguf", 5)
    studio = text("lm-studio").splitlines()[-1]
    assert "--speculative-draft-simple" in shlex.split(studio)
    assert options(studio)["--speculative-draft-max-tokens"] == "5"
    webui = options(text("text-generation-webui"))
    assert (webui["--draft-max"], webui["--extra-flags"]) == ("5", "--spec-type draft-simple")


def test_ollama_refuses_an_ordinary_draft_and_takes_mtp() -> None:
    with pytest.raises(UsageError, match="MTP and DFlash heads only"):
        text("ollama")
    lines = text("ollama", replace(PAIR, drafter="mtp", draft=None)).splitlines()
    assert lines[0] == "FROM /models/a target's.gguf"
    assert "PARAMETER draft_num_predict 5" in lines


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("drafter", ["lookahead", "medusa"])
def test_a_drafter_that_an_engine_lacks_is_refused(engine: str, drafter: str) -> None:
    with pytest.raises(UsageError) as caught:
        text(engine, replace(PAIR, drafter=drafter, draft=None))
    assert caught.value.hint


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tabbyapi"])
def test_without_the_originals_names_it_says_what_to_give(engine: str) -> None:
    with pytest.raises(UsageError, match="does not say which model") as caught:
        text(engine, replace(PAIR, hub_draft=None))
    assert "--hub-draft" in str(caught.value.hint)
