"""Instructions to let a model write text of every kind, for the training of drafts and heads.

Templates times topics, drawn with a seed, from instructions.yaml: explanations, stories, talk, arithmetic,
records, code, edits of given code, and tasks on a given passage. None of the bench's own prompts is among them.
"""

import functools
import random
from pathlib import Path
from typing import Any

import yaml

_WEIGHTS = {"plain": 26, "story": 14, "talk": 10, "math": 10, "record": 6, "code": 14, "edit": 8, "passage": 12}


def instruction(rng: random.Random) -> str:
    """One message of a user."""
    (kind,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    if kind == "code":
        return _code(rng)
    text = _fill(rng, rng.choice(_parts()["templates"][kind]))
    if kind == "edit":
        return f"{text}\n\n```\n{rng.choice(_parts()['snippets'])}\n```"
    if kind == "passage":
        sentences = rng.sample(_parts()["templates"]["sentence"], rng.randint(3, 7))
        return f"{text}\n\n{' '.join(_fill(rng, sentence) for sentence in sentences)}"
    return text


@functools.cache
def _parts() -> dict[str, Any]:
    parts: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return parts


def _fill(rng: random.Random, template: str) -> str:
    words = _parts()["words"]
    values = {name: rng.choice(choices) for name, choices in words.items()}
    values["topic"], values["topic2"] = rng.sample(words["topic"], 2)
    values["person"], values["person2"] = rng.sample(words["person"], 2)
    numbers = {"hour": (7, 11), "year": (1790, 2020), "n": (12, 480), "small": (3, 9), "small2": (2, 8)}
    return template.format(**values, **{name: rng.randint(*limits) for name, limits in numbers.items()})


def _code(rng: random.Random) -> str:
    words = _parts()["words"]
    language, task = rng.choice(words["language"]), rng.choice(words["function"])
    ending = rng.choice(("", " Add comments.", " Give only the code.", " Explain it briefly.", " Show a call of it."))
    return rng.choice(
        (
            f"Write a {language} function that {task}.{ending}",
            f"How do I write code in {language} that {task}?{ending}",
            f"Write a complete {language} program that {task} and prints the result.{ending}",
        )
    )
