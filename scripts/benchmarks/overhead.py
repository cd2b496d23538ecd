"""How much of the decode time is not llama.cpp's: the loop, the rule, the text, the dashboard.

    python -m scripts.benchmarks.overhead TARGET.gguf DRAFT.gguf [--temp 0.8] [-k 4] [-n 256] [--repeats 5]

Every call of llama_decode is timed from outside; the share is what is left of the time from the
first token to the last. The dashboard draws into a pseudo-terminal of 80x24 that is read as fast as
it fills. Prints the median over the repeats and their spread.
"""

import argparse
import os
import pty
import statistics
import subprocess
import time
from pathlib import Path

import llama_cpp

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.json_document import versions
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.plan import PairRequest
from specdec_cli.ui.make import open_view

PROMPT = "Explain step by step how a bicycle stays upright, and then tell a short story about one."


class TimedDecode:
    """llama_decode with a stopwatch around it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._decode = llama_cpp.llama_decode

    def __call__(self, context: object, batch: object) -> int:
        started = time.perf_counter()
        status: int = self._decode(context, batch)
        self.seconds += time.perf_counter() - started
        return status


def terminal() -> tuple[int, subprocess.Popen[bytes]]:
    """The writing end of a pseudo-terminal; another process reads the other end, as a terminal would."""
    reader, writer = pty.openpty()
    drain = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(reader)
    return writer, drain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="without the dashboard")
    options = parser.parse_args()

    timed = TimedDecode()
    llama_cpp.llama_decode = timed
    request = PairRequest(
        options.target,
        options.draft,
        "model",
        options.k,
        seed=1,
        sampling=SamplingParams(temperature=options.temp),
        force=True,
    )
    shares, speeds = [], []
    writer_fd, _ = terminal()
    with os.fdopen(writer_fd, "w") as screen, open_pair(request, say=print, abort=AbortFlag()) as pair:
        ids = pair.target.model.tokenize(PROMPT, add_special=True, parse_special=True)
        marks: list[float] = []

        def clock() -> float:
            marks.append(timed.seconds)
            return time.perf_counter()

        for repeat in range(options.repeats + 1):
            marks.clear()
            writer = Writer(
                pair,
                options.k,
                Limits(options.n),
                open_view=lambda header: open_view(
                    header,
                    plain=options.plain,
                    stdout=screen,
                    stderr=screen,
                    environ={"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
                ),
                trace=Trace(None),
                settings={},
                clock=clock,
            )
            stats = writer.write([*ids, repeat + 300]).answer.stats
            # The clock was read at the start, three times in the first round, then for the rest.
            inside = timed.seconds - marks[3]
            if repeat:  # the first run warms up
                shares.append(1 - inside / stats.decode_seconds)
                speeds.append(stats.tokens_per_second or 0.0)
    print(f"{options.target.name} + {options.draft.name}, k {options.k}, temperature {options.temp:g}")
    print(f"outside llama_decode: median {statistics.median(shares):.2%} ({min(shares):.2%} to {max(shares):.2%})")
    print(f"tokens/s: median {statistics.median(speeds):.1f}")
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


if __name__ == "__main__":
    main()
