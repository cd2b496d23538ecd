"""Made-up models are of the shapes and formats of the real ones, and llama.cpp computes with them."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from specdec_cli.errors import DiskFull, ModelError
from specdec_cli.forecast.layers import Layer, Matrix, cut, layers_of
from specdec_cli.forecast.made_up import MadeUp, made_up, write_made_up
from specdec_cli.forecast.passes import CONTEXT, WIDEST, WIDTHS, Seconds, Way, time_passes
from specdec_cli.llama import amx
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.gguf import ArrayInfo, GgufHeader, read_model
from specdec_cli.paths import cache_folder
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import Arch, random_chain, write_planted


def like(path: Path, *, whole: bool = True) -> list[MadeUp]:
    headers = read_model(path)
    model = layers_of(headers)
    chosen = cut(model, whole=whole)
    return [made_up(headers[0], model.outer, layers) for layers in (chosen.many, chosen.few) if layers]


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2"])
def test_it_has_the_tensors_of_the_real_one_and_computes(arch: Arch, tmp_path: Path) -> None:
    real = write_planted(tmp_path / "real.gguf", random_chain(320, 1), arch=arch, n_layers=4)
    (model,) = like(real)
    write_made_up(tmp_path / "made-up.gguf", model)
    (before,), (after,) = read_model(real), read_model(tmp_path / "made-up.gguf")
    assert {(t.name, t.shape, t.type) for t in after.tensors} == {(t.name, t.shape, t.type) for t in before.tensors}
    assert after.metadata["tokenizer.ggml.model"] == "none"
    settings = ContextSettings(n_ctx=128, n_batch=128, n_ubatch=128, max_rows=WIDEST)
    with (
        LlamaModel(ModelSettings(tmp_path / "made-up.gguf", is_head=True)) as opened,
        LlamaSession(opened, settings) as session,
    ):
        assert opened.n_vocab == 320
        for width in (WIDEST, 1):
            assert np.isfinite(session.score(model.text[: CONTEXT + width], width)).all()


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba"])
def test_some_of_the_layers_are_a_model_as_well(arch: Arch, tmp_path: Path) -> None:
    real = write_planted(tmp_path / "real.gguf", random_chain(320, 1), arch=arch, n_layers=4)
    for i, model in enumerate(like(real, whole=False)):
        path = tmp_path / f"{i}.gguf"
        write_made_up(path, model)
        with LlamaModel(ModelSettings(path, is_head=True)) as opened:
            assert opened.n_layers == (4, 1)[i]


def test_it_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    (model,) = like(write_planted(tmp_path / "real.gguf", random_chain(1024, 1), n_layers=2))
    write_made_up(tmp_path / "made-up.gguf", model)
    found = (tmp_path / "made-up.gguf").stat()
    assert found.st_size > model.n_bytes > 20 * 10**6
    assert found.st_blocks * 512 < found.st_size / 4


def test_passes_of_every_width_are_timed_and_nothing_is_left(tmp_path: Path) -> None:
    models = like(write_planted(tmp_path / "real.gguf", random_chain(320, 1), n_layers=3), whole=False)
    found = time_passes(models, Way(1), 0.0)
    assert [list(one) for one in found] == [list(WIDTHS)] * 2
    assert all(0 < seconds < 60 for one in found for seconds in one.values())
    assert list(cache_folder().glob("speed-*")) == []


def test_what_llama_cpp_does_not_know_is_told_in_words(tmp_path: Path) -> None:
    (model,) = like(write_planted(tmp_path / "real.gguf", random_chain(320, 1)))
    strange = MadeUp({**model.metadata, "general.architecture": "quux"}, model.tensors, model.n_vocab)
    with pytest.raises(ModelError, match="unknown model architecture"):
        time_passes([strange], Way(1), 0.0)
    assert list(cache_folder().glob("speed-*")) == []


class Stopped:
    """In place of the child process: Ctrl-C ends it."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def call(self, _function: object, paths: list[Path], *_: object) -> None:
        assert all(path.is_file() for path in paths)
        raise KeyboardInterrupt


class Crashing:
    """In place of the child process: it crashes where weights are reordered."""

    asked: ClassVar[list[bool]] = []

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def call(self, _function: object, _paths: list[Path], _text: object, way: Way, _seconds: float) -> list[Seconds]:
        self.asked.append(way.repack)
        if way.repack:
            raise ModelError("llama.cpp crashed.", hint="-")
        return [{1: 1.0}]


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.forecast.passes.Apart", Stopped)
    models = like(write_planted(tmp_path / "real.gguf", random_chain(320, 1)))
    with pytest.raises(KeyboardInterrupt):
        time_passes(models, Way(1), 0.0)
    assert list(cache_folder().glob("speed-*")) == []


def test_amx_kernels_that_crash_are_left_out_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.forecast.passes.Apart", Crashing)
    monkeypatch.setattr(amx, "has_amx", lambda: True)
    models = like(write_planted(tmp_path / "real.gguf", random_chain(320, 1)))
    assert not amx.crashes()
    assert time_passes(models, Way(1), 0.0) == [{1: 1.0}]
    assert Crashing.asked == [True, False]
    assert amx.crashes()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file" / "below"))
    models = like(write_planted(tmp_path / "real.gguf", random_chain(320, 1)))
    with pytest.raises(DiskFull, match="Cannot write to"):
        time_passes(models, Way(1), 0.0)


def test_tokens_of_a_mixture_ask_different_experts(tmp_path: Path) -> None:
    n_embd, n_vocab, n_experts = 64, 320, 8
    tensors = {
        "token_embd.weight": Matrix((n_embd, n_vocab), "F16", 2 * n_embd * n_vocab),
        "blk.0.ffn_gate_inp.weight": Matrix((n_embd, n_experts), "F32", 4 * n_embd * n_experts),
        "blk.0.ffn_up_exps.weight": Matrix((n_embd, 32, n_experts), "F16", 2 * n_embd * 32 * n_experts),
    }
    model = MadeUp({"general.architecture": "x", "x.block_count": 1}, tensors, n_vocab)
    path = tmp_path / "x.gguf"
    write_made_up(path, model)
    (header,) = read_model(path)
    data = {t.name: np.fromfile(path, np.uint8, t.n_bytes, offset=t.offset) for t in header.tensors}
    embeddings = data["token_embd.weight"].view(np.float16).reshape(n_vocab, n_embd).astype(np.float32)[model.text]
    router = data["blk.0.ffn_gate_inp.weight"].view(np.float32).reshape(n_experts, n_embd)
    assert np.isfinite(embeddings).all()
    assert not data["blk.0.ffn_up_exps.weight"].any()
    assert len(set((embeddings @ router.T).argmax(axis=1).tolist())) == n_experts


TENSORS = {"output.weight": Matrix((64, 320), "F16", 40960)}


def test_what_no_model_has_is_left_out() -> None:
    metadata = {
        "general.architecture": "x",
        "x.block_count": 2,
        "x.rope": 1e4,
        "x.window": (True, False),
        "x.heads": (4, 2),
        "x.large": 1 << 40,
        "x.lists": (1 << 31, 0),
        "x.vast": 1e300,
        "x.texts": ArrayInfo(8, 10_000),
        "y.other": 1,
    }
    model = made_up(GgufHeader(3, metadata, (), 0, 0, 0), TENSORS, [{}])
    kept = {key: value for key, value in model.metadata.items() if key.startswith("x.")}
    assert kept == {"x.block_count": 1, "x.rope": 1e4, "x.window": (True,), "x.heads": (4,), "x.vocab_size": 320}


@pytest.mark.parametrize(
    ("outer", "why"),
    [
        ({}, "no output matrix"),
        ({"token_embd.weight": Matrix((64,), "F16", 128)}, "no output matrix"),
        ({**TENSORS, "new.weight": Matrix((64,), "format 99", 0)}, "tensors of format 99"),
    ],
)
def test_a_header_of_no_model_is_told_in_words(outer: Layer, why: str) -> None:
    header = GgufHeader(3, {"general.architecture": "x", "x.block_count": 1}, (), 0, 0, 0)
    with pytest.raises(ModelError, match=why):
        made_up(header, outer, [{}])
