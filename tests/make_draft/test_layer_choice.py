"""Which layers can go: angles known by hand, patterns that must stay what they are."""

import math
from typing import Any

import numpy as np
import pytest

from specdec_cli.make_draft.layer_choice import angles, block, droppable, lists_layers, period, scattered
from specdec_cli.models.gguf import ArrayInfo, GgufHeader


def header(**metadata: Any) -> GgufHeader:
    given = {"general.architecture": "llama", **metadata}
    arch = given["general.architecture"]
    named = {key if key.startswith("general.") else f"{arch}.{key}": value for key, value in given.items()}
    return GgufHeader(3, named, (), 0, 0, 0)


def turned(*degrees: float) -> dict[int, np.ndarray]:
    """A stream in a plane, after each layer at such an angle; its length does not matter."""
    return {
        layer: np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))]] * 3, np.float32) * (layer + 1)
        for layer, d in enumerate(degrees)
    }


def test_angles_are_shares_of_half_a_turn() -> None:
    found = angles(turned(0, 90, 45), 3)
    assert found[1][2] == pytest.approx(0.5, abs=1e-4)
    assert found[1][3] == found[3][1] == pytest.approx(0.25, abs=1e-4)
    assert math.isnan(found[0][1]), "nobody saw the stream before the first layer"


def test_the_block_that_turns_least_goes_and_single_layers_by_their_own_turn() -> None:
    # Layer 2 turns by 30 and layer 3 back again: as a block they do nothing, alone much.
    found = angles(turned(0, 10, 40, 10, 13, 15, 60), 7)
    assert block(found, range(1, 6), 2) == (2, 3)
    assert scattered(found, range(1, 6), 2) == (4, 5)


def test_what_was_not_seen_is_left_out_from_the_end() -> None:
    unseen = angles({}, 8)
    assert block(unseen, range(1, 7), 3) == (4, 5, 6)
    assert scattered(unseen, range(1, 7), 3) == ()
    assert block(unseen, range(1, 3), 3) == ()


def test_the_first_and_the_last_layer_stay() -> None:
    assert droppable(header(), 8) == range(1, 7)
    assert droppable(header(leading_dense_block_count=3, nextn_predict_layers=1), 12) == range(3, 10)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, 1),
        ({"general.architecture": "gemma3", "attention.sliding_window": 512}, 6),
        ({"general.architecture": "gemma3", "attention.sliding_window": 16, "attention.sliding_window_pattern": 2}, 2),
        ({"attention.sliding_window": 512}, None),  # a window, and no word of where
        ({"interleave_moe_layer_step": 2}, 2),
        ({"general.architecture": "llama4", "attention.sliding_window": 8, "interleave_moe_layer_step": 6}, 12),
    ],
)
def test_layers_keep_their_kinds(metadata: dict[str, Any], expected: int | None) -> None:
    assert period(header(**metadata)) == expected


@pytest.mark.parametrize("value", [(0, 4) * 6, ArrayInfo(4, 12)])
def test_lists_by_layer_are_seen(value: object) -> None:
    assert lists_layers(header(**{"attention.head_count_kv": value}), 12)
    assert not lists_layers(header(**{"rope.dimension_sections": (1, 2, 3, 4), "rope.freq_base": 1e4}), 12)
