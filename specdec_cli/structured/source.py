"""What the user wants the text to keep to, as given."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gbnf", "json-schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The text of a grammar and the language that it is written in."""

    kind: Kind
    text: str
