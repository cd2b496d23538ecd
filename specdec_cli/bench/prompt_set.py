"""Benchmark prompts by kind of text. The shipped ones are in bench_prompts.jsonl."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.untrusted_files import parse_json, read_file, reason

SHIPPED = Path(__file__).parent / "bench_prompts.jsonl"
OWN_KIND = "own"
_LARGEST_FILE = 64 << 20


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """What a person says: one message, or several turns of a chat of which the last one is measured."""

    kind: str
    turns: tuple[str, ...]


def read_prompts(file: Path) -> list[BenchPrompt]:
    """Prompts from a file: JSON lines with `prompt` or `turns` (and `kind`), or one plain text. Raises UsageError."""
    try:
        text = read_file(file, _LARGEST_FILE).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"Cannot read {file}: {why}.", hint="Check the path of --prompts.") from error
    if file.suffix.lower() == ".jsonl":
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        prompts = [_prompt(line, f"{file}, line {n}") for n, line in lines]
    else:
        prompts = [BenchPrompt(OWN_KIND, (text.strip(),))] if text.strip() else []
    if not prompts:
        raise UsageError(f"{file} has no prompts.", hint="Give a text file, or JSON lines with `kind` and `prompt`.")
    return prompts


def choose(prompts: Iterable[BenchPrompt], kinds: Sequence[str]) -> list[BenchPrompt]:
    """The prompts of these kinds, or of all without any. Raises UsageError for an unknown kind."""
    by_kind: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    unknown = [kind for kind in kinds if kind not in by_kind]
    if unknown:
        raise UsageError(
            f"There are no prompts of kind {unknown[0]!r}.", hint=f"Use one or more of {', '.join(by_kind)}."
        )
    return [prompt for kind in kinds or by_kind for prompt in by_kind[kind]]


def _prompt(line: str, where: str) -> BenchPrompt:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise UsageError(
            f"Cannot read {where}: {reason(error)}.", hint='Write {"kind": "...", "prompt": "..."}.'
        ) from error
    turns = _turns(data) if isinstance(data, dict) else ()
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f"{where} has no prompt.", hint='Write {"kind": "...", "prompt": "..."}.')
    return BenchPrompt(str(data.get("kind", OWN_KIND)), tuple(turns))


def _turns(data: Mapping[str, Any]) -> Sequence[Any]:
    turns = data.get("turns", [data.get("prompt")])
    return turns if isinstance(turns, list) else ()
