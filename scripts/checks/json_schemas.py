"""Is a JSON Schema kept or refused? Every schema of the JSON-Schema-Test-Suite, by texts drawn at random.

    pip download --no-deps --no-binary :all: jsonschema && tar xzf jsonschema-*.tar.gz
    python -m scripts.checks.json_schemas jsonschema-*/json/tests [-n 20] [--drafts draft7,draft2020-12]

A schema is refused in words, or each of the texts must be valid by `jsonschema`'s validator of its draft. Numbers are
compared as decimals (`multipleOf` of 0.01 is no business of binary fractions); patterns that Python's `re` does not
know (`\\p{L}`, `\\cJ`) cannot be judged, and are counted. Ends with 1 if a schema was kept wrongly.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema import validators

from specdec_cli.errors import DecodeFailed, UsageError
from tests.random_texts import Texts

VALIDATORS: dict[str, Any] = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}


class NotJudged(Exception):
    """The validator cannot read the schema."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("--drafts", default=",".join(VALIDATORS))
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for draft in options.drafts.split(","):
        counts: Counter[str] = Counter()
        for name, schema in _schemas(options.suite / draft):
            verdict, why = judged(schema, VALIDATORS[draft], options.n)
            counts[verdict] += 1
            if verdict in ("wrong", "no text"):
                print(f"{verdict}: {draft} {name}: {json.dumps(schema)[:300]}: {why[:200]}", flush=True)
        total += counts
        print(f"{draft}: {_words(counts)}", flush=True)
    print(f"all: {_words(total)}")
    raise SystemExit(1 if total["wrong"] else 0)


def _schemas(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.stem}: {case['description']}", case["schema"]


def _words(counts: Counter[str]) -> str:
    return f"{counts.total()} schemas: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))


def judged(schema: Any, validator: Any, n: int) -> tuple[str, str]:
    """kept, refused, wrong, not judged, or no text (none that ended), and why."""
    try:
        texts = Texts(json.dumps(schema))
    except UsageError as error:
        return "refused", str(error)
    if texts.refusal:
        return "refused", texts.refusal
    checker = decimal_validator(validator)(schema)
    n_ended = 0
    for seed in range(n):
        try:
            text = texts.draw(seed)
            if text is None:
                continue
            n_ended += 1
            if not checker.is_valid(json.loads(text.decode())):
                return "wrong", text.decode()
        except NotJudged as error:
            return "not judged", str(error)
        except (DecodeFailed, ValueError) as error:
            return "wrong", f"{error}"
    return ("kept", "") if n_ended else ("no text", "")


def decimal_validator(validator: Any) -> Any:
    """`validator` with exact multiples, and with a word of its own for patterns that it cannot read."""

    def multiple_of(_: Any, factor: Any, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
        if isinstance(instance, float) and math.isinf(instance):
            raise NotJudged("a number beyond all floating-point numbers")
        if is_number and Fraction(str(instance)) % Fraction(str(factor)):
            yield jsonschema.ValidationError(f"{instance} is no multiple of {factor}")

    def readable(keyword: str) -> Any:
        ours = validator.VALIDATORS[keyword]

        def check(*arguments: Any) -> Iterator[jsonschema.ValidationError]:
            try:
                yield from ours(*arguments)
            except re.error as error:
                raise NotJudged(str(error)) from error

        return check

    checks = {"multipleOf": multiple_of, **{key: readable(key) for key in ("pattern", "patternProperties")}}
    return validators.extend(validator, checks)


if __name__ == "__main__":
    main()
