"""What specdec costs beside llama.cpp's passes, in four measurements.

    python -m scripts.benchmarks.overhead share TARGET.gguf DRAFT.gguf [--temp 0.8] [-k 4] [-n 256] [--repeats 5]
    python -m scripts.benchmarks.overhead growth [--contexts 0,2048,8192,32768] [--temp 0] [-k 4] [-n 512]
    python -m scripts.benchmarks.overhead choice
    python -m scripts.benchmarks.overhead first-token TARGET.gguf DRAFT.gguf [--lengths 16,512,1536] [--batch 512]

share        The share of decode time outside llama_decode: the loop, the rule, the text, the dashboard. Every call of
             llama_decode is timed from outside. The dashboard draws into a pseudo-terminal of 80x24 that another
             process reads as fast as it fills.
growth       Whether that work grows with the text: none of it should. Real passes take longer over a longer text, and
             leave the processor's caches cold; so passes are replaced by a look-up in the table that tiny planted
             models are made from. Prints microseconds of processor time per emitted token.
choice       The time of one choice of the default rule on a row of random logits, without a model.
first-token  The time to first token with a draft and without, interleaved. A draft reads the prompt after the first
             token: what that costs is printed beside it. Every prompt is new to both caches.

Prints medians over the repeats and their spread.
"""

import argparse
import io
import os
import pty
import random
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from scripts.benchmarks.table_passes import TablePasses
from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import Drafter, Round
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.json_document import versions
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.ui.make import open_view
from specdec_cli.ui.view import View
from tests.planted import N_SPECIAL, disturbed, log_chain, random_chain, write_planted

PROMPT = "Explain step by step how a bicycle stays upright, and then tell a short story about one."
N_VOCAB = 320
SAMPLERS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    drafting = argparse.ArgumentParser(add_help=False)
    drafting.add_argument("--temp", type=float, default=0.0)
    drafting.add_argument("-k", type=int, default=4)
    drafting.add_argument("--repeats", type=int, default=7)
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("target", type=Path)
    files.add_argument("draft", type=Path)

    share = commands.add_parser("share", parents=[files, drafting])
    share.add_argument("-n", type=int, default=256)
    share.add_argument("--plain", action="store_true", help="without the dashboard")
    share.set_defaults(measure=measure_share, repeats=5)
    growth = commands.add_parser("growth", parents=[drafting])
    growth.add_argument("--contexts", type=_numbers, default="0,2048,8192,32768")
    growth.add_argument("--repeat-penalty", type=float, default=1.0)
    growth.add_argument("--draft", choices=("model", "ngram", "none"), default="model")
    growth.add_argument("-n", type=int, default=512)
    growth.set_defaults(measure=measure_growth)
    commands.add_parser("choice").set_defaults(measure=measure_choice)
    first_token = commands.add_parser("first-token", parents=[files, drafting])
    first_token.add_argument("--lengths", type=_numbers, default="16,512,1536")
    first_token.add_argument("--batch", type=int, default=512)
    first_token.set_defaults(measure=measure_first_token)

    options = parser.parse_args()
    options.measure(options)
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _request(options: argparse.Namespace, n_batch: int = 512) -> PairRequest:
    drafting = Drafting("model", options.k, options.draft, force=True)
    sampling = Sampling(SamplingParams(temperature=options.temp), seed=1)
    return PairRequest(options.target, drafting, sampling, Placement(n_batch=n_batch))


def _write(
    pair: Pair, ids: Sequence[int], options: argparse.Namespace, view: Callable[[Any], View], trace: Trace, clock: Any
) -> RunStats:
    writer = Writer(pair, Limits(options.n), open_view=view, trace=trace, settings={}, clock=clock)
    return writer.write(list(ids)).answer.stats


# --- share -------------------------------------------------------------------------------------------------


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


def _terminal() -> int:
    """The writing end of a pseudo-terminal; another process reads the other end, as a terminal would."""
    reader, writer = pty.openpty()
    subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(reader)
    return writer


def measure_share(options: argparse.Namespace) -> None:
    timed = TimedDecode()
    llama_cpp.llama_decode = timed
    shares, speeds = [], []
    request = _request(options)
    environ = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with os.fdopen(_terminal(), "w") as screen, open_pair(request, say=print, abort=AbortFlag()) as pair:
        ids = pair.target.model.tokenize(PROMPT, add_special=True, parse_special=True)
        marks: list[float] = []

        def view(header: Any) -> View:
            return open_view(header, plain=options.plain, stdout=screen, stderr=screen, environ=environ)

        def clock() -> float:
            marks.append(timed.seconds)
            return time.perf_counter()

        for repeat in range(options.repeats + 1):
            marks.clear()
            stats = _write(pair, [*ids, repeat + 300], options, view, Trace(None), clock)
            # The clock was read at the start, three times in the first round, then for the rest.
            inside = timed.seconds - marks[3]
            if repeat:  # the first run warms up
                shares.append(1 - inside / stats.decode_seconds)
                speeds.append(stats.tokens_per_second or 0.0)
    print(f"{options.target.name} + {options.draft.name}, k {options.k}, temperature {options.temp:g}")
    print(f"outside llama_decode: median {statistics.median(shares):.2%} ({min(shares):.2%} to {max(shares):.2%})")
    print(f"tokens/s: median {statistics.median(speeds):.1f}")


# --- growth ------------------------------------------------------------------------------------------------


class Marks(Trace):
    """Notes the processor time at the end of every round."""

    def __init__(self) -> None:
        super().__init__(None)
        self.rounds: list[tuple[float, int]] = []

    def round(self, round_: Round, spans: list[Span]) -> None:  # type: ignore[override]
        super().round(round_, spans)
        self.rounds.append((time.thread_time(), len(round_.tokens)))

    def per_token(self) -> float:
        """Seconds, without the first two rounds, in which both models read the prompt."""
        (began, _), *rest = self.rounds[1:]
        return (rest[-1][0] - began) / sum(n for _, n in rest)


def measure_growth(options: argparse.Namespace) -> None:
    spent: dict[int, list[float]] = defaultdict(list)
    chain = random_chain(N_VOCAB, 0, never=range(N_SPECIAL))
    tables = chain, disturbed(chain, 0.1, 1)
    with tempfile.TemporaryDirectory() as folder:
        n_ctx = max(options.contexts) + options.n + 64
        target, draft = (
            write_planted(Path(folder) / f"{name}.gguf", table, n_ctx_train=n_ctx, n_layers=1)
            for name, table in zip(("target", "draft"), tables, strict=True)
        )
        sampling = SamplingParams(temperature=options.temp, repeat_penalty=options.repeat_penalty)
        has_draft = options.draft == "model"
        drafting = Drafting(options.draft, options.k, draft if has_draft else None, force=True)
        request = PairRequest(target, drafting, Sampling(sampling, seed=1), Placement(n_ctx=n_ctx))
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            passes = TablePasses()
            for opened, table in zip((pair.target, pair.draft), tables, strict=True):
                if opened is not None:
                    passes.serve(opened.session, log_chain(table))
            for repeat in range(options.repeats + 1):
                for n in options.contexts:
                    marks = Marks()
                    _write(pair, _planted_prompt(n, repeat), options, _silent, marks, time.perf_counter)
                    if repeat:  # the first round warms up
                        spent[n].append(1e6 * marks.per_token())
    print(f"{options.draft}, k {options.k}, temperature {options.temp:g}, {options.n} tokens")
    for n, times in spent.items():
        print(f"context {n:6}: {statistics.median(times):6.1f} us per token ({min(times):.1f} to {max(times):.1f})")


def _silent(header: Any) -> View:
    return open_view(header, plain=True, stdout=io.StringIO(), stderr=io.StringIO(), environ={"COLUMNS": "80"})


def _planted_prompt(n: int, seed: int) -> list[int]:
    """`n` tokens, but at least two, that share no beginning with another prompt and end as all do."""
    rng = random.Random(f"{n} {seed}")
    return [*(rng.randrange(N_SPECIAL, N_VOCAB) for _ in range(max(n, 2))), N_SPECIAL]


# --- choice ------------------------------------------------------------------------------------------------


def measure_choice(_options: argparse.Namespace) -> None:
    for n_vocab in (49_152, 262_144):
        row = (np.random.default_rng(0).normal(size=n_vocab) * 2.5).astype(np.float32)
        for sampler in SAMPLERS:
            rule = SharedNoise(Law(sampler, n_shared=n_vocab), seed=1)
            times = []
            for position in range(200):
                began = time.perf_counter()
                rule.choose(row, range(position))
                times.append(time.perf_counter() - began)
            print(f"{n_vocab:,} tokens, {sampler}: {statistics.median(times) * 1e6:.0f} microseconds")


# --- first-token -------------------------------------------------------------------------------------------


def measure_first_token(options: argparse.Namespace) -> None:
    request = _request(options, options.batch)
    print(f"{options.target.name} + {options.draft.name}, prompts in batches of {options.batch}")
    print(f"{'prompt':>7} {'plain':>9} {'drafting':>9} {'ratio':>7} {'(from, to)':>16} {'draft reads in':>15}")
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        for length in options.lengths:
            _first_token_row(pair, length, options)


def _first_token_row(pair: Pair, length: int, options: argparse.Namespace) -> None:
    """Ratios are over pairs of neighbours."""
    seconds: dict[str, list[float]] = defaultdict(list)
    reads: list[float] = []
    for repeat in range(options.repeats + 1):
        # Who goes first changes, so that a machine that slows down or warms up favours nobody.
        for name in ("plain", "drafting") if repeat % 2 else ("drafting", "plain"):
            rng = random.Random(f"{length} {name} {repeat}")
            prompt = [rng.randrange(1000, pair.rule.law.n_shared) for _ in range(length)]
            before = _read_seconds(pair)
            first = _first_rounds(pair, NoDrafter() if name == "plain" else pair.decoding.drafter, prompt, options.k)[0]
            if repeat:  # the first round warms up
                seconds[name].append(first.seconds)
                reads += [_read_seconds(pair) - before] if name == "drafting" else []
    ratios = [a / b for a, b in zip(seconds["drafting"], seconds["plain"], strict=True)]
    plain, drafting = (1000 * statistics.median(seconds[name]) for name in ("plain", "drafting"))
    print(
        f"{length:7} {plain:6.1f} ms {drafting:6.1f} ms {statistics.median(ratios):7.3f} "
        f"{f'({min(ratios):.2f}, {max(ratios):.2f})':>16} {1000 * statistics.median(reads):12.1f} ms"
    )


def _read_seconds(pair: Pair) -> float:
    return pair.draft.session.evaluation.read_seconds if pair.draft is not None else 0.0


def _first_rounds(pair: Pair, drafter: Drafter, prompt: list[int], k: int) -> list[Round]:
    """Four tokens: enough for the draft to be asked."""
    session, length, clock = pair.target.session, FixedLength(k), time.perf_counter
    rounds = generate(session, drafter, length, pair.rule, prompt, max_tokens=4, ends=lambda _: False, clock=clock)
    return list(rounds)


if __name__ == "__main__":
    main()
