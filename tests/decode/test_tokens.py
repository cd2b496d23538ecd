"""Token lists that share their beginnings behave as lists do, and never change under whoever holds one."""

from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decode.tokens import Tokens, shared_prefix

FEW = st.lists(st.integers(0, 2), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(("then", "grown", "first", "new")), st.integers(0, 30), FEW), max_size=12)


def values(steps: list[tuple[str, int, list[int]]]) -> list[tuple[Tokens, list[int]]]:
    """Values made from one another by `steps`, each with the list that it must equal."""
    made = [(Tokens((1, 2)), [1, 2])]
    for kind, source, more in steps:
        tokens, expected = made[source % len(made)]
        if kind == "new":
            made.append((Tokens(expected), list(expected)))
        elif kind == "first":
            made.append((tokens.first(len(more)), expected[: len(more)]))
        else:
            made.append((getattr(tokens, kind)(more), [*expected, *more]))
    return made


@given(STEPS)
def test_every_value_stays_what_it_was_made(steps: list[tuple[str, int, list[int]]]) -> None:
    for tokens, expected in values(steps):
        assert list(tokens) == expected
        assert len(tokens) == len(expected)


@given(STEPS)
def test_the_shared_beginning_is_that_of_the_lists(steps: list[tuple[str, int, list[int]]]) -> None:
    made = values(steps)
    for a, as_list in made:
        for b, bs_list in made:
            assert a.n_shared(b) == shared_prefix(as_list, bs_list)


@given(STEPS, st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none(), st.sampled_from((None, 1, 2, -1)))
def test_slices_and_items_are_those_of_the_list(
    steps: list[tuple[str, int, list[int]]], start: int | None, stop: int | None, step: int | None
) -> None:
    tokens, expected = values(steps)[-1]
    assert tokens[start:stop:step] == expected[start:stop:step]
    for i in range(-len(expected), len(expected)):
        assert tokens[i] == expected[i]


def test_a_text_that_only_grows_is_never_compared() -> None:
    class Counted(int):
        asked = 0

        def __eq__(self, other: object) -> bool:
            Counted.asked += 1
            return int(self) == other

        __hash__ = int.__hash__

    text = Tokens([Counted(i) for i in range(100)])
    longer = text.then((1, 2)).then((3,))
    grown = text.grown((1,))
    assert (text.n_shared(longer), longer.n_shared(grown), grown.n_shared(text)) == (100, 101, 100)
    assert Counted.asked == 0
    assert Tokens([Counted(i) for i in range(100)]).n_shared(grown) == 100
    assert Counted.asked > 0, "this text is another, with the same tokens"


def test_a_list_becomes_tokens_once() -> None:
    tokens = Tokens.of([1, 2])
    assert Tokens.of(tokens) is tokens
    assert list(tokens) == [1, 2]
