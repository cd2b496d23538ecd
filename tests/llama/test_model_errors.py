"""A file that cannot be used is an error in words, with the true reason, and never the end of the process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec_cli.errors import Interrupted, ModelError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel, read_vocabulary
from specdec_cli.models.gguf import check_is_gguf
from specdec_cli.models.vocabulary import CONTROL, UNUSED
from specdec_cli.settings import ModelSettings
from tests import real_models
from tests.planted import (
    _unicode_bytes,
    add_vocab,  # a tokenizer is all that a file of another architecture shares with a planted one
    make_vocab,
    random_chain,
    write_planted,
    write_vocab_only,
)

# --- files that are no models ---------------------------------------------------------------------------

OPEN_ALL = """
import json, sys
from pathlib import Path
from specdec_cli.errors import SpecdecError
from specdec_cli.llama.model import LlamaModel, read_vocabulary
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings

def whole(path):
    with LlamaModel(ModelSettings(path)) as model, LlamaSession(model, ContextSettings(n_ctx=64)) as session:
        session.score([3, 4], 1)

for name in sys.argv[1:]:
    for how in (read_vocabulary, whole):
        try:
            how(Path(name))
            said = ["no error", "", 0, ""]
        except SpecdecError as error:
            said = [type(error).__name__, str(error), error.exit_code, error.hint]
        print(json.dumps([Path(name).name, how.__name__, *said]), flush=True)
"""

CUTS = (4, 8, 16, 24, 100, 400, 2000, 4000, 6000, 7800, 8300, 9000, 100_000, -4096, -1)
CUT_SHORT = r"failed to read|within the file bounds|exceeds remaining file size"
DAMAGED = {
    "html.gguf": r"is not a GGUF file \(it begins with '<!DO'\)",
    "empty.gguf": r"is not a GGUF file \(it begins with ''\)",
    "magic.gguf": r"is not a GGUF file \(it begins with 'GGML'\)",
    "version.gguf": "version 99",
    "arch.gguf": "unknown model architecture: 'klama'",
    "key_values.gguf": "number of key value pairs",
    **{f"cut{n}.gguf": CUT_SHORT for n in CUTS},
}


def damaged(good: bytes) -> dict[str, bytes]:
    at = good.index(b"llama", good.index(b"general.architecture"))
    return {
        "html.gguf": b"<!DOCTYPE html><html><title>Sign in</title></html>",
        "empty.gguf": b"",
        "magic.gguf": b"GGML" + good[4:],
        "version.gguf": good[:4] + (99).to_bytes(4, "little") + good[8:],
        "arch.gguf": good[:at] + good[at:].replace(b"llama", b"klama", 1).replace(b"llama.", b"klama."),
        "key_values.gguf": good[:16] + (2**62).to_bytes(8, "little") + good[24:],
        **{f"cut{n}.gguf": good[:n] for n in CUTS},
    }


def write_bert(path: Path, n: int = 64, n_vocab: int = 320) -> Path:
    """A tiny encoder: llama.cpp loads it, but it has no memory and gives no logits."""
    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(64)
    writer.add_embedding_length(n)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * n)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_token_type_count(2)
    add_vocab(writer, make_vocab(n_vocab))
    shapes = {
        "token_embd.weight": (n_vocab, n),
        "position_embd.weight": (64, n),
        "token_types.weight": (2, n),
        **{f"blk.0.attn_{name}.weight": (n, n) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_up.weight": (2 * n, n),
        "blk.0.ffn_down.weight": (n, 2 * n),
        **{
            f"{norm}.{part}": (n,)
            for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
            for part in ("weight", "bias")
        },
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Said = dict[tuple[str, str], list[str]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What became of opening each file, by (file, how): one process for all, apart from this one."""
    folder = tmp_path_factory.mktemp("damaged")
    good = write_planted(folder / "good.gguf", random_chain(320, 0)).read_bytes()
    for name, data in damaged(good).items():
        (folder / name).write_bytes(data)
    write_planted(folder / "no_bytes.gguf", random_chain(64, 0))
    (folder / "folder.gguf").mkdir()
    write_vocab_only(folder / "tokenizer.gguf", make_vocab(320))
    write_bert(folder / "bert.gguf")
    names = [*sorted(path.name for path in folder.iterdir()), "missing.gguf"]
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, *(str(folder / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    # A native abort prints a backtrace, to stdout as well.
    assert done.returncode == 0, f"the process ended after {lines[-1:]}: {done.stderr[-2000:]}"
    assert done.stderr == ""
    return {(name, how): rest for name, how, *rest in lines}


def test_a_whole_file_opens(said: Said) -> None:
    assert said["good.gguf", "read_vocabulary"][0] == said["good.gguf", "whole"][0] == "no error"


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("how", ["read_vocabulary", "whole"])
def test_a_damaged_file_is_a_model_error_with_its_reason(said: Said, name: str, how: str) -> None:
    kind, message, exit_code, hint = said[name, how]
    assert (kind, exit_code) == ("ModelError", 3)
    assert name in message
    assert re.search(DAMAGED[name], message)
    if name.startswith("cut"):
        assert hint == "The file seems to be truncated or damaged. Download it again."


@pytest.mark.parametrize("how", ["read_vocabulary", "whole"])
@pytest.mark.parametrize(("name", "reason"), [("missing.gguf", "File not found"), ("folder.gguf", "is not a file")])
def test_a_path_without_a_file(said: Said, name: str, reason: str, how: str) -> None:
    kind, message, exit_code, hint = said[name, how]
    assert (kind, exit_code) == ("ModelError", 3)
    assert reason in message
    assert hint


def test_a_tokenizer_without_weights_can_only_be_read(said: Said) -> None:
    assert said["tokenizer.gguf", "read_vocabulary"][0] == "no error"
    kind, message, _, hint = said["tokenizer.gguf", "whole"]
    assert kind == "ModelError"
    assert "tensor 'token_embd.weight' not found" in message
    assert "only a tokenizer" in hint


def test_a_tokenizer_that_llama_cpp_would_abort_on_is_refused(said: Said) -> None:
    kind, message, _, _ = said["no_bytes.gguf", "read_vocabulary"]
    assert kind == "ModelError"
    assert message.startswith("The tokenizer of no_bytes.gguf has no byte tokens")


def test_an_encoder_is_refused_before_it_is_asked_for_text(said: Said) -> None:
    kind, message, _, _ = said["bert.gguf", "whole"]
    assert kind == "ModelError"
    assert message == "bert.gguf is an embedding model, which cannot generate text."


@pytest.mark.parametrize("name", ["bert-bge", "nomic-bert-moe", "qwen2", "llama-spm"])
def test_published_tokenizer_files_do_not_load_as_models(vocab_path: Callable[[str], Path], name: str) -> None:
    with pytest.raises(ModelError, match=r"Cannot load ggml-vocab-.*\.gguf: .*'token_embd.weight' not found"):
        LlamaModel(ModelSettings(vocab_path(name)))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    with pytest.raises(ModelError, match=r"Cannot read .*: Permission denied"):
        check_is_gguf(path)


@pytest.mark.parametrize("name", ["modèle 模型 🦙.gguf", os.fsdecode(b"latin1-\xe9.gguf"), "a'b\"c%s{}.gguf"])
def test_file_names_of_all_kinds(tmp_path: Path, name: str) -> None:
    path = write_planted(tmp_path / "plain.gguf", random_chain(64, 0)).rename(tmp_path / name)
    with LlamaModel(ModelSettings(path)) as model:
        assert model.n_vocab == 64


def test_loading_can_be_stopped(tmp_path: Path) -> None:
    path = write_planted(tmp_path / "m.gguf", random_chain(64, 0))
    abort = AbortFlag()
    abort.set(15)
    with pytest.raises(Interrupted) as caught:
        LlamaModel(ModelSettings(path), abort=abort)
    assert caught.value.exit_code == 143


def test_a_failure_is_not_explained_by_an_earlier_one(tmp_path: Path) -> None:
    good = write_planted(tmp_path / "good.gguf", random_chain(320, 0)).read_bytes()
    for name in ("arch.gguf", "cut9000.gguf"):
        (tmp_path / name).write_bytes(damaged(good)[name])
        with pytest.raises(ModelError) as caught:
            read_vocabulary(tmp_path / name)
        assert re.search(DAMAGED[name], str(caught.value))


# --- the command line -----------------------------------------------------------------------------------


def specdec(*arguments: object, memory: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with at most `memory` bytes of addresses."""

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    command = [sys.executable, "-m", "specdec_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit if memory else None, check=False)


def test_the_command_ends_with_words_and_a_code(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<html>")
    done = specdec("run", path, "Hi")
    assert (done.returncode, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error == f"Error: {path} is not a GGUF file (it begins with '<htm')."
    assert hint.startswith("Hint: ")


linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by RLIMIT_AS")


@linux
def test_a_context_that_does_not_fit_names_model_and_size(tmp_path: Path) -> None:
    path = write_planted(tmp_path / "long.gguf", random_chain(320, 0), n_ctx_train=2**30)
    done = specdec("run", path, "a b", "-n", 3, "--ctx", 10_000_000, memory=4 << 30)
    assert (done.returncode, done.stdout) == (5, "")
    assert "Error: llama.cpp could not create a context of 10000000 tokens for long.gguf: insufficient memory" in (
        done.stderr
    )
    assert "Hint: Use a smaller --ctx" in done.stderr


@linux
@pytest.mark.parametrize("option", ["--mmap", "--no-mmap"])
def test_weights_that_do_not_fit_name_the_model(option: str) -> None:
    path = real_models.need(real_models.smollm2, "F32")
    done = specdec("run", path, "Hi", "-n", 3, option, memory=500_000_000)
    assert (done.returncode, done.stdout) == (5, "")
    assert "Error: smollm2-135m-F32.gguf does not fit in memory: " in done.stderr


# --- the bytes of tokens --------------------------------------------------------------------------------

TEXT = (
    "Hello  world,\n\n\tdon't  stop: 1234567.89\r\n   indented   \u00a0\u200d \x00\x7f "
    "naïve façade Ünïcödé Привет, мир. 你好，世界。 こんにちは한국어 עברית العربية हिन्दी 🦙👩‍🚀🏳️‍🌈 𝔘𝔫𝔦 ﷽ "
    "def f(x):\n\treturn {'a': [1, 2]}  # <|im_start|> <bos> <0x0A> ................................ end "
)


def test_a_long_text_comes_back_from_its_tokens(vocab_path: Callable[[str], Path]) -> None:
    text = TEXT * 8
    models = {
        "smollm2": real_models.need(real_models.smollm2, "Q4_1"),
        "gemma-3": real_models.need(real_models.gemma3_270m, "Q4_K_M"),
        **{name: vocab_path(name) for name in ("llama-bpe", "qwen2", "phi-3", "llama-spm", "gemma-4")},
    }
    for name, path in models.items():
        with LlamaModel(ModelSettings(path), vocab_only=True) as model:
            ids = model.tokenize(text, add_special=False, parse_special=False)
            found = b"".join(map(model.token_bytes, ids)).decode()
        # SentencePiece as Llama 2 has it puts a space before every text.
        assert found == (f" {text}" if name in ("phi-3", "llama-spm") else text), name


@pytest.mark.parametrize("name", ["smollm2", "gemma-3", "llama-bpe", "phi-3"])
def test_every_token_of_a_vocabulary_has_its_bytes(vocab_path: Callable[[str], Path], name: str) -> None:
    own = {"smollm2": (real_models.smollm2, "Q4_1"), "gemma-3": (real_models.gemma3_270m, "Q4_K_M")}
    path = real_models.need(*own[name]) if name in own else vocab_path(name)
    alphabet = {char: byte for byte, char in enumerate(_unicode_bytes())}
    unknown, user_defined, byte = 1 << 0, 1 << 4, 1 << 5

    def expected(text: str, attr: int) -> bytes:
        if attr & (unknown | CONTROL | UNUSED):
            return b""
        if attr & byte:
            return bytes.fromhex(text[3:5])
        if kind == "BPE" and not attr & user_defined:
            return bytes(alphabet[char] for char in text)
        return text.replace("▁", " ").encode()

    with LlamaModel(ModelSettings(path), vocab_only=True) as model:
        vocabulary = model.vocabulary()
        kind = vocabulary.kind
        found = [model.token_bytes(token) for token in range(len(vocabulary))]
        assert model.all_bytes() == found
    wanted = [expected(text.decode(), attr) for text, attr in zip(vocabulary.texts, vocabulary.attrs, strict=True)]
    assert [(i, a, b) for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b] == []
    if name == "llama-bpe":
        assert sum(len(piece) > 64 for piece in found) > 100, "longer than the buffer that is tried first"


def test_a_token_of_any_length(tmp_path: Path) -> None:
    names = {300: "▁" + "x" * 63, 301: "▁" + "x" * 62, 302: "y" * 1000, 303: "ü" * 33}
    with LlamaModel(
        ModelSettings(write_vocab_only(tmp_path / "v.gguf", make_vocab(320).renamed(names))), vocab_only=True
    ) as model:
        for token, text in names.items():
            assert model.token_bytes(token) == text.replace("▁", " ").encode()
        assert model.all_bytes() == [model.token_bytes(token) for token in range(320)]
        assert model.all_bytes(marked=True) == [model.marked_bytes(token) for token in range(320)]
