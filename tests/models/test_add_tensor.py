"""A tensor more in a file: everything else byte for byte, for every reader."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec_cli.models.add_tensor import with_tensor
from specdec_cli.models.gguf import read_gguf
from tests.planted import random_chain, write_planted


@pytest.mark.parametrize("new_name", ["x", "a.name.of.another.length.weight"])
def test_a_tensor_is_added_and_the_rest_stays(tmp_path: Path, new_name: str) -> None:
    a = write_planted(tmp_path / "a.gguf", random_chain(320, 0), n_ff=32)
    b = write_planted(tmp_path / "b.gguf", random_chain(320, 1), n_ff=32, dtype=np.float16)
    out = tmp_path / "out.gguf"
    with_tensor(a, b, "output.weight", new_name, out)

    before, after, other = (gguf.GGUFReader(path) for path in (a, out, b))
    tensors = {t.name: t for t in after.tensors}
    assert list(tensors) == [*(t.name for t in before.tensors), new_name]
    for tensor in before.tensors:
        assert tensors[tensor.name].tensor_type == tensor.tensor_type
        assert np.array_equal(tensors[tensor.name].data, tensor.data)
    added = next(t for t in other.tensors if t.name == "output.weight")
    assert np.array_equal(tensors[new_name].data, added.data)
    assert tensors[new_name].tensor_type == added.tensor_type
    names = [name for name in before.fields if not name.startswith("GGUF.")]
    assert [name for name in after.fields if not name.startswith("GGUF.")] == names
    assert all(after.fields[name].contents() == before.fields[name].contents() for name in names)
    assert {t.name for t in read_gguf(out).tensors} == set(tensors)
