"""Small files of another hand by the thousand: each is read, left out or refused in words, and within seconds.

    python -m scripts.checks.hostile_files [-n 1000] [--seed 0] [--only profile:17] [--patience 10]

Kinds: presets (YAML), traces, benchmarks, profiles, learned costs, prompt caches, n-gram stores, journals of
`draft make`. Every file begins as a good one. Then values are replaced by wrong ones (huge and negative numbers, NaN,
deep lists, control characters, lone surrogates), keys dropped or given twice, bytes flipped, cut and inserted; or a
folder, a FIFO, a device or a link lies in its place. File i of a kind depends on seed and i alone;
`--only` repeats one.

Prints what ended by an exception that is not meant for users, took longer than `--patience` seconds, or was believed
beyond what can be measured; and counts by kind. Ends with 1 if anything did.
"""

import argparse
import copy
import json
import math
import os
import random
import signal
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from specdec_cli.bench import compare
from specdec_cli.bench.replay import curve_of, read_trace, what_if
from specdec_cli.drafters.ngram.store import StoreFile
from specdec_cli.errors import SpecdecError
from specdec_cli.generation import prompt_cache
from specdec_cli.lengths.learned import LearnedKey, load_learned
from specdec_cli.make_draft.candidates import Journal, expected
from specdec_cli.planning.profile import ProfileKey, load_profile
from specdec_cli.presets.schema import read_preset
from specdec_cli.settings import ContextSettings, ModelSettings

N_VOCAB = 1000
DEEP: Any = json.loads("[" * 100 + "]" * 100)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 511, 10**9, 2**64, 10**30, -(10**30), 1e30, 1e-30, -0.0, 1e308),
    *(math.nan, math.inf, -math.inf, "", "x", "1", "\x1b[31m", "\ud800", "\u2028", "a" * 100_000, "../../etc/passwd"),
    *([], {}, [[]], [None], ["1"], DEEP, {"a": DEEP}, {"": 1}, [1] * 20_000, [True], [math.nan]),
)
BYTES = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\xe2\x80\xa8", b"\xc2\x85", b"[" * 100_000, b'{"a":' * 5_000),
    *(b"9" * 5_000, b"NaN", b"1e999", b"&a ", b"*a ", b"!!python/object:os.system ", b"<<: ", b"---\n", b"? ", b"\t"),
    *(b"2024-99-99", b"0x" + b"f" * 5_000, b"1:" * 3_000 + b"1", b"'", b'"', b"#" * 70_000, b"%TAG ! x:\n", b"| "),
)

PAIR = ProfileKey(("t.gguf", 100), ("d.gguf", 10), "cpu, 2 cores", (), "1.0")
LEARNED = LearnedKey(PAIR, None, (ModelSettings(Path("t")), None), (ContextSettings(), ContextSettings()))
CACHE_KEY = {"model": "t.gguf", "weights": "0"}

PRESET = b"""description: a pair
licence: MIT
target: {hub: {repo: a/b, file: c.gguf, revision: main, bytes: 5}}
draft: {path: d.gguf}
k: 4
p_min: 0.5
sampling: {temperature: 0.7, top_k: 20}
note: "a note"
reports: [{hardware: cpu, source: here, acceptance: 0.5, k: 3}]
"""
ROUND = {"type": "round", "drafted": [1, 2], "n_accepted": 1, "own": 5, "draft_seconds": 0.1, "verify_seconds": 0.2,
         "seconds": 0.4, "k": 2, "spans": [["a", "draft"]]}  # fmt: skip
TRACE: list[Any] = [{"type": "header", "settings": {"auto": False}}, ROUND, ROUND, {**ROUND, "drafted": [1]}, ROUND]
CELL = {"kind": "qa", "temperature": 0.0, "drafter": "ngram", "k": 2, "p_min": 0.0, "speedup": 1.5,
        "speedup_range": [1.4, 1.6], "tried_per_position": [4, 2], "kept_per_position": [2, 1],
        "draft_seconds_per_token": None, "n_tokens": 9, "n_passes": 6}  # fmt: skip
CURVE = {"context": 9, "target_seconds_by_width": {"1": 1.0, "3": 1.5}, "draft_seconds_per_token": 0.2}
BENCHMARK = {"machine": {"cpu": "one"}, "versions": {"specdec": "1"}, "files": [{"role": "target", "name": "t.gguf"}],
             "cells": [CELL], "cost_curve": [CURVE]}  # fmt: skip
PROFILE = {"profile": {"drafter": "model", "k": 3, "p_min": 0.5, "threads": 1, "speedup": 1.25, "date": "2026-01-01",
                       "cache_type": "q8_0", "cache_type_draft": None, "flash_attention": "on"}}  # fmt: skip
CHANCES = {"hits": [1.0] * 11, "weights": [2.0] * 11, "means": [0.5] * 3, "n_seen": 9}
COSTS = {"passes": {"1": 0.01, "2": 0.015, "4": 0.02}, "back_each": 0.0, "drafting": {"model": [0.001, 0.0005]},
         "chances": {"model": CHANCES}}  # fmt: skip
FIGURES = {"n_bytes": 5, "agreement": 0.5, "chances": [[0.5], [0.5, 0.4]], "draft_seconds": 0.1,
           "target_seconds": [1.0, 1.5, 2.0]}  # fmt: skip
JOURNAL = {"texts": [{"kind": "qa", "prompt": [1, 2], "answer": [3]}], "angles": [[0.0, 0.1]],
           "candidates": {"a": FIGURES}}  # fmt: skip


class Hung(BaseException):
    """Raised by the alarm: no `except Exception` of the package may take it."""


class Believed(Exception):
    """A value was taken that nothing can have measured."""


# --- good files and their readers --------------------------------------------------------------------------


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_lines(values: Any) -> bytes:
    return b"".join(as_json(value) + b"\n" for value in (values if isinstance(values, list) else [values]))


def as_store(values: Any) -> bytes:
    """With a checksum that is right: a wrong one would hide everything behind it."""
    rest = as_lines(values)
    header = {"format": "specdec n-grams 1", "tokenizer": "t", "crc32": zlib.crc32(rest)}
    return as_json(header) + b"\n" + rest


def as_cache(_: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        prompt_cache.store(path, CACHE_KEY, [1, 2, 3], np.arange(64, dtype=np.uint8))
        return path.read_bytes()


def believe(is_right: bool, what: object) -> None:
    if not is_right:
        raise Believed(what)


def use_trace(path: Path) -> bool:
    found = what_if(read_trace(path), range(1, 9), None)
    believe(all(math.isfinite(one.speedup) and one.speedup > 0 for one in found), found)
    return True


def use_benchmark(path: Path) -> bool:
    document = compare.read_document(path)
    compare.side_by_side([document])
    compare.differences(document, BENCHMARK)
    curve_of(document)
    return True


def use_profile(path: Path) -> bool:
    os.environ["SPECDEC_CONFIG"] = str(path.parent.parent)
    found = load_profile(PAIR)
    if found is not None:
        believe(found.k == "auto" or 0 <= found.k < 512, found)
        believe(found.threads is None or found.threads <= 1024, found)
        believe(len(str(found)) < 500, found)
    return found is not None


def use_learned(path: Path) -> bool:
    os.environ["SPECDEC_CACHE"] = str(path.parent.parent)
    found = load_learned(LEARNED, longest=16)
    if found is not None:
        believe(all(0 < seconds < 1e6 for seconds in found.costs.passes[1:]), found.costs.passes)
        believe(all(0 < chances.of(0.5) < 1 for chances in found.chances.values()), found.chances)
    return found is not None


def use_store(path: Path) -> bool:
    notes: list[str] = []
    store = StoreFile(path, "t", notes.append, n_vocab=N_VOCAB).load()
    drafted = [token for token, _, _ in store.continuation([1, 2, 3])]
    believe(all(0 <= token < N_VOCAB for token in drafted), drafted)
    return not notes


def use_cache(path: Path) -> bool:
    try:
        tokens, state = prompt_cache.fetch(path, CACHE_KEY, 100)
    except (prompt_cache.Unusable, OSError):
        return False
    believe((tokens, state.tolist()) == ([1, 2, 3], list(range(64))), tokens)
    return True


def use_journal(path: Path) -> bool:
    journal = Journal.read(path.parent)
    for figures in journal.candidates.values():
        believe(math.isfinite(expected(figures, [1.0, 1.5, 2.0]).speed), figures)
    believe(all(type(token) is int for text in journal.texts for token in (*text.prompt, *text.answer)), journal.texts)
    return bool(journal.candidates)


Kind = tuple[Any, Callable[[Any], bytes], Callable[[Path], bool], str]
KINDS: dict[str, Kind] = {
    "preset": (PRESET, lambda data: data, lambda path: bool(read_preset(path)), "x.yaml"),
    "trace": (TRACE, as_lines, use_trace, "t.jsonl"),
    "benchmark": (BENCHMARK, as_json, use_benchmark, "b.json"),
    "profile": (PROFILE, as_json, use_profile, f"profiles/{PAIR.file.name}"),
    "learned": (COSTS, as_json, use_learned, f"learned/{LEARNED.file.name}"),
    "cache": ({}, as_cache, use_cache, "p.cache"),
    "store": ([[1, 2, 3, 4, 5], [7, 1, 2, 3, 9]], as_store, use_store, "ngrams"),
    "journal": (JOURNAL, as_json, use_journal, "journal.json"),
}

# --- spoiling them -------------------------------------------------------------------------------------------


def places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value, but for what was nested deeply on purpose."""
    if depth > 30:
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key], depth + 1)]]


def spoil_values(value: Any, chance: random.Random) -> Any:
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        found = places(value)
        if not found:
            break
        container, key = chance.choice(found)
        if chance.random() < 0.15:
            del container[key]
        elif isinstance(container, dict) and chance.random() < 0.1:
            container[chance.choice(("", "x", "auto", "1", "-1", "9" * 30, "\x1b"))] = copy.deepcopy(
                chance.choice(VALUES)
            )
        else:
            container[key] = copy.deepcopy(chance.choice(VALUES))
    return value


def spoil_bytes(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        how = chance.randrange(4)
        if how == 0:
            data = data[:at] + chance.choice(BYTES) + data[at:]
        elif how == 1:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif how == 2:
            data = data[:at] + data[at + chance.randrange(40) :]
        else:
            lines = data.splitlines(keepends=True)
            data = b"".join(chance.choice(lines) if chance.random() < 0.2 else line for line in lines)
    return data


def write_8_gb(path: Path) -> None:
    """Of nothing, which takes no room on the disk."""
    path.touch()
    os.truncate(path, 2**33)


def put(path: Path, kind: Kind, chance: random.Random) -> None:
    """A spoilt file, or what is none, in place of a good one."""
    good, written, _, _ = kind
    path.parent.mkdir(parents=True, exist_ok=True)
    how = chance.random()
    if how < 0.05:
        chance.choice((
            os.mkfifo,
            os.mkdir,
            lambda path: os.symlink("/dev/zero", path),
            lambda path: os.symlink(path.name, path),
            write_8_gb,
        ))(path)  # fmt: skip
    elif how < 0.6 and not isinstance(good, bytes) and good:
        path.write_bytes(written(spoil_values(good, chance)))
    else:
        path.write_bytes(spoil_bytes(written(good), chance))


def tried(name: str, i: int, seed: int, patience: float) -> str:
    """What became of file i of a kind: read, refused, or a fault with its words."""
    chance = random.Random(f"{seed} {name} {i}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own" / KINDS[name][3]
        put(path, KINDS[name], chance)
        signal.setitimer(signal.ITIMER_REAL, patience)
        try:
            return "read" if KINDS[name][2](path) else "left out"
        except SpecdecError as error:
            words = f"{error} {error.hint}"
            return "refused" if error.hint and len(words) < 1000 and "Traceback" not in words else f"words: {words}"
        except (Exception, Hung) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1000, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="KIND:NUMBER")
    parser.add_argument("--patience", type=float, default=10.0)
    options = parser.parse_args()

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise Hung("took too long")

    signal.signal(signal.SIGALRM, hung)
    only, _, number = (options.only or "").partition(":")
    counts, faults, longest, began = Counter[tuple[str, str]](), 0, (0.0, ""), time.perf_counter()
    for name in [only] if only else KINDS:
        for i in [int(number)] if number else range(options.n):
            started = time.perf_counter()
            outcome = tried(name, i, options.seed, options.patience)
            longest = max(longest, (time.perf_counter() - started, f"{name}:{i}"))
            if outcome not in ("read", "left out", "refused"):
                print(f"{name}:{i}: {outcome}")
                outcome, faults = "FAULT", faults + 1
            counts[name, outcome] += 1
        shown = ", ".join(f"{n} {outcome}" for (kind, outcome), n in sorted(counts.items()) if kind == name)
        print(f"{name}: {shown}", flush=True)
    total = sum(counts.values())
    seconds = time.perf_counter() - began
    print(f"{total} files, {faults} faults, {seconds:.0f} s; the longest {longest[0]:.2f} s ({longest[1]})")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
