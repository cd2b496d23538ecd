"""The trainings: files that llama.cpp reads, and what it computes from them, on tiny models."""

import csv
import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings
from tests.planted import BOS, BYTES, UNK, random_chain, write_planted

N_VOCAB, N_ROWS, N_FF, LAYERS = 320, 64, 96, (0, 1, 2)
Weights = dict[str, NDArray[Any]]


def script(name: str) -> ModuleType:
    return importlib.import_module(f"scripts.training.{name}")


def run(name: str, *arguments: object) -> None:
    """The program, in this process."""
    module, before = script(name), sys.argv
    sys.argv = [name, *(str(argument) for argument in arguments)]
    try:
        module.main()
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "target.gguf"
    return write_planted(path, random_chain(N_VOCAB, 1), mixing=1.0, n_layers=3)


# --- instructions ---------------------------------------------------------------------------------------


def test_instructions_follow_the_seed_and_are_not_the_benchs() -> None:
    instruction = script("instructions").instruction
    one, same, other = (random.Random(seed) for seed in (1, 1, 2))
    texts = [instruction(one) for _ in range(500)]
    assert texts == [instruction(same) for _ in range(500)] != [instruction(other) for _ in range(500)]
    assert len(set(texts)) > 400
    assert not set(texts) & {turn for prompt in read_prompts(SHIPPED) for turn in prompt.turns}


# --- an EAGLE-3 head of random weights, computed by hand ------------------------------------------------


@pytest.fixture(scope="module")
def weights() -> Weights:
    rng = np.random.default_rng(3)
    d = N_VOCAB

    def matrix(n_out: int, n_in: int) -> NDArray[np.float32]:
        return (rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)

    def norm(n: int) -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, size=n).astype(np.float32)

    return {
        "enc.output_norm.weight": norm(3 * d),
        "fc.weight": matrix(d, 3 * d),
        "output_norm.weight": norm(d),
        "output.weight": matrix(N_ROWS, d),
        "blk.0.attn_norm.weight": norm(d),
        "blk.0.attn_norm_2.weight": norm(d),
        **{f"blk.0.attn_{name}.weight": matrix(d, 2 * d) for name in "qkv"},
        "blk.0.attn_output.weight": matrix(d, d),
        "blk.0.ffn_norm.weight": norm(d),
        "blk.0.ffn_gate.weight": matrix(N_FF, d),
        "blk.0.ffn_up.weight": matrix(N_FF, d),
        "blk.0.ffn_down.weight": matrix(d, N_FF),
    }


@pytest.fixture(scope="module")
def d2t() -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(4).choice(N_VOCAB, N_ROWS, replace=False)).astype(np.int64)


@pytest.fixture(scope="module")
def head(target: Path, weights: Weights, d2t: NDArray[np.int64]) -> Path:
    files, path = script("draft_files"), target.with_name("head.gguf")
    files.write_eagle3(
        path, files.TargetFile(target), weights, layers=LAYERS, n_ff=N_FF, d2t=d2t, name="a head of random weights"
    )
    return path


def test_llama_cpp_computes_the_head_that_was_written(
    target: Path, head: Path, weights: Weights, d2t: NDArray[np.int64]
) -> None:
    def normed(x: NDArray[Any], name: str) -> NDArray[Any]:
        result: NDArray[Any] = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * weights[name]
        return result

    tokens = [9, 300, 17, 44]
    with LlamaModel(ModelSettings(target)) as model, script("eagle3_driver").HeadOnTarget(model, head) as pair:
        assert list(pair.layers) == list(LAYERS)
        _, features = pair.read(tokens)
        embeddings = np.eye(N_VOCAB, dtype=np.float32)
        assert np.array_equal(features[:, :N_VOCAB], embeddings[tokens]), "the input of layer 0 is the embedding"
        states = pair.encode(features)
        assert states == pytest.approx(normed(features, "enc.output_norm.weight") @ weights["fc.weight"].T, abs=1e-3)
        logits, next_states = pair.step([tokens[1]], states[:1], 0)

    # At the first position a token sees only itself, and RoPE turns nothing.
    both = np.concatenate(
        (
            normed(embeddings[tokens[1]], "blk.0.attn_norm.weight"),
            normed(states[0], "blk.0.attn_norm_2.weight"),
        )
    )
    state = states[0] + weights["blk.0.attn_output.weight"] @ (weights["blk.0.attn_v.weight"] @ both)
    x = normed(state, "blk.0.ffn_norm.weight")
    gate, up = weights["blk.0.ffn_gate.weight"] @ x, weights["blk.0.ffn_up.weight"] @ x
    state = state + weights["blk.0.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    assert next_states[0] == pytest.approx(state, abs=0.02)
    expected = np.full(N_VOCAB, -np.inf)
    expected[d2t] = weights["output.weight"] @ normed(state, "output_norm.weight")
    assert np.array_equal(np.isneginf(logits[0]), np.isneginf(expected))
    assert logits[0][d2t] == pytest.approx(expected[d2t], abs=0.02)


def test_of_other_architectures_only_the_output_is_read(tmp_path: Path) -> None:
    """What Medusa heads need is in every file; a GPT-2 has neither heads of keys nor an RMS norm in its header."""
    file, matrix = tmp_path / "gpt2.gguf", np.arange(96, dtype=np.float32).reshape(12, 8)
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_embedding_length(8)
    writer.add_token_list([str(i) for i in range(12)])
    writer.add_tensor("token_embd.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target_file = script("draft_files").TargetFile
    target = target_file(file, output_only=True)
    assert (target.n_embd, target.n_vocab, target.is_tied) == (8, 12, True)
    np.testing.assert_array_equal(target.weight("output"), matrix)
    with pytest.raises(SystemExit, match="has the architecture gpt2"):
        target_file(file)


def test_agreement_counts_choices_until_the_first_wrong_one(target: Path, head: Path) -> None:
    driver = script("eagle3_driver")
    with LlamaModel(ModelSettings(target)) as model, driver.HeadOnTarget(model, head) as pair:
        tokens, n_prompt = driver.answer(pair, model, "a b c", 24)
        found = driver.agreement(pair, tokens, n_prompt)
        # The second place again, from an empty memory and in one pass over all before it.
        _, features = pair.read(tokens)
        logits, _ = pair.step(tokens[1 : n_prompt + 1], pair.encode(features)[:n_prompt], 0)
    assert len(found) == len(tokens) - n_prompt - 2
    assert all(1 <= len(stood) <= 3 and all(stood[:-1]) for stood in found)
    assert found[1][0] == (int(logits[-1].argmax()) == tokens[n_prompt + 1])


# --- the trainings themselves ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(target: Path) -> Path:
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    folder = target.with_name("data")
    run("data", target, folder, "--tokens", 900, "--sequences", 4, "--layers", "0,1,2", "--threads", 1)
    return folder


def test_the_text_is_the_targets_own(target: Path, data: Path) -> None:
    from specdec_cli.llama.session import LlamaSession
    from specdec_cli.settings import ContextSettings

    (shard,) = script("data").shards(data)
    texts = script("data").read(shard)
    assert sum(len(text) - text.n_prompt for text in texts) >= 850
    text = texts[0]
    settings = ContextSettings(n_ctx=1024, n_batch=512, n_ubatch=512, threads=1, max_rows=400)
    with LlamaModel(ModelSettings(target)) as model, LlamaSession(model, settings) as session:
        rows = session.score(text.tokens.tolist(), len(text)).copy()
    for at in range(text.n_prompt - 1, len(text)):
        logs = rows[at] - np.logaddexp.reduce(rows[at])
        assert logs[text.top_ids[at]] == pytest.approx(text.top_logs[at].astype(np.float32), abs=0.02)
        assert at + 1 == len(text) or text.tokens[at + 1] in text.top_ids[at]
    assert np.isneginf(text.top_logs[: text.n_prompt - 1]).all()
    assert not text.hidden[: text.n_prompt - 1].any()
    assert text.inputs[:, 0].argmax(axis=1).tolist() == text.tokens.tolist()  # one-hot embeddings


def test_more_of_the_same_folder_is_other_text(target: Path, data: Path) -> None:
    before = script("data").shards(data)
    run("data", target, data, "--tokens", 1000, "--sequences", 4, "--layers", "0,1,2", "--threads", 1)
    old, new = (script("data").read(path)[0].tokens.tolist() for path in script("data").shards(data))
    assert len(before) == 1
    assert old != new


def test_pytorch_and_llama_cpp_agree_on_a_head(target: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("train_eagle3", target, data, target.with_name("check.gguf"), "--layers", "0,1,2", "--rows", 64, "--check")
    assert ended.value.code is None, capsys.readouterr().out
    assert "logits of step 3" in capsys.readouterr().out


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target that looks at the last word alone, and its data: what can be learnt in seconds."""
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    path = tmp_path_factory.mktemp("chain") / "target.gguf"
    write_planted(path, random_chain(N_VOCAB, 1, sharpness=2.5, never=(UNK, BOS, *BYTES)), n_layers=3)
    folder = path.with_name("data")
    run("data", path, folder, "--tokens", 2500, "--sequences", 8, "--layers", "0,1,2", "--threads", 1)
    return path, folder


def agreements(file: Path) -> list[list[float]]:
    """Of held-out text, by report and token of a draft."""
    with file.with_suffix(".csv").open() as lines:
        return [[float(v) for name, v in row.items() if "held-out agreement" in name] for row in csv.DictReader(lines)]


def test_an_eagle3_head_learns_and_drafts_in_llama_cpp(chain: tuple[Path, Path]) -> None:
    target, data = chain
    file = target.with_name("trained.gguf")
    options = ("--layers", "0,1,2", "--rows", N_ROWS, "--threads", 1, "--type", "F16", "--rate", 0.003, "--batch", 2)
    run("train_eagle3", target, data, file, "--tokens", 4000, *options)
    run("train_eagle3", target, data, file, "--tokens", 12000, *options)  # goes on
    first, middle, last = (reports := agreements(file))[0], reports[-2], reports[-1]
    assert max(first) < 0.2
    assert first[0] < middle[0] < last[0]
    assert min(last) > 0.4
    driver = script("eagle3_driver")
    with LlamaModel(ModelSettings(target)) as model, driver.HeadOnTarget(model, file) as pair:
        text = script("data").read(script("data").shards(data)[0])[0]
        found = driver.agreement(pair, text.tokens.tolist(), text.n_prompt)
    assert np.mean([stood[0] for stood in found]) > 0.2  # the text is drawn, not the likeliest


def test_medusa_heads_learn_and_have_the_published_names(chain: tuple[Path, Path]) -> None:
    from safetensors.numpy import load_file

    target, data = chain
    file = target.with_name("medusa.safetensors")
    options = ("--heads", 2, "--tokens", 16000, "--rows", N_ROWS, "--threads", 1, "--rate", 0.01)
    run("train_medusa", target, data, file, "--own-output", *options)
    assert max(agreements(file)[0]) < 0.2
    assert min(agreements(file)[-1]) > 0.4
    shapes = {name: tensor.shape for name, tensor in load_file(file).items()}
    d = N_VOCAB
    one = {"0.linear.weight": (d, d), "0.linear.bias": (d,), "1.weight": (N_VOCAB, d)}
    assert shapes == {f"{i}.{name}": shape for i in range(2) for name, shape in one.items()}
    facts = json.loads(file.with_suffix(".json").read_text())
    assert (facts["medusa_num_heads"], facts["medusa_num_layers"]) == (2, 1)


def test_a_distilled_draft_begins_as_layers_of_the_target(target: Path, data: Path) -> None:
    """With all its layers, before anything is learnt, it is the target: RoPE, norms and order of weights are right."""
    torch = pytest.importorskip("torch")
    from specdec_cli.llama.session import LlamaSession
    from specdec_cli.settings import ContextSettings

    distill, files = script("distill_draft"), script("draft_files")
    whole = files.TargetFile(target)
    tokens = script("data").read(script("data").shards(data)[0])[0].tokens.tolist()[:60]
    draft = distill.Draft(whole, [0, 1, 2])
    with torch.no_grad():
        states = draft(torch.from_numpy(whole.weight("token_embd"))[torch.tensor(tokens)][None])[0]
    ours = states.numpy() @ whole.weight("output").T
    settings = ContextSettings(n_ctx=256, n_batch=64, n_ubatch=64, threads=1, max_rows=60)
    with LlamaModel(ModelSettings(target)) as model, LlamaSession(model, settings) as session:
        assert session.score(tokens, len(tokens)) == pytest.approx(ours, abs=0.05)

    file = target.with_name("distilled.gguf")
    run("distill_draft", target, data, file, "--layers", "0,2", "--tokens", 1000, "--rows", 64, "--batch", 2)
    with LlamaModel(ModelSettings(file)) as model, LlamaSession(model, settings) as session:
        assert np.isfinite(session.score(tokens, 1)).all()
