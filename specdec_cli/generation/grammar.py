"""Opens the grammar of a run for a model."""

from collections.abc import Sequence
from contextlib import ExitStack

from specdec_cli.decode.types import Grammar
from specdec_cli.llama.grammar import LlamaGrammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.planning.plan import Say
from specdec_cli.structured.compiler import translated
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.source import GrammarSource
from specdec_cli.structured.thought import MARKS, AfterThought, ThoughtTokens
from specdec_cli.structured.tokenizer import TokenBytes, llguidance_tokenizer

_SPACES = ("\n", "\n\n")


def open_grammar(source: GrammarSource, model: LlamaModel, say: Say, stack: ExitStack) -> Grammar:
    """The grammar over the tokens of `model`; `stack` closes it. Raises UsageError."""
    grammar = _over_tokens(source, model, stack)
    thought = _thought_tokens(model)
    if thought is None:
        return grammar
    say(f"This model may think first: the grammar applies after {_text(model, thought.closing)}.")
    return AfterThought(grammar, thought, model.n_vocab)


def _over_tokens(source: GrammarSource, model: LlamaModel, stack: ExitStack) -> Grammar:
    if source.kind == "gbnf":
        return stack.enter_context(LlamaGrammar(model, source.text))
    return TokenMasks(llguidance_tokenizer(_token_bytes(model)), translated(source), model.end_tokens)


def _token_bytes(model: LlamaModel) -> TokenBytes:
    return TokenBytes(
        model.all_bytes(),
        model.end_tokens,
        lambda text: model.tokenize(text, add_special=False, parse_special=False),
    )


def _thought_tokens(model: LlamaModel) -> ThoughtTokens | None:
    """The marks that the model's template knows, if each is one token."""
    template = model.chat_template or ""
    for marks in MARKS:
        if marks[1] not in template:
            continue
        opening, closing = (_marker(model, mark) for mark in marks)
        if opening is not None and closing is not None:
            spaces = frozenset(t for space in _SPACES if (t := _single(_plain(model, space))) is not None)
            return ThoughtTokens(opening, closing, spaces, model.end_tokens)
    return None


def _marker(model: LlamaModel, text: str) -> int | None:
    return _single(model.tokenize(text, add_special=False, parse_special=True))


def _plain(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def _single(ids: Sequence[int]) -> int | None:
    return ids[0] if len(ids) == 1 else None


def _text(model: LlamaModel, token: int) -> str:
    return model.marked_bytes(token).decode("utf-8", "replace")
