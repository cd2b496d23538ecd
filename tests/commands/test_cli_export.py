"""`specdec export` on real files: the settings are those of the pair."""

import shlex
from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec_cli.planning.profile import Profile, key_for, save_profile
from tests.cli import Models, inside, specdec


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def test_a_command_line_for_llama_server(models: Models) -> None:
    done = specdec("export", models.words, "--draft", models.draft, "--to", "llama-server", "-k", 7, "--ctx", 2048)
    words = shlex.split(done.out)
    assert (done.code, words[0]) == (0, "llama-server")
    assert words[words.index("--model") + 1] == str(models.words)
    assert words[words.index("--spec-draft-model") + 1] == str(models.draft)
    assert words[words.index("--spec-type") + 1] == "draft-simple"
    assert words[words.index("--spec-draft-n-max") + 1] == "7"
    assert words[words.index("--ctx-size") + 1] == "2048"


def test_what_was_tuned_is_exported(models: Models) -> None:
    profile = Profile("model", 3, 0.5, 2, 1.4, "2026-01-01", cache_type_draft="q8_0", threads_draft=1)
    save_profile(key_for(models.words, models.draft), profile)
    done = specdec("export", models.words, "--draft", models.draft, "--to", "llama-server")
    assert "--spec-draft-n-max 3 --spec-draft-p-min 0.5 --spec-draft-threads 1 --spec-draft-type-k q8_0" in done.out
    assert "--threads 2" in done.out
    assert "--threads" not in specdec(
        "export", models.words, "--draft", models.draft, "--to", "llama-server", "--no-profile"
    ).out  # fmt: skip


def test_it_goes_into_a_file_but_over_no_model(models: Models, tmp_path: Path) -> None:
    target = tmp_path / "pair.yaml"
    assert specdec("export", models.words, "--draft", "ngram", "--to", "llama-swap", "-o", target).code == 0
    assert target.read_text().startswith("models:")
    before = models.words.read_bytes()
    assert specdec("export", models.words, "--draft", "ngram", "--to", "llama-swap", "-o", models.words).code == 2
    assert models.words.read_bytes() == before


def test_the_original_is_read_from_the_file(models: Models, tmp_path: Path) -> None:
    named = tmp_path / "named.gguf"
    writer = gguf.GGUFWriter(named, "llama")
    writer.add_string("general.base_model.0.repo_url", "https://huggingface.co/Qwen/Qwen3-8B")
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = specdec("export", named, "--draft", "none", "--to", "vllm")
    assert (done.code, done.out.split()[:3]) == (0, ["vllm", "serve", "Qwen/Qwen3-8B"])
    assert "vLLM reads other files" in done.err
    unknown = specdec("export", models.words, "--draft", "none", "--to", "vllm")
    assert (unknown.code, "--hub-target" in unknown.err) == (2, True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--to", "olama"), "Invalid --to: 'olama'."),
        (("--to", "vllm", "--hub-target", "https://x/y/z"), "Invalid --hub-target"),
        (("--to", "ollama", "--draft", "ngram"), "Ollama cannot run"),
    ],
)
def test_what_cannot_be_is_a_sentence(models: Models, more: tuple[str, ...], words: str) -> None:
    done = specdec("export", models.words, *more)
    assert (done.code, words in done.err, done.out) == (2, True, "")


def test_a_draft_with_another_tokenizer_is_refused(models: Models) -> None:
    done = inside("export", models.words, "--draft", models.draft, "--cross", "--to", "llama-server")

    assert done.code == 2
    assert "--cross" in done.err
