"""Random command lines: none ends by a signal, with a traceback or not at all, and none changes a model file.

    python -m scripts.checks.command_lines [-n 200] [--seed 0] [--only 17,23] [--command run] [--patience 10]

The options are read from the command line's own definition, so a new one is tried without a change here. Each line
names a tiny planted model (tests/cli.py) and up to four options. In half of the lines their values are usual, so that
they meet inside a run; in the others they are at an edge: the ends of a range and one beyond, 0, -1, 2^31, 2^64, nan,
inf, empty and very long texts, control characters, folders, files that are missing, empty, no model, or a model. Line i
depends on seed and i alone; `--only` repeats single lines.

Prints what went wrong, and counts; ends with 1 if anything did. About a second a line; a line counts as hanging after
`--patience` seconds, which a busy machine needs more of.
"""

import argparse
import hashlib
import inspect
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from specdec_cli.app import app
from tests.cli import CALM, COMMAND, Models

KILL_SECONDS = 60.0
DOCUMENTED = {*range(11), *range(20, 33), 130, 143}
"""Exit codes, see the README."""
MODELS = ("ring", "words", "ends", "chat", "bytes", "wide", "no_bos", "mamba", "truncated")
DRAFTS = ("draft", "ring_draft", "padded", "renamed_marker", "other_words", "mamba", "truncated", "ring")
PROMPTS = ("a b c", "a", "", " ", "\n", "é漢😀", "\x1b[31m", "</s><s>", "a b " * 300, "--", "-1", "\ufeff", "{{ 1 }}")
INTEGERS = (-1, 0, 1, 2, 3, 7, 16, 255, 4096, 2**31 - 1, 2**31, 2**63, 2**64 - 1, 2**64, 10**30)
LONG, LARGE = "9" * 5000, "9" * 400
"""More digits than Python reads as an integer, and than a float holds."""
NUMBERS = (-1, -1e-9, 0, 1e-30, 1e-9, 0.5, 0.999, 1, 1.5, 2, 100, 1e30, 1e308, "inf", "-inf", "nan")
USUAL: dict[type, tuple[float, ...]] = {int: (1, 2, 4, 8, 32, 64), float: (0.1, 0.5, 0.9, 1)}
TEXTS = (
    "",
    " ",
    "x",
    "auto",
    "all",
    "none",
    "0",
    "-1",
    "1",
    "4",
    "1,2",
    "0,0",
    "cpu",
    "\x1b]0;x\x07",
    "é" * 3000,
    "a=b",
)
OUTPUTS = ("jsonl", "log", "prompt_cache", "ngram_store")
GRAMMARS = (
    'root ::= " a" " b"',
    "root ::= root",
    "root ::= [a-z",
    "",
    "\ufeff",
    "x",
    '{"type": "integer"}',
    "[" * 9999,
)
WORDS = {
    "draft": ("ngram", "none", "lookahead", "mtp", "model", "ngram+model", "mixed"),
    "kv": ("f16", "q8_0", "q4_0", "f32", "q5_1", "iq4_nl", "bf16"),
    "logit_bias": ("5+1", "5-1", "5+nan", "-1+1", "99999+1", "5+1e39", f"5+{LARGE}", f"{LONG}+1", "²+1", "5=1", "5"),
    "device": ("cpu", "cpu", "none", "x"),
    "rpc": ("localhost:1", "x:y", "127.0.0.1", ":0", "[::1]:99999"),
    "k": ("auto", "0", "1", "4", "16", "511", "512", "99999999999999999999", LONG, "²", "-1", "1.5"),
    "regex": ("[ab ]+", "a|b", "(", "a{1,100000}", "^[[:alpha:]]+$", "(a+)+b", "\\p{L}*", ""),
    "tensor_split": ("1", "1,1", "0", "-1,2", "nan", "inf,1", "," * 99, "1," * 99 + "1"),
    "ngl": ("auto", "all", "0", "1", "-1", "99999999999999999999", LONG, "²"),
    "ram": ("8G", "0", f"{LARGE}G", f"{LONG}T", "٣G", "1e300"),
    "vram": ("8G", "0", f"{LARGE}G", f"{LONG}T", "٣G", "1e300"),
}
"""By the beginning of an option's name: texts that mean something there, or nearly do."""


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, and what is piped into it."""

    arguments: tuple[str, ...]
    stdin: str

    def __str__(self) -> str:
        return shlex.join(("specdec", *(a if len(a) < 200 else f"{a[:20]}...({len(a)})" for a in self.arguments)))


@dataclass(frozen=True, slots=True)
class Option:
    """As the command line has it. `kind` is bool, int, float, Path or str, `choices` are those of a Literal."""

    name: str
    spellings: tuple[str, ...]
    kind: type
    choices: tuple[str, ...]
    is_multiple: bool
    ends: tuple[float, ...]


def options_of(command: str) -> list[Option]:
    """Every option but --help, from typer's command and the function's signature."""
    group: Any = typer.main.get_command(app)
    callback = next(
        c.callback for c in app.registered_commands if command in (c.name, getattr(c.callback, "__name__", ""))
    )
    assert callback is not None, command
    signature = inspect.signature(callback, eval_str=True)
    found = []
    for option in group.commands[command].params:
        if option.param_type_name != "option" or option.name not in signature.parameters:
            continue
        kind, choices, is_multiple = _kind(signature.parameters[option.name].annotation)
        ends = tuple(end for end in (option.min, option.max) if end is not None)
        spellings = (*option.opts, *option.secondary_opts)
        found.append(Option(option.name, spellings, kind, choices, is_multiple, ends))
    return found


def _kind(annotation: Any) -> tuple[type, tuple[str, ...], bool]:
    """What is left of an annotation without Annotated, None and list."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return str, tuple(map(str, arguments)), False
    if origin is list:
        return (*_kind(arguments[0])[:2], True)
    if origin in (Union, UnionType):
        return _kind(next(a for a in arguments if a is not type(None)))
    return annotation, (), False


class Lines:
    """Makes lines for one command. Files that a value may name lie in `folder`."""

    def __init__(self, command: str, models: Models, folder: Path) -> None:
        self._command = command
        self._options = options_of(command)
        self._models = [str(getattr(models, name)) for name in MODELS]
        self._drafts = [str(getattr(models, name)) for name in DRAFTS]
        self._new = str(folder / "new")
        (folder / "empty").touch()
        (folder / "binary").write_bytes(bytes(range(256)))
        places = (folder / name for name in (".", "new", "missing/file", "empty", "binary"))
        self._places = ["", "x" * 300, "/dev/null", *map(str, places)]
        self._texts = [str(folder / f"text{i}") for i in range(len(GRAMMARS))]
        for path, text in zip(self._texts, GRAMMARS, strict=True):
            Path(path).write_text(text, encoding="utf-8")

    def line(self, draw: random.Random) -> Line:
        is_wild = draw.random() < 0.5
        arguments = [self._command, draw.choice(self._models if is_wild else self._models[:6])]
        if draw.random() < 0.9:
            arguments.append(draw.choice(PROMPTS if is_wild and draw.random() < 0.5 else PROMPTS[:1]))
        for option in draw.sample(self._options, draw.randint(1, 4)):
            arguments += self._given(option, draw, is_wild)
        if "-n" not in arguments:
            arguments += ["-n", "16"]
        if "--ctx" not in arguments:  # some of the models write until there is no more room
            arguments += ["--ctx", "256"]
        return Line(tuple(arguments), draw.choice(("", "a b", "\ufeff", "\0")))

    def _given(self, option: Option, draw: random.Random, is_wild: bool) -> list[str]:
        spelling = draw.choice(option.spellings)
        if option.kind is bool:
            return [spelling]
        times = draw.randint(1, 3) if option.is_multiple else 1
        value = self._at_an_edge if is_wild else self._usual
        return [part for _ in range(times) for part in (spelling, value(option, draw))]

    def _usual(self, option: Option, draw: random.Random) -> str:
        """So that half of the lines get past the first refusal."""
        if option.name == "draft":
            return draw.choice((*self._drafts[:2], *WORDS["draft"][:3]))
        if option.kind in USUAL:
            return str(draw.choice(USUAL[option.kind]))
        if option.kind is Path:
            return self._new if option.name in OUTPUTS else self._texts[0]
        meant = [texts[:2] for start, texts in WORDS.items() if option.name.startswith(start)]
        return draw.choice(option.choices or (meant[0] if meant else ("x", "1", "a")))

    def _at_an_edge(self, option: Option, draw: random.Random) -> str:
        if option.name == "draft" and draw.random() < 0.6:
            return draw.choice(self._drafts)
        if option.choices:
            return draw.choice((*option.choices, "x", ""))
        if option.kind is int:
            return str(draw.choice((*INTEGERS, *(int(end) + by for end in option.ends for by in (-1, 0, 1)))))
        if option.kind is float:
            return str(draw.choice((*NUMBERS, *(end + by for end in option.ends for by in (-1e-9, 0, 1e-9)))))
        meant = next((texts for start, texts in WORDS.items() if option.name.startswith(start)), ())
        if meant and draw.random() < 0.7:
            return draw.choice(meant)
        return draw.choice((*self._places, *self._texts, self._models[0]) if option.kind is Path else TEXTS)


class Check:
    """Runs lines and judges how they end."""

    def __init__(self, models: Models, folder: Path, patience: float) -> None:
        self._folder = folder
        self._patience = patience
        self._models = sorted(models.folder.glob("*.gguf"))
        self._before = self._hashes()
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0

    def _hashes(self) -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in self._models]

    def faults(self, line: Line) -> list[str]:
        """What is wrong with the way in which a line ends."""
        environment = {**os.environ, **CALM, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(self._folder / "cache")}
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*COMMAND, *line.arguments],
                input=line.stdin.encode(),
                capture_output=True,
                env=environment,
                cwd=self._folder,
                timeout=KILL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.counts["hanging"] += 1
            return [f"does not end within {KILL_SECONDS:.0f} s"]
        seconds = time.monotonic() - began
        self.slowest = max(self.slowest, seconds)
        self.counts[f"exit code {done.returncode}"] += 1
        error = done.stderr.decode("utf-8", "replace")
        found = [f"takes {seconds:.1f} s"] if seconds > self._patience else []
        if done.returncode not in DOCUMENTED:
            found.append(f"ends with {done.returncode}: {error[-300:]!r}")
        if "Traceback" in error or b"Traceback" in done.stdout:
            found.append(f"traceback: {error[-300:]!r}")
        if done.returncode in DOCUMENTED - {0} and "Error" not in error:
            found.append(f"ends with {done.returncode} and says only {error[-200:]!r}")
        if self._hashes() != self._before:
            found.append("a model file is not what it was")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=lambda text: [int(i) for i in text.split(",")])
    parser.add_argument("--command", default="run")
    parser.add_argument("--patience", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specdec-lines-") as temporary:
        folder = Path(temporary) / "work"
        folder.mkdir()
        models = Models(Path(temporary))
        lines = Lines(options.command, models, folder)
        check = Check(models, folder, options.patience)
        n_wrong = 0
        for i in options.only or range(options.n):
            line = lines.line(random.Random(f"{options.seed}-{i}"))
            faults = check.faults(line)
            n_wrong += bool(faults)
            for fault in faults:
                print(f"WRONG line {i}: {line}\n      {fault}", flush=True)
            if options.only and not faults:
                print(f"line {i}: {line}: well")
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(check.counts.items()))
    print(f"{sum(check.counts.values())} lines: {counts}; slowest {check.slowest:.1f} s; {n_wrong} wrong")
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
