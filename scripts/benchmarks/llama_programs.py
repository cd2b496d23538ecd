"""llama.cpp's own programs, built once from the source package of the llama-cpp-python that is installed here.

Needs cmake, a C++ compiler and the package registry; lies in specdec's cache folder. Each function runs a program once
and reads the speed of decoding, without the prompt, off what it prints.
"""

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from specdec_cli.paths import cache_folder
from specdec_cli.planning.machine import usable_cores

SPECULATIVE, BENCH, LOOKUP = "llama-speculative-simple", "llama-bench", "llama-lookup"
SEED = 1


@dataclass(frozen=True, slots=True)
class Way:
    """How one answer is written, by either side."""

    n: int
    k: int
    temperature: float
    threads: int


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens per second after the prompt, and accepted / drafted; None where nothing drafts. `n_tokens` were written: a
    last draft is kept whole, so they may be more than were asked for."""

    speed: float
    acceptance: float | None = None
    n_tokens: int | None = None


def speculative(programs: Path, target: Path, draft: Path, prompt: str, way: Way) -> Said:
    """Speculative decoding with a draft model."""
    command = [programs / SPECULATIVE, *_usual(target, prompt, way), "-md", draft, "--spec-type", "draft-simple"]
    return _decoded([*command, "--spec-draft-p-min", "0", "-td", way.threads, "-ngld", "0"])


def lookup(programs: Path, target: Path, prompt: str, way: Way) -> Said:
    """Lookup decoding: n-grams of 1 to 4 tokens of the prompt and the answer."""
    return _decoded([programs / LOOKUP, *_usual(target, prompt, way)])


def bench(programs: Path, target: Path, way: Way) -> Said:
    """Plain decoding from an empty context, of random tokens."""
    command = [programs / BENCH, "-m", target, "-p", "0", "-n", way.n, "-r", "1", "-t", way.threads, "-ngl", "0"]
    done = _run([*command, "-o", "json"])
    try:
        return Said(float(json.loads(done.stdout)[0]["avg_ts"]))
    except (ValueError, KeyError, IndexError):
        raise SystemExit(f"{BENCH} failed:\n{done.stderr[-2000:]}") from None


def _usual(target: Path, prompt: str, way: Way) -> list[object]:
    how = ["-m", target, "-p", prompt, "-n", way.n, "--spec-draft-n-max", way.k, "--temp", way.temperature]
    return [*how, "--seed", SEED, "-t", way.threads, "-c", "2048", "-ngl", "0"]


def _decoded(command: Sequence[object]) -> Said:
    done = _run(command)
    said = done.stdout + done.stderr
    speed = re.search(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", said)
    accepted, drafted = (re.search(rf"{name} *= *(\d+)", said) for name in ("n_accept", "n_drafted"))
    if done.returncode != 0 or not (speed and accepted and drafted):
        raise SystemExit(f"{Path(str(command[0])).name} failed:\n{said[-2000:]}")
    return Said(float(speed[2]), int(accepted[1]) / max(int(drafted[1]), 1), int(speed[1]))


def _run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", check=False)


def build(names: Sequence[str]) -> Path:
    """The folder of the programs; those that are not there are built."""
    folder = cache_folder() / "peers"
    out = folder / f"build-{llama_cpp.__version__}"
    missing = [name for name in names if not (out / "bin" / name).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        settings = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF"]
        settings += ["-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF"]
        print(f"Building {', '.join(missing)} (once, into {out}) ...", file=sys.stderr)
        _quietly("cmake", "-S", _source(folder), "-B", out, *settings)
        _quietly("cmake", "--build", out, "--target", *missing, "-j", usable_cores())
    return out / "bin"


def _quietly(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def _source(folder: Path) -> Path:
    """llama.cpp as it lies in the source package."""
    name = f"llama_cpp_python-{llama_cpp.__version__}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, "-d", str(folder), f"llama-cpp-python=={llama_cpp.__version__}"], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name / "vendor" / "llama.cpp"
