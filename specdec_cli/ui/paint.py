"""Styles and small drawings. Everything is Rich segments: no markup is ever read."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from specdec_cli.ui.clean import printable

Line = list[Segment]

PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"
NO_DRAFT = " "


@dataclass(frozen=True, slots=True)
class Palette:
    """How things look on this terminal. `draft` marks accepted draft tokens, as `draft_name` says."""

    utf8: bool
    draft: Style
    draft_name: str
    notice: Style
    off: Style

    @classmethod
    def of(cls, *, color: bool, utf8: bool) -> "Palette":
        if color:
            return cls(
                utf8, Style(color="green"), "green", Style(color="yellow"),
                Style(color="red", bold=True, reverse=True),
            )  # fmt: skip
        return cls(utf8, Style(underline=True), "underlined", DIM, Style(bold=True, reverse=True))

    @property
    def rule(self) -> str:
        return "─" if self.utf8 else "-"

    @property
    def pass_signs(self) -> tuple[str, str, str]:
        """A draft token that was accepted, one that was not, and the target's own."""
        return ("■", "□", "◆") if self.utf8 else ("#", "x", "+")

    def crop(self, text: str, width: int) -> str:
        """`text` in at most `width` characters, with a sign where some are missing."""
        sign = "…" if self.utf8 else "..."
        if len(text) <= width:
            return text
        return text[: max(0, width - len(sign))] + sign[:width]

    def safe(self, content: Line) -> Line:
        """Names and reasons come from files: one line, and nothing that the terminal obeys."""
        one_line = ((text.replace("\n", " ").replace("\t", " "), style) for text, style, _ in content)
        return [Segment(printable(text, ascii_only=not self.utf8), style) for text, style in one_line]

    def bar(self, share: float, width: int) -> str:
        """A horizontal bar, `width` cells long at share 1."""
        if not self.utf8:
            return "#" * round(share * width)
        whole, eighths = divmod(round(share * width * 8), 8)
        return "█" * whole + (EIGHTHS[eighths] if eighths else "")

    def sparkline(self, shares: Sequence[float | None]) -> str:
        """One character per share; a gap where there is none."""
        levels = LEVELS if self.utf8 else ASCII_LEVELS
        top = len(levels) - 1
        return "".join(NO_DRAFT if s is None else levels[round(s * top)] for s in shares)


def line(*parts: str | tuple[str, Style]) -> Line:
    return [Segment(part, PLAIN) if isinstance(part, str) else Segment(*part) for part in parts]


def fit(content: Line, width: int) -> Line:
    """`content` cut to `width` cells."""
    return Segment.adjust_line_length(content, width, pad=False)


def pad(content: Line, width: int) -> Line:
    """`content` at exactly `width` cells."""
    return Segment.adjust_line_length(content, width, pad=True)
