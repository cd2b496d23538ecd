"""Model output is data: what a terminal would obey is shown instead."""

_LINE_SEPARATORS = (0x2028, 0x2029)
_BIDI_CONTROLS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_C0 = tuple(c for c in range(0x20) if chr(c) not in "\n\t")
_C1 = tuple(range(0x80, 0xA0))
_SURROGATES = range(0xD800, 0xE000)

_VISIBLE: dict[int, str] = {
    **{c: chr(0x2400 + c) for c in _C0},
    0x7F: "\u2421",
    **dict.fromkeys((*_C1, *_BIDI_CONTROLS, *_LINE_SEPARATORS, *_SURROGATES), "\N{REPLACEMENT CHARACTER}"),
}
_ASCII = dict.fromkeys(_VISIBLE, "?")


def printable(text: str, ascii_only: bool = False) -> str:
    r"""`text` with every control replaced by a visible stand-in; \n and \t stay, \r\n becomes \n.

    With `ascii_only`, everything outside ASCII becomes "?".
    """
    text = text.replace("\r\n", "\n")
    if not ascii_only:
        return text.translate(_VISIBLE)
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


class Cleaner:
    r"""`printable` for text that comes in pieces.

    A \r at the end of a piece waits for the next piece, which tells whether it was half of \r\n.
    """

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._ascii_only = ascii_only
        self._held = ""

    def push(self, text: str) -> str:
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        return printable(text.removesuffix(self._held), self._ascii_only)

    def close(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return printable(held, self._ascii_only)
