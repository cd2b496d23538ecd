"""GBNF on llama.cpp's sampler: states for any text asked about."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import DecodeFailed
from specdec_cli.llama.grammar import LlamaGrammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings
from tests.planted import make_vocab, write_vocab_only

EOS = 2
EVERYTHING = np.arange(320)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Words of one and two letters, each with a space before it."""
    path = write_vocab_only(tmp_path_factory.mktemp("vocab") / "v.gguf", make_vocab(320))
    with LlamaModel(ModelSettings(path), vocab_only=True) as opened:
        yield opened


def ids(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def following(model: LlamaModel, grammar: LlamaGrammar, text: Sequence[int]) -> set[bytes]:
    """What may follow, without the tokens of single bytes."""
    allowed = EVERYTHING[grammar.allowed(Tokens(text), 0, EVERYTHING)]
    assert grammar.all_allowed(Tokens(text), 0).tolist() == allowed.tolist()
    return {model.marked_bytes(int(token)) for token in allowed if token == EOS or token > 259}


def test_what_may_follow_and_when_it_may_end(model: LlamaModel) -> None:
    with LlamaGrammar(model, 'root ::= " a" (" b" | " c")?') as grammar:
        assert following(model, grammar, []) == {b" a"}
        assert following(model, grammar, ids(model, "a")) == {b" b", b" c", b"</s>"}
        assert following(model, grammar, ids(model, "a b")) == {b"</s>"}


def test_after_the_end_everything_goes(model: LlamaModel) -> None:
    """The row behind an end token in a draft is asked about, and then thrown away."""
    with LlamaGrammar(model, 'root ::= " a"') as grammar:
        assert grammar.allowed(Tokens([*ids(model, "a"), EOS]), 0, EVERYTHING).all()
        assert grammar.allowed(Tokens([*ids(model, "a"), EOS, 270]), 0, EVERYTHING).all()


def test_a_text_outside_the_grammar_is_an_error_and_no_abort(model: LlamaModel) -> None:
    with LlamaGrammar(model, 'root ::= " a"+') as grammar:
        for text in (ids(model, "b"), [EOS], [*ids(model, "a"), 0]):
            with pytest.raises(DecodeFailed, match="grammar"):
                grammar.allowed(Tokens(text), 0, EVERYTHING)
        assert following(model, grammar, ids(model, "a")) == {b" a", b"</s>"}


def test_any_order_of_questions_gives_the_same_answers(model: LlamaModel) -> None:
    """Forward, back, beside, far back: as a grammar that never heard another text."""
    gbnf = 'root ::= (" a" " b"* | " c" " a" | " d")+'
    random = Random(3)
    texts = [[]]
    with LlamaGrammar(model, gbnf) as fresh:
        for _ in range(300):
            text = random.choice(texts[-20:])
            allowed = EVERYTHING[fresh.allowed(Tokens(text), 0, EVERYTHING)]
            texts.append([*text, int(random.choice([t for t in allowed if t > 259]))])
    random.shuffle(texts)
    with LlamaGrammar(model, gbnf) as used:
        for text in texts:
            with LlamaGrammar(model, gbnf) as fresh:
                assert following(model, used, text) == following(model, fresh, text)


def test_a_long_text_goes_back_to_its_beginning(model: LlamaModel) -> None:
    text = ids(model, "a " * 400)
    with LlamaGrammar(model, 'root ::= " a"{1,401}') as grammar:
        for n in (400, 3, 399, 0, 398):
            assert following(model, grammar, text[:n]) == ({b" a", b"</s>"} if n else {b" a"})
