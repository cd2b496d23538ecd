"""What the user wants the text to keep to, as given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gbnf", "json-schema", "regex", "lark"]
NAMES: Mapping[Kind, str] = {
    "gbnf": "grammar",
    "json-schema": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
}


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The text of a grammar and the language that it is written in."""

    kind: Kind
    text: str
