"""Reading the fields of a JSON object: each is checked for its type, and null counts as left out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_cli.serve.api_error import ApiError, invalid

_LARGEST = 2**31 - 1


class Fields:
    """The body of a request. Every method raises ApiError (400) for a value of another type."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ApiError(400, "The body must be a JSON object.")
        self._body: Mapping[str, Any] = body

    def get(self, name: str) -> Any:
        """The value as it is; None if it is left out."""
        return self._body.get(name)

    def first(self, *names: str) -> str:
        """The first of these names that is given, or the last one."""
        return next((name for name in names if self.get(name) is not None), names[-1])

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise invalid(name, "a number")
        return float(value)

    def whole(self, name: str, least: int = 0, most: int = _LARGEST) -> int | None:
        """A whole number from `least` to `most`."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise invalid(name, f"a whole number from {least} to {most:,}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(name, "a string")
        return value

    def table(self, name: str) -> Mapping[str, Any] | None:
        """An object."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise invalid(name, "an object")
        return value

    def items(self, name: str) -> Sequence[Any] | None:
        """A list."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise invalid(name, "a list")
        return value

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A string or a list of at most `most` strings; empty ones are dropped."""
        value = self.get(name)
        found = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found) or len(found) > most:
            raise invalid(name, f"a string or a list of at most {most} strings")
        return tuple(one for one in found if one)
