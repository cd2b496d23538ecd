"""Regular expressions of JSON Schema (ECMA-262) written in the syntax of Rust's regex crate, which llguidance reads.

The two look alike and differ in what they mean: `[[a]` and `[a&&b]` are sets within sets in Rust, `(?i)` is a flag,
`\\a` a bell. So a pattern is read as ECMA-262 has it and written anew, every character by its code point. Where
ECMA-262 and Python's `re` disagree on a class (`\\d`, `\\w`, `\\s`, the full stop), the result matches only what both
do: a text that keeps to the pattern is accepted by a validator of either kind.
"""

import re
from collections.abc import Callable

_SPACE = r"\u{9}-\u{d}\u{20}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"
_ANY_SPACE = _SPACE + r"\u{1c}-\u{1f}\u{85}\u{180e}\u{feff}"
_NARROW = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": _SPACE,
    "D": r"[^\p{Nd}]",
    "W": r"[^\p{L}\p{N}_]",
    "S": f"[^{_ANY_SPACE}]",
}
"""Class escapes as items of a class: the characters that belong to them by both readings."""
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}_",
    "s": _ANY_SPACE,
    "D": "[^0-9]",
    "W": "[^0-9A-Za-z_]",
    "S": f"[^{_SPACE}]",
}
"""The characters that belong to them by one reading at least: what a negated class has to leave out."""
_FULL_STOP = r"[^\u{a}\u{d}\u{2028}\u{2029}]"
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_QUANTIFIER = re.compile(r"([*+?]|\{([0-9]+)(,([0-9]*))?\})\??")
_MOST_REPEATS = 100_000
_LONGEST = 10_000
"""Characters of a pattern."""


class PatternError(ValueError):
    """Why a pattern cannot be kept, as the end of a sentence."""


def rust_pattern(pattern: str) -> str:
    """The pattern in Rust's syntax. Raises PatternError for what is no ECMA-262, or what no automaton can keep."""
    if len(pattern) > _LONGEST:
        raise PatternError(f"it is longer than {_LONGEST:,} characters")
    return _Reader(pattern).read()


class _Reader:
    """Reads a pattern once, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        written: list[str] = []
        is_atom = False  # whether a quantifier may follow
        while self._at < len(self._pattern):
            quantifier = self._quantifier()
            if quantifier:
                if not is_atom:
                    raise PatternError(f"nothing to repeat before {quantifier}")
                written.append(quantifier)
                is_atom = False
                continue
            part, is_atom = self._part()
            written.append(part)
        if self._depth:
            raise PatternError("a group is not closed")
        return "".join(written)

    def _quantifier(self) -> str:
        """What repeats the atom before. Whether it is greedy changes no match of the whole."""
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return ""
        self._at = found.end()
        counts = [int(count) for count in (found[2], found[4]) if count]
        if any(count > _MOST_REPEATS for count in counts) or counts != sorted(counts):
            raise PatternError(f"{found[1]} is out of order, or above {_MOST_REPEATS:,}")
        return found[1]

    def _part(self) -> tuple[str, bool]:
        """The next atom, bar, bracket or anchor, and whether it can be repeated."""
        character = self._next()
        if character == "(":
            return self._opening(), False
        if character == ")":
            if self._depth == 0:
                raise PatternError("unmatched closing parenthesis")
            self._depth -= 1
            return ")", True
        if character in "^$|":
            return character, False
        if character == "[":
            return self._class(), True
        if character == ".":
            return _FULL_STOP, True
        if character == "{" and self._pattern[self._at : self._at + 1] == ",":
            raise PatternError("{,n} means different things to different validators; write {0,n}")
        if character != "\\":
            return _code(ord(character)), True
        if self._pattern[self._at : self._at + 1] in ("b", "B"):
            raise PatternError(r"word boundaries (\b) are not supported")
        return self._escape(_NARROW, lambda items: f"[{items}]"), True

    def _next(self) -> str:
        if self._at == len(self._pattern):
            raise PatternError("it ends unexpectedly")
        self._at += 1
        return self._pattern[self._at - 1]

    def _opening(self) -> str:
        self._depth += 1
        if found := re.compile(r"\?(:|<[A-Za-z_]\w*>)").match(self._pattern, self._at):
            self._at = found.end()
        elif self._pattern.startswith("?", self._at):
            kind = self._pattern[self._at - 1 : self._at + 2]
            raise PatternError(f"look-around and flags ({kind}) are not supported")
        return "(?:"

    def _class(self) -> str:
        is_negated = self._pattern.startswith("^", self._at)
        self._at += is_negated
        if self._pattern.startswith("]", self._at):
            raise PatternError("[] and [^] mean different things to different validators")
        escapes = _WIDE if is_negated else _NARROW
        items: list[str] = []
        while not self._pattern.startswith("]", self._at):
            first = self._class_atom(escapes)
            is_range = self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)
            if not is_range or len(first) != 1:
                items.append(_code(ord(first)) if len(first) == 1 else first)
                continue
            self._at += 1
            last = self._class_atom(escapes)
            if len(last) != 1:  # a minus before a class escape is a minus
                items += [_code(ord(first)), _code(ord("-")), last]
            elif last < first:
                raise PatternError(f"the range {first}-{last} is out of order")
            else:
                items.append(f"{_code(ord(first))}-{_code(ord(last))}")
        self._at += 1
        return f"[{'^' if is_negated else ''}{''.join(items)}]"

    def _class_atom(self, escapes: dict[str, str]) -> str:
        """One character as it is, or the items of a class escape (never just one character long)."""
        character = self._next()
        if character != "\\":
            return character
        if self._pattern.startswith("b", self._at):
            self._at += 1
            return "\b"
        written = self._escape(escapes, lambda items: items)
        found = re.fullmatch(r"\\u\{([0-9a-f]+)\}", written)
        return chr(int(found[1], 16)) if found else written

    def _escape(self, classes: dict[str, str], wrapped: Callable[[str], str]) -> str:
        """What follows a backslash."""
        character = self._next()
        if character in classes:
            return wrapped(classes[character])
        if character in _CONTROLS:
            return _code(_CONTROLS[character])
        if character == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return _code(0)
        if character == "c" and re.fullmatch("[A-Za-z]", self._pattern[self._at : self._at + 1]):
            return _code(ord(self._next()) % 32)
        if character in "xu":
            return self._by_number(character)
        if character in "pP" and (found := re.compile(r"\{([A-Z][a-z]?)\}").match(self._pattern, self._at)):
            self._at = found.end()
            return f"\\{character}{{{found[1]}}}"
        if character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        return _code(ord(character))

    def _by_number(self, kind: str) -> str:
        digits = {"x": r"([0-9A-Fa-f]{2})", "u": r"(?:([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\})"}[kind]
        found = re.compile(digits).match(self._pattern, self._at)
        if found is None:
            raise PatternError(f"\\{kind} is not followed by a number")
        self._at = found.end()
        code = int(found[found.lastindex or 1], 16)
        low = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self._pattern, self._at)
        if 0xD800 <= code < 0xDC00 and low is not None:
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return _code(code)


def _code(point: int) -> str:
    if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
        raise PatternError("it contains half a surrogate pair, or an invalid character")
    character = chr(point)
    return character if character.isascii() and character.isalnum() else f"\\u{{{point:x}}}"
