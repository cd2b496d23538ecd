"""Trees of tokens in batches of llama.cpp, where every leaf is a sequence of its own."""

from collections.abc import Sequence


def leaf_sequences(parents: Sequence[int]) -> list[list[int]]:
    """For each token of a tree the numbers, ascending, of the leaves that it leads to; leaves count from 1."""
    found: list[list[int]] = [[] for _ in parents]
    leaves = [i for i in range(len(parents)) if i not in parents]
    for number, at in enumerate(leaves, 1):
        while at >= 0:
            found[at].append(number)
            at = parents[at]
    return found


def n_leaves_of(parents: Sequence[int]) -> int:
    """How many tokens of a tree have none after them."""
    return len(parents) - len(set(parents) - {-1})


def depths_of(parents: Sequence[int]) -> list[int]:
    """For each token of a tree how far it is from the root, which is not one of them."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return depths
