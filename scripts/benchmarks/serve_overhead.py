"""What serving costs over writing the same texts in this process: time to the first token, and tokens a second.

    python -m scripts.benchmarks.serve_overhead TARGET [--draft DRAFT] [-k 4] [-n 128] [--repeats 5]

Both have the same pair, seeds and fixed draft lengths, and write by turns, each prompt new to both.
"""

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import specdec_cli
from scripts.checks.soak_server import served

Times = tuple[float, float]
"""Seconds to the first token, and tokens a second after it."""


def timed(parts: Iterator[object]) -> Times:
    """Of an iterator with one part for each token."""
    began = time.perf_counter()
    next(parts)
    first = time.perf_counter()
    n = sum(1 for _ in parts)
    return first - began, n / (time.perf_counter() - first)


def here(pair: specdec_cli.Pair, n: int) -> Callable[[str, int], Times]:
    def times(prompt: str, seed: int) -> Times:
        return timed(chunk for chunk in pair.stream(prompt, seed=seed, max_tokens=n) if chunk.token is not None)

    return times


def through(port: int, n: int) -> Callable[[str, int], Times]:
    def times(prompt: str, seed: int) -> Times:
        return timed(_logprobs(port, {"prompt": prompt, "seed": seed, "max_tokens": n, "stream": True, "logprobs": 0}))

    def _logprobs(port: int, asked: dict[str, object]) -> Iterator[object]:
        """A part for each token, however many came in one event."""
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/completions", json.dumps(asked))
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                yield from choice["logprobs"]["tokens"] if choice["logprobs"] else ()

    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    arguments = [str(options.target), "-k", str(options.k), *(["--draft", str(options.draft)] if options.draft else [])]
    with (
        specdec_cli.open(options.target, draft=options.draft, k=options.k) as pair,
        served(arguments) as (_, port),
    ):
        ways = {"this process": here(pair, options.n), "the server": through(port, options.n)}
        found: dict[str, list[Times]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                times = way(f"Story number {repeat}. Once upon a time there was", repeat)
                if repeat > 0:  # the first one warms both up
                    found[name].append(times)
    for name, all_times in found.items():
        first, rate = (statistics.median(column) for column in zip(*all_times, strict=True))
        print(f"{name}: first token after {1e3 * first:.1f} ms, {rate:.1f} tokens/s")


if __name__ == "__main__":
    main()
