"""Pairs of real shapes with planted acceptance, at a shape that tests have time for: counts are as the ring says."""

from pathlib import Path

import numpy as np
import pytest

from scripts.benchmarks.coded import Shape, coded, write_coded
from scripts.benchmarks.number_formats import FORMATS
from scripts.benchmarks.planted_shapes import BOS, FIRST_WORD, N_WORDS, PAIRS, Shapes, follows, measure, nearest_ring
from scripts.benchmarks.rings import counted, drawn, in_theory, lengths
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import make_vocab

TINY = Shapes(Shape(2, 256, 320, 4, 2), Shape(1, 192, 64, 3, 3), 600)


@pytest.mark.parametrize("quant", FORMATS)
def test_codes_are_signs_at_nearly_right_angles(quant: str) -> None:
    import gguf

    codes = gguf.dequantize(coded(np.arange(5000), 256, 0.5, FORMATS[quant]), FORMATS[quant].kind)
    assert codes.shape == (5000, 256)
    assert set(np.unique(codes)) == {-0.5, 0.5}
    angles = codes[:50] @ codes.T / 64
    assert np.abs(angles - np.eye(50, 5000)).max() < 0.5


@pytest.mark.parametrize("quant", FORMATS)
def test_numbers_keep_the_size_of_a_vector(quant: str) -> None:
    import gguf

    matrix = gguf.dequantize(FORMATS[quant].random(512, 1024, np.random.default_rng(0)), FORMATS[quant].kind)
    assert matrix.shape == (512, 1024)
    assert abs(matrix.mean()) < 0.2 * matrix.std()
    assert 0.5 < matrix.std() * np.sqrt(1024) < 2


@pytest.mark.parametrize("quant", FORMATS)
def test_the_next_token_is_the_one_that_follows(tmp_path: Path, quant: str) -> None:
    after = follows(TINY.n_vocab, np.arange(N_WORDS) % 3 > 0)
    assert sorted(after) == list(range(TINY.n_vocab))
    path = write_coded(tmp_path / "x.gguf", TINY.draft, make_vocab(TINY.n_vocab), after, quant)
    tokens = [BOS, *range(FIRST_WORD, FIRST_WORD + N_WORDS)]
    with (
        LlamaModel(ModelSettings(path)) as model,
        LlamaSession(model, ContextSettings(n_ctx=256, max_rows=len(tokens))) as session,
    ):
        rows = session.score(tokens, len(tokens))
        assert rows.argmax(axis=1).tolist() == after[tokens].tolist()
        top_two = np.sort(rows, axis=1)[:, -2:]
        assert (top_two[:, 1] - top_two[:, 0]).min() > 5


def test_a_draft_is_wrong_exactly_where_it_does_not_know() -> None:
    known = np.arange(N_WORDS) % 5 > 0
    words = FIRST_WORD + np.arange(N_WORDS)
    right = follows(TINY.n_vocab)[words] == follows(TINY.n_vocab, known)[words]
    assert right.tolist() == known.tolist()


def test_acceptance_is_the_rings_to_the_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With time enough for the longest answers."""
    cells = measure("tiny", TINY, [0.6, 0.8], [1, 3, 8], 1e9, tmp_path)
    n = 256
    for i, share in enumerate((0.6, 0.8)):
        known = nearest_ring(share, n, [1, 3, 8]).tolist()
        for k, cell in zip((1, 3, 8), cells[3 * i : 3 * i + 3], strict=True):
            assert (cell.runs[0].stats.drafted, cell.runs[0].stats.accepted) == counted(known, n, k)
            assert cell.acceptance == pytest.approx(in_theory(share, k), abs=0.01)
            assert cell.worst.verdict == "same"
            assert cell.runs[0].stats.tokens == n
    out = capsys.readouterr().out
    assert out.count(" same") == 6
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"tiny-target-Q4_0.gguf", *(f"tiny-draft-Q4_0{share}.gguf" for share in ("", "-0.6", "-0.8"))}


def test_an_automatic_length_is_chosen_and_not_the_longest(tmp_path: Path) -> None:
    (cell,) = measure("tiny", TINY, [0.0], ["auto"], 1e9, tmp_path)
    assert sum(len(round_.drafted) for round_ in cell.runs[0].rounds) < 0.5 * cell.runs[0].stats.tokens


def test_rings_have_theorys_acceptance() -> None:
    for share in (0.3, 0.6, 0.8, 0.95):
        known = drawn(share, 252, 504, [1, 2, 4, 8])
        assert known.mean() == pytest.approx(share, abs=0.002)
        for k in (1, 2, 4, 8):
            drafted, accepted = counted(known.tolist(), 504, k)
            assert accepted / drafted == pytest.approx(in_theory(share, k), abs=0.005)
    with pytest.raises(ValueError, match="use more of them"):
        drawn(0.55, 4, 6, [1, 2, 3, 4], near=0.0)


def test_the_shapes_are_those_of_their_names() -> None:
    """Parameters of the layers, in thousand millions."""

    def size(shape: Shape) -> float:
        attention = 2 * shape.width * (shape.width + shape.kv_width)
        return shape.n_layers * (attention + 3 * shape.width * shape.n_ff) / 1e9

    sizes = [size(s) for pair in PAIRS.values() for s in (pair.target, pair.draft)]
    assert sizes == pytest.approx([6.5, 0.36, 1.3, 0.106], rel=0.02)
    assert lengths("1,8,auto") == [1, 8, "auto"]
