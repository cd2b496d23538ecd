"""Ratios to llama.cpp's own speculative decoding, on the same pair, prompts, k, threads and sampler, by turns.

    python scripts/bench_peers.py TARGET DRAFT [-k 3,5,8] [--temp 0,1] [-n 160] [--repeats 3] [--threads N]

Builds `llama-speculative-simple` from the source package of the llama-cpp-python that is installed here, once, into
specdec's cache folder (needs cmake, a C++ compiler and the package registry). Both sides continue raw prompts, are
timed after the prompt, and take turns, so that a machine whose speed drifts favours neither. Prints tokens/s, the ratio
of medians by prompt and its range, and what was accepted.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import llama_cpp

from specdec_cli.bench import Bench, Setting, Task
from specdec_cli.folders import cache_folder
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.machine import usable_cores
from specdec_cli.pairing import Pair, open_pair
from specdec_cli.plan import PairRequest
from specdec_cli.prompts import text_ids
from specdec_cli.sampling import SamplingParams

PROMPTS = (
    "Once upon a time there was a lighthouse keeper who",
    'def primes_below(n):\n    """Return the prime numbers below n."""\n',
    "The sky is blue because",
)
TARGET = "llama-speculative-simple"
SEED = 1


def main() -> None:
    options = _options()
    binary = build()
    ks, temperatures = [int(k) for k in options.k.split(",")], [float(t) for t in options.temp.split(",")]
    threads = options.threads or usable_cores()
    request = PairRequest(
        options.target, options.draft, "none", max(ks), seed=SEED, threads=threads, n_ctx=2048, force=True
    )
    print(f"{options.target.name} + {options.draft.name}, {threads} threads, llama-cpp-python {llama_cpp.__version__}")
    ratios = []
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        for temperature in temperatures:
            for k in ks:
                ratios.append(_row(binary, pair, options, k, temperature, threads))
    print(f"median of all: {statistics.median(ratios):.2f}")


def _row(binary: Path, pair: Pair, options: argparse.Namespace, k: int, temperature: float, threads: int) -> float:
    bench = Bench(pair, SamplingParams(), options.n, time.perf_counter)
    setting = Setting("model", k, temperature)
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    accepted: list[tuple[float, float]] = []
    for prompt in PROMPTS:
        task = Task("raw", tuple(text_ids(pair.target.model, prompt)))
        bench.run(task, setting, n_tokens=8)
        mine, other = [], []
        for _ in range(options.repeats):
            speed, share = peer(binary, options, prompt, k, temperature, threads)
            run = bench.run(task, setting)
            mine.append(run.speed)
            other.append(speed)
            accepted.append((run.stats.acceptance or 0.0, share))
        ours.append(mine)
        theirs.append(other)
    by_prompt = [statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(by_prompt)
    mine, other = (statistics.median(x for row in rows for x in row) for rows in (ours, theirs))
    shares = [statistics.mean(pair_[i] for pair_ in accepted) for i in (0, 1)]
    print(
        f"temp {temperature:g} k {k}: {mine:6.1f} tokens/s against {other:6.1f}, ratio {ratio:.2f} "
        f"({min(by_prompt):.2f} to {max(by_prompt):.2f}), accepted {shares[0]:.2f} against {shares[1]:.2f}",
        flush=True,
    )
    return ratio


def peer(
    binary: Path, options: argparse.Namespace, prompt: str, k: int, temperature: float, threads: int
) -> tuple[float, float]:
    """Tokens per second of llama.cpp's loop, and its share of accepted tokens."""
    command = [str(binary), "-m", str(options.target), "-md", str(options.draft), "--spec-type", "draft-simple"]
    command += ["--spec-draft-n-max", str(k), "--spec-draft-p-min", "0", "-p", prompt, "-n", str(options.n)]
    command += ["--temp", str(temperature), "--seed", str(SEED), "-t", str(threads), "-td", str(threads), "-c", "2048"]
    command += ["-ngl", "0", "-ngld", "0"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    speed = re.search(r"decoded +\d+ tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", said)
    accepted, drafted = (re.search(rf"{name} *= *(\d+)", said) for name in ("n_accept", "n_drafted"))
    if done.returncode != 0 or not (speed and accepted and drafted):
        raise SystemExit(f"{binary.name} failed:\n{said[-2000:]}")
    return float(speed[1]), int(accepted[1]) / max(int(drafted[1]), 1)


def build() -> Path:
    """The peer's program, built if it is not there."""
    folder = cache_folder() / "peers"
    out = folder / f"build-{llama_cpp.__version__}"
    binary = out / "bin" / TARGET
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(folder)
    settings = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF"]
    settings += ["-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF"]
    print(f"Building {TARGET} (once, into {out}) ...", file=sys.stderr)
    subprocess.run(["cmake", "-S", str(source), "-B", str(out), *settings], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", str(out), "--target", TARGET, "-j", str(usable_cores())],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return binary


def _source(folder: Path) -> Path:
    """llama.cpp as it lies in the source package."""
    name = f"llama_cpp_python-{llama_cpp.__version__}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, "-d", str(folder), f"llama-cpp-python=={llama_cpp.__version__}"], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name / "vendor" / "llama.cpp"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-k", default="3,5,8")
    parser.add_argument("--temp", default="0,1")
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
