"""Model files whose headers pass every check and are wrong all the same, run by `specdec run`.

    python -m scripts.checks.mutated_files [-n 300] [--seed 0] [--trust] [--keep FOLDER]

Tiny models of seven architectures, and trained heads, get a wrong number or two: under a key of the architecture, in a
tensor's shape or format, or in any of the places where lengths and types stand. Files that `specdec check` would refuse
from the header alone are left out. The others are run as the target, or as the draft of a good target, for four tokens.

Prints how many ended well, were refused in words, ended with a traceback, by a signal, or not within the limit; ends
with 1 if any of the last three occurred. With --trust there is no trial in a process of its own: what files do to
llama.cpp. Files that were not refused properly are kept (--keep FOLDER).
"""

import argparse
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.checks.fuzz_gguf import Seed, seed_of
from specdec_cli import app
from specdec_cli.errors import ModelError
from specdec_cli.generation import pair  # noqa: F401  (loaded before the copies are made)
from specdec_cli.models.gguf import read_gguf
from specdec_cli.models.heads import read_head, refuse_as_target
from tests.cli import Models
from tests.heads import write_dflash, write_eagle3, write_mtp
from tests.hybrids import write_hybrid
from tests.planted import random_chain, write_planted

LIMIT = 10.0
"""Seconds that a run may take on a machine that does nothing else."""
PATIENCE = 60.0
"""Seconds after which it counts as hanging on any machine."""
_SAID = {"crash": "crashed while", "hang": "did not finish"}
FINE = {"ran", "refused in words", *(f"{kind} told in words" for kind in _SAID)}
_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 63, 64, 65, 255, 256, 320, 4096, 65536, 2**31 - 1, 2**31, 2**32 - 1)
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_UINT32, _FLOAT32 = 4, 6
_WIDTHS = {"<B": 1, "<I": 4, "<Q": 8}


@dataclass(frozen=True, slots=True)
class Base:
    """A good file, where numbers stand in its header, and the target to run it with if it is a draft."""

    path: Path
    seed: Seed
    keys: tuple[tuple[int, int], ...]
    target: Path | None = None


def bases(folder: Path) -> list[Base]:
    """Small models of several architectures, and heads for one of them."""
    models, chain = Models(folder), random_chain(320, 0)
    targets = [
        models.ring,
        models.mamba,
        *(write_planted(folder / f"{arch}.gguf", chain, arch=arch) for arch in ("gemma3", "lfm2")),
        *(write_hybrid(folder / f"{arch}.gguf", arch) for arch in ("granitehybrid", "qwen35", "nemotron_h")),
    ]
    trained = write_planted(folder / "trained.gguf", chain, n_layers=3)
    drafts = [
        write_eagle3(folder / "eagle3.gguf", 320),
        write_dflash(folder / "dspark.gguf", 320, "dspark", chain=chain),
        write_dflash(folder / "dflash.gguf", 320, "dflash", chain=chain),
    ]
    return [
        *(_base(path) for path in targets),
        _base(write_mtp(folder / "mtp.gguf", chain, reads="token")),
        _base(models.ring_draft, models.ring),
        *(_base(path, trained) for path in drafts),
    ]


def _base(path: Path, target: Path | None = None) -> Base:
    data, header = path.read_bytes(), read_gguf(path)
    keys = []
    for name in header.metadata:
        if not name.startswith(f"{header.architecture}."):
            continue
        text = name.encode()
        at = data.index(struct.pack("<Q", len(text)) + text) + 8 + len(text)
        keys.append((at, struct.unpack_from("<I", data, at)[0]))
    return Base(path, seed_of(path), tuple(keys), target)


def mutate(draw: random.Random, base: Base, path: Path) -> Path:
    """A copy of `base` with one to three wrong numbers."""
    data = bytearray(base.path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 3))):
        at, kind = draw.choice(base.keys)
        if draw.random() < 0.6 and kind in (_UINT32, _FLOAT32):
            new = struct.pack("<f", draw.choice(_FLOATS)) if kind == _FLOAT32 else _number(draw, "<I")
            data[at + 4 : at + 8] = new
        else:
            at, code = draw.choice(base.seed.marks), draw.choice(tuple(_WIDTHS))
            data[at : at + _WIDTHS[code]] = _number(draw, code)
    path.write_bytes(data)
    return path


def _number(draw: random.Random, code: str) -> bytes:
    number = draw.choice((draw.choice(_NUMBERS), draw.randrange(64)))
    return struct.pack(code, number % (1 << 8 * _WIDTHS[code]))


def passes(path: Path, target: Path | None) -> bool:
    """Whether `specdec check` would come as far as the tokenizers."""
    try:
        headers = (read_gguf(path),)
        if target is None:
            refuse_as_target(headers, path.name)
        else:
            read_head(headers, (read_gguf(target),), path.name, path)
    except ModelError:
        return False
    return True


def run(path: Path, target: Path | None, folder: Path) -> tuple[str, str, float]:
    """What became of it, the last words, and the seconds it took."""
    own = "mtp" if read_gguf(path).number("nextn_predict_layers") else "none"
    files = [path, "--draft", own] if target is None else [target, "--draft", path, "--force"]
    arguments = [
        "run",
        *files,
        "--raw",
        "hi",
        "-n",
        "4",
        "--seed",
        "1",
        "--ctx",
        "128",
        "--no-profile",
        "--threads",
        "1",
    ]
    began = time.monotonic()
    status = _in_a_process(arguments, folder / "stderr")
    seconds = time.monotonic() - began
    lines = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = " | ".join(lines[-2:])
    if status is None:
        return "hung", said, seconds
    if status < 0:
        return f"signal {-status}", said, seconds
    if any("Traceback" in line for line in lines):
        return "traceback", said, seconds
    if status == 0:
        return "ran", said, seconds
    if not any(line.startswith("Error: ") for line in lines) or not lines[-1].startswith("Hint: "):
        return "no words", said, seconds
    for kind in ("crash", "hang"):
        if f"llama.cpp {_SAID[kind]}" in said:
            return f"{kind} told in words", said, seconds
    return "refused in words", said, seconds


def _in_a_process(arguments: Sequence[object], stderr: Path) -> int | None:
    """The exit status of `specdec ARGUMENTS` in a copy of this process, minus the signal's number; None if it hangs.

    Everything is imported already: that is most of what a start costs.
    """
    pid = os.fork()
    if pid == 0:
        with stderr.open("wb") as file, open(os.devnull, "r+b") as nothing:
            for stream, number in ((nothing, 0), (nothing, 1), (file, 2)):
                os.dup2(stream.fileno(), number)
        sys.argv = ["specdec", *map(str, arguments)]
        try:
            app.main()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    options = _options()
    os.environ.update(GGML_NO_BACKTRACE="1", SPECDEC_TRUST=str(int(options.trust)))
    draw, said, slow = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(SPECDEC_CACHE=str(folder / "cache"), SPECDEC_CONFIG=str(folder / "config"))
        stock, n_refused, began = bases(folder), 0, time.monotonic()
        while said.total() < options.n:
            base = draw.choice(stock)
            path = mutate(draw, base, folder / f"mutated-{said.total()}.gguf")
            if not passes(path, base.target):
                n_refused += 1
                continue
            what, words, seconds = run(path, base.target, folder)
            said[what] += 1
            slow += seconds > LIMIT
            if what not in ("ran", "refused in words"):
                print(f"{said.total()} {base.path.name}: {what} after {seconds:.1f} s: {words[:300]}", flush=True)
            if options.keep is not None and what not in FINE:
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, options.keep / f"{base.path.stem}-{path.name}")
            path.unlink()
    print(
        f"{said.total()} files from {len(stock)} good ones, random seed {options.seed}; {n_refused} more were refused"
    )
    for what, n in said.most_common():
        print(f"{what}: {n}")
    print(f"slower than {LIMIT:.0f} s: {slow}; {time.monotonic() - began:.0f} s in all")
    sys.exit(1 if said.keys() - FINE else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trust", action="store_true", help="run without trials")
    parser.add_argument("--keep", type=Path, help="folder for files that were not refused properly")
    return parser.parse_args()


if __name__ == "__main__":
    main()
