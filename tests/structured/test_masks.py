"""Masks over the tokens of a model: for any text asked about, for every kind of tokenizer, and after a thought."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import TokenType

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import DecodeFailed
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings
from specdec_cli.structured.compiler import translated
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.source import GrammarSource
from specdec_cli.structured.thought import AfterThought, ThoughtTokens
from specdec_cli.structured.tokenizer import TokenBytes, llguidance_tokenizer
from tests.planted import make_vocab, write_vocab_only
from tests.real_models import need, vocab

EOS = 2
WORDS = 259
"""The first token that is not a single byte."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Words of one and two letters, each with a space before it."""
    path = write_vocab_only(tmp_path_factory.mktemp("vocab") / "v.gguf", make_vocab(320))
    with LlamaModel(ModelSettings(path), vocab_only=True) as opened:
        yield opened


def masks(model: LlamaModel, pattern: str) -> TokenMasks:
    pieces = [model.token_bytes(token) for token in range(model.n_vocab)]
    tokens = TokenBytes(pieces, model.end_tokens, lambda text: ids(model, text))
    return TokenMasks(llguidance_tokenizer(tokens), translated(GrammarSource("regex", pattern)), model.end_tokens)


def ids(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def following(model: LlamaModel, grammar: TokenMasks, text: Sequence[int]) -> set[bytes]:
    """What may follow, without the tokens of single bytes."""
    everything = np.arange(model.n_vocab)
    allowed = everything[grammar.allowed(Tokens(text), 0, everything)]
    assert grammar.all_allowed(Tokens(text), 0).tolist() == allowed.tolist()
    return {model.marked_bytes(int(token)) for token in allowed if token == EOS or token > WORDS}


def test_what_may_follow_and_when_it_may_end(model: LlamaModel) -> None:
    grammar = masks(model, " a( b| c)?")
    assert following(model, grammar, []) == {b" a"}
    assert following(model, grammar, ids(model, "a")) == {b" b", b" c", b"</s>"}
    assert following(model, grammar, ids(model, "a b")) == {b"</s>"}


def test_after_the_end_everything_goes(model: LlamaModel) -> None:
    """The row behind an end token in a draft is asked about, and then thrown away."""
    grammar = masks(model, " a")
    assert grammar.allowed(Tokens([*ids(model, "a"), EOS]), 0, np.arange(320)).all()
    assert grammar.allowed(Tokens([*ids(model, "a"), EOS, 270]), 0, np.arange(320)).all()
    assert following(model, grammar, []) == {b" a"}


def test_a_text_outside_the_grammar_is_an_error_and_spoils_nothing(model: LlamaModel) -> None:
    grammar = masks(model, "( a)+")
    for text in (ids(model, "b"), ids(model, "a a b"), [*ids(model, "a"), 0]):
        with pytest.raises(DecodeFailed, match="grammar"):
            grammar.allowed(Tokens(text), 0, np.arange(320))
    assert following(model, grammar, ids(model, "a")) == {b" a", b"</s>"}


def test_any_order_of_questions_gives_the_same_answers(model: LlamaModel) -> None:
    """Forward, back, beside, far back: as a grammar that never heard another text."""
    pattern = "( a( b)*| c a| d)+"
    draw = random.Random(3)
    texts: list[list[int]] = [[]]
    used = masks(model, pattern)
    for _ in range(200):
        text = draw.choice(texts[-20:])
        texts.append([*text, draw.choice([int(t) for t in used.all_allowed(Tokens(text), 0) if t > WORDS])])
    draw.shuffle(texts)
    for text in texts:
        expected = following(model, masks(model, pattern), text) if draw.random() < 0.2 else None
        found = following(model, used, text)
        assert expected is None or found == expected


def test_only_is_said_of_one_token_alone(model: LlamaModel) -> None:
    grammar = masks(model, " a( b| c) d")
    assert grammar.only(Tokens(), 0) == ids(model, "a")[0]
    assert grammar.only(Tokens(ids(model, "a")), 0) is None
    assert grammar.only(Tokens(ids(model, "a b")), 0) == ids(model, "d")[0]
    assert grammar.only(Tokens(ids(model, "a b d")), 0) == EOS


# --- real tokenizers ------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"名前 é": {"enum": ["naïve 👍", 'tab\tand \\ "']}, "n": {"type": "integer"}},
    "required": ["名前 é", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("family", ["qwen2", "llama-bpe", "llama-spm", "gpt-2", "phi-3", "command-r", "gemma-4"])
def test_the_bytes_of_every_tokenizer(family: str) -> None:
    """Random walks spell JSON that keeps to the schema, and no marker is ever allowed."""
    path = need(vocab, family)
    with LlamaModel(ModelSettings(path), vocab_only=True) as opened:
        pieces, ends = [opened.token_bytes(token) for token in range(opened.n_vocab)], opened.end_tokens
        tokenizer = llguidance_tokenizer(TokenBytes(pieces, ends, lambda text: ids(opened, text)))
        grammar = TokenMasks(tokenizer, translated(GrammarSource("json-schema", json.dumps(SCHEMA))), ends)
        markers = {token for token, piece in enumerate(pieces) if not piece}
        for seed in range(3):
            draw, text = random.Random(seed), list[int]()
            while not ends.intersection(text):
                allowed = grammar.all_allowed(Tokens(text), 0).tolist()
                assert not markers.intersection(allowed) - ends
                text.append(draw.choice(sorted(ends.intersection(allowed)) or allowed))
            found = json.loads(b"".join(pieces[token] for token in text if token not in ends).decode())
            assert list(found) == ["名前 é", "n"]
            assert found["名前 é"] in ("naïve 👍", 'tab\tand \\ "')
            assert type(found["n"]) is int


# --- thoughts ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thinker(model: LlamaModel) -> AfterThought:
    """ " x" opens a thought, " y" closes it; " z" is a line break."""
    opening, closing, space = (ids(model, letter)[0] for letter in "xyz")
    tokens = ThoughtTokens(opening, closing, frozenset({space}), model.end_tokens)
    return AfterThought(masks(model, " a b"), tokens, model.n_vocab)


def may_follow(model: LlamaModel, thinker: AfterThought, text: str) -> set[bytes]:
    found = thinker.all_allowed(Tokens(ids(model, text) if text else []), 0)
    return {model.marked_bytes(int(token)) for token in found if token == EOS or token > WORDS}


def test_the_grammar_begins_after_the_thought_that_the_prompt_opened(model: LlamaModel, thinker: AfterThought) -> None:
    thinker.begin(ids(model, "q x z"))
    for thinking in ("", "a", "c d"):
        assert len(may_follow(model, thinker, thinking)) > 50
        assert b"</s>" not in may_follow(model, thinker, thinking)
        assert thinker.only(Tokens(ids(model, thinking) if thinking else []), 0) is None
    assert may_follow(model, thinker, "c d y") == {b" a", b" z"}
    assert may_follow(model, thinker, "c d y z") == {b" a"}
    assert may_follow(model, thinker, "c d y z a") == {b" b"}
    assert thinker.only(Tokens(ids(model, "c d y a")), 0) == ids(model, "b")[0]
    assert may_follow(model, thinker, "y a b") == {b"</s>"}


def test_a_thought_is_the_models_choice_where_the_prompt_opened_none(model: LlamaModel, thinker: AfterThought) -> None:
    thinker.begin(ids(model, "q"))
    assert may_follow(model, thinker, "") == {b" a", b" x"}
    assert may_follow(model, thinker, "a") == {b" b"}
    assert len(may_follow(model, thinker, "x c")) > 50
    assert may_follow(model, thinker, "x c y a") == {b" b"}


def test_a_thought_that_the_prompt_closed_is_over(model: LlamaModel, thinker: AfterThought) -> None:
    thinker.begin(ids(model, "q x z y z"))
    assert may_follow(model, thinker, "") == {b" a"}


def test_a_template_that_knows_of_thoughts_makes_a_note(tmp_path: Path) -> None:
    words = make_vocab(320).renamed({300: "<think>", 301: "</think>"})
    types = [TokenType.USER_DEFINED if token in (300, 301) else kind for token, kind in enumerate(words.types)]
    said: list[str] = []
    for name, template in (("thinks", "{{ messages }}<think></think>"), ("talks", "{{ messages }}")):
        with_template = replace(words, types=tuple(types), chat_template=template)
        path = write_vocab_only(tmp_path / f"{name}.gguf", with_template)
        with LlamaModel(ModelSettings(path), vocab_only=True) as opened, ExitStack() as stack:
            grammar = open_grammar(GrammarSource("regex", " a"), opened, said.append, stack)
            assert isinstance(grammar, AfterThought) == (name == "thinks")
    assert said == ["This model may think first: the grammar applies after </think>."]
