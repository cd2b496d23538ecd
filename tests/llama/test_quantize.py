"""llama.cpp's quantiser: layers left out, metadata added, failures that end nobody's process."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec_cli.errors import Interrupted, ModelError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.layer_outputs import layer_outputs
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.quantize import Changes, change, change_apart, changed_bytes
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.gguf import read_gguf
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.cli import json_inside
from tests.planted import BYTES, random_chain, write_planted, write_tiny_hybrid

N = 320
SMALL = ContextSettings(n_ctx=64, n_batch=64, n_ubatch=64)
WORDS = [*range(BYTES.stop + 1, BYTES.stop + 20)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers that add nothing to the stream."""
    return write_planted(tmp_path_factory.mktemp("quantize") / "source.gguf", random_chain(N, 0), n_layers=6, n_ff=32)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize")
    return write_planted(folder / "windowed.gguf", random_chain(N, 1), arch="gemma3", mixing=1.0, n_layers=4, n_ff=32)


def logits(path: Path) -> np.ndarray:
    with LlamaModel(ModelSettings(path)) as model, LlamaSession(model, SMALL) as session:
        return session.score(WORDS, 1).copy()


def test_layers_are_left_out_and_the_others_move_up(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    change(source, out, Changes(without=(4, 1)), threads=1)
    reader = gguf.GGUFReader(out)
    old = {t.name: t.data for t in gguf.GGUFReader(source).tensors}
    new = {t.name: t.data for t in reader.tensors}
    assert reader.fields["llama.block_count"].contents() == 4
    for now, before in enumerate((0, 2, 3, 5)):
        assert np.array_equal(new[f"blk.{now}.attn_q.weight"], old[f"blk.{before}.attn_q.weight"])
    assert not any(name.startswith("blk.4.") for name in new)
    assert np.array_equal(logits(out), logits(source)), "its layers add nothing"


def test_a_tensor_has_the_format_it_was_given(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    change(source, out, Changes("Q8_0", (("^output", "Q4_0"), ("attn_q", "F16"))), threads=1)
    kinds = {t.name: t.type for t in read_gguf(out).tensors}
    assert (kinds["output.weight"], kinds["blk.0.attn_q.weight"], kinds["blk.0.attn_k.weight"]) == (
        "Q4_0",
        "F16",
        "Q8_0",
    )


def test_metadata_is_there_for_every_reader(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    about = {"specdec.draft.source": "é" * 100, "specdec.draft.k": 3, "specdec.draft.acceptance": 0.75}
    change(source, out, Changes(metadata=about), threads=1)
    fields = gguf.GGUFReader(out).fields
    assert fields["specdec.draft.source"].contents() == "é" * 63, "127 bytes, and no half letter"
    assert fields["specdec.draft.k"].contents() == 3
    assert fields["specdec.draft.acceptance"].contents() == 0.75
    assert np.array_equal(logits(out), logits(source))


@pytest.mark.parametrize("changes", [Changes("Q8_0"), Changes("Q4_0"), Changes(), Changes(without=(2, 3))])
def test_sizes_are_known_beforehand(source: Path, tmp_path: Path, changes: Changes) -> None:
    expected = changed_bytes(source, changes)
    assert list(tmp_path.iterdir()) == []
    change(source, tmp_path / "out.gguf", changes, threads=1)
    assert sum(t.n_bytes for t in read_gguf(tmp_path / "out.gguf").tensors) == pytest.approx(expected, rel=0.02)


def test_a_file_that_llama_cpp_cannot_open_is_told_in_words(tmp_path: Path) -> None:
    """A list by layer stays as long as it was."""
    hybrid = write_tiny_hybrid(tmp_path / "hybrid.gguf", 0)
    with pytest.raises(ModelError, match="array length"):
        change_apart(hybrid, tmp_path / "out.gguf", Changes(without=(1,)), threads=1)


def test_a_stop_ends_the_other_process(source: Path, tmp_path: Path) -> None:
    abort = AbortFlag()
    abort.set(2)
    with pytest.raises(Interrupted):
        change_apart(source, tmp_path / "out.gguf", Changes("Q4_0"), threads=1, abort=abort)


def test_layers_show_their_outputs_also_where_layer_inputs_end_the_process(source: Path, windowed: Path) -> None:
    for path, n_layers in ((source, 6), (windowed, 4)):
        with LlamaModel(ModelSettings(path)) as model:
            outputs = layer_outputs(model, WORDS, threads=1)
        assert sorted(outputs) == list(range(n_layers))
        assert all(states.shape == (len(WORDS), N) for states in outputs.values())
    with LlamaModel(ModelSettings(source)) as model:
        outputs = layer_outputs(model, WORDS, threads=1)
    assert np.array_equal(outputs[0], outputs[5]), "its layers add nothing"
    assert np.array_equal(outputs[0], np.eye(N, dtype=np.float32)[WORDS])


def test_an_embedding_that_makes_the_logits_gets_a_cheaper_matrix_beside_it(smollm2_q8_0: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    change_apart(smollm2_q8_0, out, Changes(without=tuple(range(2, 30)), own_output="Q4_0"), threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    kinds = {t.name: t.type for t in read_gguf(out).tensors}
    assert (kinds["token_embd.weight"], kinds["output.weight"]) == ("Q8_0", "Q4_0")
    tied = tmp_path / "tied.gguf"
    change(smollm2_q8_0, tied, Changes("Q8_0", (("^token_embd", "Q4_0"),), tuple(range(2, 30))), threads=2)
    old, new = ({t.name: t.data for t in gguf.GGUFReader(path).tensors} for path in (tied, out))
    assert np.array_equal(new["output.weight"], old["token_embd.weight"])
    assert np.array_equal(new["blk.1.attn_q.weight"], old["blk.1.attn_q.weight"])


def test_a_real_model_drafts_for_itself_without_some_layers_and_the_text_stays(
    smollm2_q8_0: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "draft.gguf"
    change(smollm2_q8_0, draft, Changes("Q4_0", (("^token_embd", "Q4_0"),), (12, 13, 14)), threads=2)
    common = (smollm2_q8_0, "Say hello.", "-n", 12, "--temp", 0.8, "--seed", 4, "--ctx", 128)
    plain = json_inside(*common)
    drafted = json_inside(*common, "--draft", draft, "-k", 3)
    assert drafted.document["token_ids"] == plain.document["token_ids"]
    assert drafted.stats["drafted"] > 0
