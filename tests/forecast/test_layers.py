"""Which layers are tried: few and many, alike in what they are made of."""

import pytest

from specdec_cli.forecast.layers import Cut, Layer, Layers, Matrix, cut

BIG = 400_000_000


def dense(kind: str = "Q4_K", n_bytes: int = BIG) -> Layer:
    return {"ffn_down.weight": Matrix((64, 64), kind, n_bytes)}


def experts(n_bytes: int = BIG) -> Layer:
    return {"ffn_down_exps.weight": Matrix((64, 64, 8), "Q4_K", n_bytes)}


def model(*layers: Layer) -> Layers:
    return Layers({"output.weight": Matrix((64, 320), "Q8_0", 1)}, layers)


def formats(layers: tuple[Layer, ...]) -> list[str]:
    return sorted(matrix.type for layer in layers for matrix in layer.values())


def test_a_small_model_is_tried_as_a_whole() -> None:
    small = model(*[dense(n_bytes=1000)] * 30)
    assert cut(small) == Cut((), small.layers, 0.0)


def test_a_small_model_is_not_where_its_layers_have_to_be_told_from_the_rest() -> None:
    found = cut(model(*[dense(n_bytes=1000)] * 30), whole=False)
    assert (len(found.few), len(found.many), found.scale) == (1, 30, 0.0)


def test_of_a_large_model_some_layers_stand_for_all() -> None:
    found = cut(model(*[dense()] * 28))
    assert (len(found.few), len(found.many)) == (1, 2)
    assert found.scale == 26.0


def test_more_of_them_where_there_is_room_in_memory() -> None:
    found = cut(model(*[dense()] * 28), room=7 * BIG)
    assert (len(found.few), len(found.many)) == (1, 6)
    assert found.scale == 22 / 5
    assert len(cut(model(*[dense()] * 28), room=4 * BIG).many) == 3


def test_two_layers_are_tried_however_large_they_are() -> None:
    found = cut(model(*[dense(n_bytes=10**10)] * 80))
    assert (len(found.few), len(found.many), found.scale) == (1, 2, 78.0)


def test_formats_have_their_share() -> None:
    """Half of them better, as in Q4_K_M, and the first eighth all of them."""
    small, large = dense("Q4_K", 200_000_000), dense("Q6_K", 300_000_000)
    layers = [large] * 4 + [large, small] * 8 + [small] * 8 + [large] * 4
    found = cut(model(*layers))
    more = found.many[len(found.few) :]
    assert formats(more[:2]) == ["Q4_K", "Q6_K"]
    assert found.many[0] == large
    rest = sum(m.n_bytes for layer in layers for m in layer.values()) - sum(
        m.n_bytes for layer in found.many for m in layer.values()
    )
    assert found.scale * sum(m.n_bytes for layer in more for m in layer.values()) == pytest.approx(rest)


def test_what_is_multiplied_is_like_what_it_stands_for() -> None:
    """Dense layers come first and are few: the layers in between are mixtures."""
    found = cut(model(dense(), *[experts()] * 40))
    assert found.few == (dense(),)
    assert found.many == (dense(), experts())
    assert found.scale == 39.0


def test_a_pattern_is_tried_whole_if_there_is_room() -> None:
    """Attention in every fourth layer."""
    kinds = [experts(100_000_000)] * 3 + [dense(n_bytes=100_000_000)]
    found = cut(model(*kinds * 10))
    more = found.many[len(found.few) :]
    assert len(more) % 4 == 0
    assert sum(layer == dense(n_bytes=100_000_000) for layer in more) * 4 == len(more)
