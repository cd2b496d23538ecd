"""One pass over a text against drafting for real: the same counts, for every draft length."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.bench.measure import Bench, Setting, Task
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.lengths.speedup_model import conditional_acceptance, position_counts
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.make_draft.agreement import agreements, chances
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests.planted import write_pair

PROMPT = (1, 270, 271, 272)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    files = write_pair(tmp_path_factory.mktemp("agreement"), amount=0.6)
    request = PairRequest(
        files.target,
        Drafting("none", 8, files.draft, force=True),
        Sampling(seed=3),
        Placement(threads=1, cache_type="f32"),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_what_one_pass_says_is_what_drafting_does(pair: Pair, temperature: float, k: int) -> None:
    assert pair.draft is not None
    clock = itertools.count()
    bench = Bench(pair, SamplingParams(), 80, lambda: float(next(clock)))
    task, setting = Task("x", PROMPT), Setting("model", k, temperature)
    text = bench.run(task, Setting("none", 0, temperature)).ids
    rounds = bench.run(task, setting).rounds

    rule = bench._rule(temperature)
    agree = [
        found
        for i in range(len(text))  # a row at a time: this context gives no more
        for found in agreements(pair.draft.session, rule, (*PROMPT, *text[:i]), text[i : i + 1])
    ]
    assert 0 < sum(agree) < len(agree)
    assert chances([agree], k) == conditional_acceptance(
        *position_counts((len(r.drafted), r.n_accepted) for r in rounds)
    )


@given(st.lists(st.lists(st.booleans(), max_size=30), max_size=4), st.integers(1, 8))
def test_chances_are_chances(texts: list[list[bool]], k: int) -> None:
    found = chances(texts, k)
    assert len(found) == k
    assert all(0 <= chance <= 1 for chance in found)


def test_a_draft_that_is_always_right_or_never() -> None:
    assert chances([[True] * 20], 3) == [1.0, 1.0, 1.0]
    assert chances([[False] * 20], 2) == [0.0, 0.0]
    assert chances([[True, True, False] * 10], 2) == [1.0, 0.9]  # the wrong one is always the own token but once
