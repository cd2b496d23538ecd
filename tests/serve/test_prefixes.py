"""Kept beginnings: a chat that alternates with another prompt is not read again, and its text stays the same."""

import time
from collections.abc import Iterator

import pytest

from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.responder import AnswerRequest, Responder
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.serve.prefixes import Prefixes
from tests.cli import Models
from tests.planted import BYTES

FIRST, SECOND = ([BYTES.stop + i % n for i in range(200)] for n in (7, 11))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def responder(models: Models) -> Iterator[Responder]:
    drafting = Drafting("model", 3, draft=models.draft)
    request = PairRequest(models.words, drafting, placement=Placement(threads=1, n_ctx=1024))
    with (
        open_pair(request, say=print, abort=AbortFlag()) as pair,
        Responder(pair, request, clock=time.perf_counter, say=print) as found,
    ):
        yield found


def forget(pair: Pair) -> None:
    pair.target.session.forget()
    assert pair.draft is not None
    pair.draft.session.forget()


def answer(responder: Responder, prefixes: Prefixes | None, prompt: list[int]) -> tuple[list[int], int, int]:
    """Tokens of the answer, and how many tokens the target and the draft evaluated."""
    if prefixes is not None:
        prefixes.prepare(prompt)
    found = responder.start(AnswerRequest(prompt, Sampling(seed=3), max_tokens=8))
    tokens = [one.token for part in found for one in part]
    target, draft = found.stats.target, found.stats.draft
    assert target is not None
    assert draft is not None
    return tokens, target.tokens, draft.tokens


def test_two_chats_by_turns_are_read_once(responder: Responder) -> None:
    forget(responder.pair)
    alone = []
    for prompt in (FIRST, SECOND):
        forget(responder.pair)
        alone.append(answer(responder, None, prompt)[0])
    forget(responder.pair)
    prefixes = Prefixes(responder.pair, 1 << 30)
    texts = {0: list(FIRST), 1: list(SECOND)}
    for turn in range(6):
        which = turn % 2
        prompt = list(texts[which])
        tokens, n_target, n_draft = answer(responder, prefixes, prompt)
        if turn < 2:
            assert tokens == alone[which]
            assert n_target >= 200
        else:
            assert n_target < 120
            assert n_draft < 120
        texts[which] += [*tokens, *prompt[:10]]
    assert len(prefixes) in (1, 2)
    # The same texts, read anew.
    forget(responder.pair)
    again = [*FIRST, *alone[0], *FIRST[:10]]
    assert answer(responder, None, again)[0] == texts[0][len(again) : len(again) + 8]


def test_memory_has_a_limit_and_a_longer_text_takes_the_place_of_its_beginning(responder: Responder) -> None:
    forget(responder.pair)
    prefixes = Prefixes(responder.pair, 1 << 30)
    answer(responder, prefixes, FIRST)
    answer(responder, prefixes, SECOND)
    assert len(prefixes) == 1
    size = prefixes.n_bytes
    longer = [*FIRST, *FIRST]
    answer(responder, prefixes, longer)  # continues what was kept
    answer(responder, prefixes, SECOND)
    assert len(prefixes) == 2
    assert prefixes.n_bytes > 2.5 * size

    tight = Prefixes(responder.pair, int(1.5 * size))
    for i in range(6):
        answer(responder, tight, [BYTES.stop + 20 + i, *FIRST])
        assert tight.n_bytes <= 1.5 * size
    assert len(tight) == 1


def test_no_memory_keeps_nothing(responder: Responder) -> None:
    prefixes = Prefixes(responder.pair, 0)
    for prompt in (FIRST, SECOND, FIRST):
        answer(responder, prefixes, prompt)
    assert (len(prefixes), prefixes.n_bytes) == (0, 0)


def test_a_memory_that_cannot_be_cropped_keeps_nothing(models: Models) -> None:
    request = PairRequest(models.mamba, placement=Placement(threads=1, n_ctx=512))
    with open_pair(request, say=print, abort=AbortFlag()) as pair:
        prefixes = Prefixes(pair, 1 << 30)
        pair.target.session.score(FIRST, 1)
        prefixes.prepare(SECOND)
        assert len(prefixes) == 0
