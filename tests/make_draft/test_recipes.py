"""Recipes for drafts: names, formats, and what the quantiser is told."""

import re
from typing import Any

import pytest

from specdec_cli.make_draft.layer_choice import angles
from specdec_cli.make_draft.recipes import (
    Recipe,
    cheaper_outputs,
    fewer_layers,
    formats_worth_trying,
    output_matrix,
    spans,
)
from specdec_cli.models.gguf import GgufHeader, TensorInfo


def tensor(name: str, kind: str = "F16", n_bytes: int = 100) -> TensorInfo:
    return TensorInfo(name, (32, 1), kind, 0, n_bytes)


TIED = (tensor("token_embd.weight"), *(tensor(f"blk.{i}.attn_q.weight", "Q8_0") for i in range(4)))


def test_a_recipe_says_what_it_does() -> None:
    recipe = Recipe("Q4_0", "Q5_0", (3, 4, 5, 9))
    assert str(recipe) == "Q4_0, output Q5_0, without layers 3-5, 9"
    assert recipe.key == "Q4_0-output-Q5_0-without-3-5.9"
    assert (str(Recipe()), Recipe().key) == ("unchanged", "same")
    assert str(Recipe(own_output="Q4_0")) == "separate output Q4_0"
    assert Recipe(own_output="Q4_0").key != Recipe(output="Q4_0").key
    assert spans(()) == ""


def test_the_output_matrix_is_the_embedding_where_there_is_no_other() -> None:
    assert output_matrix(TIED).name == "token_embd.weight"
    assert output_matrix((*TIED, tensor("output.weight"))).name == "output.weight"


def test_a_matrix_alone_leaves_every_other_tensor_its_format_also_after_layers_that_are_gone() -> None:
    changes = Recipe(output="Q4_0", without=(1,)).changes((*TIED[:2], tensor("blk.3.attn_q.weight", "F16")))

    def kind(name: str) -> str:
        return next(kind for pattern, kind in changes.tensor_types if re.search(pattern, name))

    assert kind("token_embd.weight") == "Q4_0"
    assert kind("blk.0.attn_q.weight") == "Q8_0"
    assert kind("blk.2.attn_q.weight") == "F16", "layer 3 is called 2 now"
    assert Recipe("Q4_0").changes(TIED).tensor_types == ()


def test_only_formats_that_save_something_are_tried() -> None:
    sizes = {"Q8_0": 100, "Q4_0": 55, "Q2_K": 54}
    assert formats_worth_trying(sizes, 200) == ["Q8_0", "Q4_0"], "Q2_K came out like Q4_0"
    assert formats_worth_trying(sizes, 100) == ["Q4_0"]
    assert formats_worth_trying(sizes, 56) == []


def test_only_a_large_output_matrix_is_made_cheaper() -> None:
    layer = tensor("blk.0.ffn_up.weight", n_bytes=100)
    assert cheaper_outputs((tensor("output.weight", "F16", 20), layer)) == ["Q8_0", "Q4_0"]
    assert cheaper_outputs((tensor("output.weight", "Q8_0", 20), layer)) == ["Q4_0"]
    assert cheaper_outputs((tensor("output.weight", "Q4_0", 20), layer)) == []
    assert cheaper_outputs((tensor("output.weight", "F16", 10), layer)) == []


@pytest.mark.parametrize(
    ("metadata", "counts"),
    [
        ({}, [2, 3, 4, 6]),  # 1.5 and 4.5 are rounded to even numbers
        ({"x.attention.sliding_window": 9, "x.attention.sliding_window_pattern": 4}, [4, 8]),
        ({"x.attention.sliding_window": 9}, []),  # and no word of where
        ({"x.attention.head_count_kv": (0, 4) * 6}, []),
    ],
)
def test_layers_go_in_numbers_that_keep_the_kinds(metadata: dict[str, Any], counts: list[int]) -> None:
    header = GgufHeader(3, {"general.architecture": "x", "x.block_count": 12, **metadata}, (), 0, 0, 0)
    found = list(fewer_layers(header, angles({}, 12)))
    inner = [layers for layers in found if 11 not in layers]
    assert sorted({len(layers) for layers in inner}) == counts
    last = [] if "x.attention.head_count_kv" in metadata else [2, 3, 4, 6]
    assert [len(layers) for layers in found if 11 in layers] == last, "nothing comes after them"
    assert all(0 not in layers for layers in found)
