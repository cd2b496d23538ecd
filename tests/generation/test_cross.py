"""Pairs with different vocabularies in real files: the text is that of plain decoding, whatever the draft has read."""

import string
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import OpenModel, Pair, decoding_for, open_pair, plain_decoding
from specdec_cli.generation.prompts import conversation
from specdec_cli.generation.rules import RULES
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests import real_models
from tests.cli import HEADS, VOCAB, inside, json_inside, ring, word
from tests.planted import BYTES, UNK, Chain, make_vocab, random_chain, write_planted
from tests.real_models import need

N_OTHER = 376
"""Tokens of a second vocabulary: byte-pair encoding instead of SentencePiece, with more words."""
TEXTS = {
    "English": "The history of the bicycle begins in",
    "Russian": "История велосипеда начинается",
    "Chinese": "自行车的历史始于",
    "emoji": "🦙👩‍🚀🎉 and 🦙👩‍🚀",
    "code": "def merge(intervals):\n    result = []\n",
}


def in_other_words(chain: Chain) -> Chain:
    """The same chain in the second vocabulary: ids of the same words, shape [N_OTHER, N_OTHER]."""
    ours, theirs = VOCAB.tokens, {t.replace("Ġ", "▁"): i for i, t in enumerate(make_vocab(N_OTHER, "gpt2").tokens)}
    pairs = [(i, theirs[text]) for i, text in enumerate(ours) if text in theirs and i not in BYTES]
    other = np.zeros((N_OTHER, N_OTHER))
    rows, columns = np.array(pairs).T
    other[np.ix_(columns, columns)] = chain[np.ix_(rows, rows)]
    other[other.sum(axis=1) == 0, 2] = 1.0
    return other / other.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Planted: the draft has the target's distribution over words, in tokens of its own."""
    folder = tmp_path_factory.mktemp("cross")
    chain = random_chain(len(VOCAB), 5, 2.5, never=(UNK, 1, *BYTES))
    target = write_planted(folder / "target.gguf", chain, vocab=VOCAB, n_head=HEADS)
    vocab = make_vocab(N_OTHER, "gpt2")
    draft = write_planted(folder / "draft.gguf", in_other_words(chain), vocab=vocab, n_head=4)
    request = PairRequest(
        target,
        Drafting("model", 8, draft=draft, force=True, cross=True),
        Sampling(SamplingParams(temperature=0), seed=7),
        Placement(threads=1, trust=True),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


def texts(pair: Pair, prompt: str, temperature: float, k: int, *, rule: str = "coupled", n: int = 24) -> Any:
    """(plain tokens, drafted tokens, drafted, accepted) of an answer."""
    ids = pair.target.model.tokenize(prompt, add_special=True, parse_special=False)
    law = RULES[rule](pair.rule.law.with_params(SamplingParams(temperature=temperature)), seed=7)
    both = plain_decoding(law), decoding_for(pair, "model", k, law, give_up_after=10**9)
    runs = [list(pair.rounds(ids, way, max_tokens=n, clock=time.perf_counter)) for way in both]
    plain, drafted = ([token for round_ in rounds for token in round_.tokens] for rounds in runs)
    return plain, drafted, sum(len(r.drafted) for r in runs[1]), sum(r.n_accepted for r in runs[1])


@pytest.mark.parametrize("by_text", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_planted_texts_are_equal_and_the_draft_is_right(pair: Pair, temperature: float, by_text: bool) -> None:
    assert pair.crossing is not None
    other = replace(pair, crossing=replace(pair.crossing, by_text=by_text))
    for k in range(1, 9):
        plain, text, n_drafted, n_accepted = texts(other, "a b c", temperature, k)
        assert text == plain
        assert n_accepted >= 0.7 * n_drafted > 0


@pytest.mark.parametrize("prompt", TEXTS.values(), ids=TEXTS)
def test_planted_texts_are_equal_after_any_prompt(pair: Pair, prompt: str) -> None:
    plain, text, _, _ = texts(pair, prompt, 0.7, 4)

    assert text == plain


def test_the_draft_reads_a_chat_in_its_own_format(tmp_path: Path) -> None:
    """The target's template and the draft's differ; what the draft has read is its own rendering."""
    letters = [word(letter) for letter in string.ascii_lowercase]
    ours = replace(VOCAB, chat_template="{% for m in messages %}Q{{ m.content }}A{% endfor %}")
    theirs = replace(
        make_vocab(N_OTHER, "gpt2"), chat_template="{% for m in messages %} x{{ m.content }} y{% endfor %}"
    )
    chain = ring(*letters)
    target = write_planted(tmp_path / "target.gguf", chain, vocab=ours, n_head=HEADS)
    draft = write_planted(tmp_path / "draft.gguf", in_other_words(chain), vocab=theirs, n_head=4)
    request = PairRequest(
        target, Drafting("model", 4, draft=draft, force=True, cross=True), placement=Placement(trust=True)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        assert opened.draft is not None
        assert opened.crossing is not None
        talk = conversation(opened.target.model, system=None, thinking=None, now=datetime.now, follower=opened.follower)
        assert talk is not None
        ids = talk.ask(" a b")
        own = opened.crossing.reader.read([*ids, word("c")]).tokens
        text = b"".join(map(opened.draft.model.token_bytes, own))

    assert text == b" x a b y c"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that says the alphabet, and the same in another vocabulary."""
    folder = tmp_path_factory.mktemp("alphabet")
    chain = ring(*(word(letter) for letter in string.ascii_lowercase))
    target = write_planted(folder / "alphabet.gguf", chain, vocab=VOCAB, n_head=HEADS)
    other = make_vocab(N_OTHER, "gpt2")
    return target, write_planted(folder / "other.gguf", in_other_words(chain), vocab=other, n_head=4)


def test_without_the_option_it_is_refused_and_the_hint_names_it(files: tuple[Path, Path]) -> None:
    done = inside("run", files[0], "a", "--draft", files[1], "--force")

    assert done.code == 4
    assert "--cross" in done.err


@pytest.mark.parametrize("verify", ["coupled", "rejection", "block"])
def test_with_it_the_run_drafts(files: tuple[Path, Path], verify: str) -> None:
    flags = ("a b c", "--raw", "--temp", 0, "-n", 24, "-k", 4)
    plain = json_inside(files[0], *flags).document
    crossed = json_inside(files[0], *flags, "--draft", files[1], "--force", "--cross", "--verify", verify).document

    assert crossed["token_ids"] == plain["token_ids"]
    assert crossed["stats"]["accepted"] > 12
    assert "drafts are translated" in crossed["models"]["tokenizers"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_json_by_a_schema_is_that_of_plain_decoding(pair: Pair, tmp_path: Path, temperature: float) -> None:
    """The draft goes on behind what the schema forces."""
    (tmp_path / "schema").write_text('{"enum": ["a b c d e f", "a b d c f e", ["a b", "c d"], ["b a", "d c"]]}')
    assert isinstance(pair.draft, OpenModel)
    target, draft = pair.target.model.path, pair.draft.model.path
    flags = ("a b c", "--raw", "--temp", temperature, "--seed", 5, "-n", 60, "--json-schema", tmp_path / "schema")
    plain = json_inside(target, *flags, "--draft", "none").document
    assert plain["grammar_complete"] is True
    for k in (1, 4):
        crossed = json_inside(target, *flags, "--draft", draft, "--no-ngram", "--force", "--cross", "-k", k).document
        assert crossed["token_ids"] == plain["token_ids"]
        assert crossed["stats"]["drafted"] > crossed["stats"]["sources"]["grammar"]["drafted"] > 0


def test_with_lookup_and_lengths_by_cost_it_drafts_too(files: tuple[Path, Path]) -> None:
    flags = ("a b c", "--raw", "--temp", 0, "-n", 60)
    plain = json_inside(files[0], *flags).document
    crossed = json_inside(files[0], *flags, "--draft", files[1], "--force", "--cross").document

    assert crossed["token_ids"] == plain["token_ids"]


@pytest.mark.parametrize(
    ("target", "draft", "languages"),
    [("smollm2", "gemma", ("Russian", "English", "emoji")), ("gemma", "smollm2", ("Chinese", "code", "Russian"))],
)
def test_real_texts_are_equal(target: str, draft: str, languages: tuple[str, ...]) -> None:
    """SmolLM2 and Gemma, each drafting for the other, in formats whose numbers do not depend on a pass's width."""
    paths = {"smollm2": need(real_models.smollm2, "Q4_0"), "gemma": need(real_models.gemma3_270m, "Q4_0")}
    request = PairRequest(
        paths[target],
        Drafting("model", 8, draft=paths[draft], force=True, cross=True),
        Sampling(SamplingParams(temperature=0), seed=7),
        Placement(n_ctx=256, threads=1, trust=True),
    )
    n_accepted = {}
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        for i, language in enumerate(languages):
            plain, text, _, n_accepted[language] = texts(pair, TEXTS[language], (0.0, 0.7, 1.0)[i], 4 + i, n=6)
            assert text == plain
    assert sum(n_accepted.values()) >= 3
