"""Tokenizes rendered chats: control tokens only in the template's own text, never in content.

llama.cpp reads a whole text either with control tokens or without. A content that names none (nearly all) is left as it
is, and the text is read as a whole. In any other content each name gets a mark after its first character, which
survives what templates do with contents (trimming, upper case, `in`). The rendered text is then split at the control
tokens without a mark, which are the template's, and what lies between them is read as text. llama.cpp splits in the
same way, so ids of ordinary text do not depend on the path.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Protocol

from specdec_cli.models.vocabulary import SpecialToken

_MARK, _CUT, _ESCAPED = "\ufdd0\ufdd1", "\ufdd0\ufdd2", "\ufdd0\ufdd3"
"""Begin with a code point that is no character (for use inside programs); where a content has that one, it is escaped.
_MARK stands inside the name of a control token. _CUT stands inside a name that llama.cpp reads as a token in any text:
what is before and after it is read apart."""
_ESCAPE = _MARK[0]


class Tokenizer(Protocol):
    """What is needed of a model."""

    @property
    def bos_text(self) -> str: ...
    @property
    def adds_bos(self) -> bool: ...
    def special_token(self, token: int) -> SpecialToken | None: ...
    def special_tokens(self) -> Iterable[SpecialToken]: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class ChatEncoder:
    """The ids of rendered conversations. `template_text` is asked for what the template itself writes."""

    def __init__(self, model: Tokenizer, template_text: Callable[[], str]) -> None:
        self._model = model
        self._template_text = template_text

    def mark(self, content: str, *, is_reply: bool) -> str:
        """`content` with marks in names of control tokens. In what the user gives, also in names of tokens that count
        as text where the template uses them (Command R's <|START_OF_TURN_TOKEN|>); a reply may have those (<think>).
        """
        plain = self._model.tokenize(content, add_special=False, parse_special=False)
        special = self._model.tokenize(content, add_special=False, parse_special=True)
        names = [] if plain == special else [t.text for t in self._controls.values() if t.text in content]
        textual = set() if is_reply else self._textual_markers(plain)
        marked = content.replace(_ESCAPE, _ESCAPED)
        return _marked(marked, {**dict.fromkeys(names, _MARK), **dict.fromkeys(textual, _CUT)})

    def _textual_markers(self, ids: Iterable[int]) -> set[str]:
        """Names among `ids` of tokens that are read in any text and that the template uses, too."""
        found = {t.text for t in map(self._model.special_token, set(ids)) if t is not None and not t.is_control}
        found = {text for text in found if len(text) > 1 and not text.isspace()}
        return {text for text in found if text in self._template} if found else found

    @cached_property
    def _template(self) -> str:
        return self._template_text()

    @cached_property
    def _controls(self) -> dict[str, SpecialToken]:
        """By name, the longest first, as llama.cpp looks for them. One character cannot hold a mark."""
        found = [t for t in self._model.special_tokens() if t.is_control and len(t.text) > 1]
        return {t.text: t for t in sorted(found, key=lambda t: -len(t.text))}

    def whole(self, marked: str) -> list[int]:
        """Ids of a text from its beginning. One that writes BOS itself does not get another one from the tokenizer."""
        if _ESCAPE not in marked:
            return text_ids(self._model, marked)
        begins_with_bos = bool(self._model.bos_text) and marked.startswith(self._model.bos_text)
        added = [] if begins_with_bos else self._model.tokenize("", add_special=True, parse_special=False)
        n_before = int(self._model.adds_bos)
        return [*added[:n_before], *self._split(marked, follows=False), *added[n_before:]]

    def rest(self, marked: str) -> list[int]:
        """Ids of a text that follows another one."""
        if _ESCAPE not in marked:
            return more_ids(self._model, marked, parse_special=True)
        return list(self._split(marked, follows=True))

    def _split(self, marked: str, *, follows: bool) -> Iterator[int]:
        names = [re.escape(name) for name in self._controls if name in marked]
        # One part more than there are names, which stand at the odd places.
        parts = re.split(f"({'|'.join(names)})", marked) if names else [marked]
        tokens = [self._controls[name] for name in parts[1::2]]
        for i, text in enumerate(parts[::2]):
            if i > 0:
                yield tokens[i - 1].id
                text = text.lstrip() if tokens[i - 1].strips_right else text
            if i < len(tokens) and tokens[i].strips_left:
                text = text.rstrip()
            yield from self._text(text, follows=follows and i == 0)

    def _text(self, marked: str, *, follows: bool) -> Iterator[int]:
        for i, part in enumerate(marked.replace(_MARK, "").split(_CUT)):
            text = part.replace(_ESCAPED, _ESCAPE)
            if follows or i > 0:
                yield from more_ids(self._model, text, parse_special=False)
            else:
                yield from self._model.tokenize(text, add_special=False, parse_special=False)


def _marked(text: str, marks: dict[str, str]) -> str:
    """`text` with the mark of each name after the first character of every place where it stands, also overlapping."""
    if not marks:
        return text
    names = "|".join(re.escape(name) for name in sorted(marks, key=len, reverse=True))
    places = {found.start() + 1: marks[found[1]] for found in re.finditer(f"(?=({names}))", text)}
    return "".join(places.get(i, "") + character for i, character in enumerate(text))


def text_ids(model: Tokenizer, text: str) -> list[int]:
    """Ids of a whole text, control tokens included. One that writes BOS itself does not get another one."""
    has_bos = bool(model.bos_text) and text.startswith(model.bos_text)
    return model.tokenize(text, add_special=not has_bos, parse_special=True)


def more_ids(model: Tokenizer, text: str, *, parse_special: bool) -> list[int]:
    """Ids of a text that follows another one.

    Some tokenizers (SPM) put a space before whatever they are given. Given after a line end, which is then taken away
    again, the text gets none.
    """
    before = model.tokenize("\n", add_special=False, parse_special=parse_special)
    ids = model.tokenize("\n" + text, add_special=False, parse_special=parse_special)
    if ids[: len(before)] == before:
        return ids[len(before) :]
    return model.tokenize(text, add_special=False, parse_special=parse_special)
