"""Whether the work outside llama.cpp grows with the text: none of it should.

    python -m scripts.benchmarks.growth [--contexts 0,2048,8192,32768] [--temp 0] [-k 4] [-n 512] [--repeats 7]

A pair continues prompts of each length, by turns. Real passes take longer over a longer text, and what comes
after a long pass finds the processor's caches cold; so that this is not taken for work that grows, llama.cpp's
passes are replaced by a look into the table that tiny planted models are made from. Prints microseconds of
processor time per emitted token, the medians over the repeats.
"""

import argparse
import ctypes
import io
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Round
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.plan import PairRequest
from specdec_cli.ui.make import open_view
from specdec_cli.ui.view import Span
from tests.planted import N_SPECIAL, disturbed, log_chain, random_chain, write_planted

N_VOCAB = 320


class TablePasses:
    """llama.cpp's part for planted sessions, at a price that does not depend on the context."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        self._ends: dict[int, int] = {}
        for name in ("decode", "synchronize", "get_logits", "memory_seq_rm", "memory_seq_pos_max"):
            setattr(llama_cpp, f"llama_{name}", getattr(self, name))

    def serve(self, session: LlamaSession, table: NDArray[np.float64]) -> None:
        self._rows[_address(session._context)] = table.astype(np.float32), np.zeros((512, N_VOCAB), np.float32)

    def decode(self, context: Any, batch: Any) -> int:
        n = batch.n_tokens
        table, rows = self._rows[_address(context)]
        wanted = [batch.token[i] for i in range(n) if batch.logits[i]]
        rows[: len(wanted)] = table[wanted]
        self._ends[_address(llama_cpp.llama_get_memory(context))] = batch.pos[n - 1]
        return 0

    def synchronize(self, context: Any) -> None:
        pass

    def get_logits(self, context: Any) -> Any:
        return self._rows[_address(context)][1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def memory_seq_rm(self, memory: Any, _sequence: int, start: int, _end: int) -> bool:
        self._ends[_address(memory)] = start - 1
        return True

    def memory_seq_pos_max(self, memory: Any, _sequence: int) -> int:
        return self._ends[_address(memory)]


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


class Marks(Trace):
    """Notes the processor time at the end of every round."""

    def __init__(self) -> None:
        super().__init__(None)
        self.rounds: list[tuple[float, int]] = []

    def round(self, round_: Round, spans: list[Span]) -> None:  # type: ignore[override]
        super().round(round_, spans)
        self.rounds.append((time.thread_time(), len(round_.tokens)))

    def per_token(self) -> float:
        """Without the first two rounds, in which both models read the prompt."""
        (began, _), *rest = self.rounds[1:]
        return (rest[-1][0] - began) / sum(n for _, n in rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="0,2048,8192,32768")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--repeat-penalty", type=float, default=1.0)
    parser.add_argument("--draft", choices=("model", "ngram", "none"), default="model")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    contexts = [int(n) for n in options.contexts.split(",")]
    found: dict[int, list[float]] = defaultdict(list)
    chain = random_chain(N_VOCAB, 0, never=range(N_SPECIAL))
    tables = chain, disturbed(chain, 0.1, 1)
    with tempfile.TemporaryDirectory() as folder:
        n_ctx = max(contexts) + options.n + 64
        paths = [
            write_planted(Path(folder) / f"{name}.gguf", table, n_ctx_train=n_ctx, n_layers=1)
            for name, table in zip(("target", "draft"), tables, strict=True)
        ]
        request = PairRequest(
            paths[0],
            paths[1] if options.draft == "model" else None,
            options.draft,
            options.k,
            seed=1,
            sampling=SamplingParams(temperature=options.temp, repeat_penalty=options.repeat_penalty),
            n_ctx=n_ctx,
            force=True,
        )
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            passes = TablePasses()
            for opened, table in zip((pair.target, pair.draft), tables, strict=True):
                if opened is not None:
                    passes.serve(opened.session, log_chain(table))
            for repeat in range(options.repeats + 1):
                for n in contexts:
                    spent = 1e6 * _measure(pair, _prompt(n, repeat), options)
                    if repeat:  # the first round warms up
                        found[n].append(spent)
    print(f"{options.draft}, k {options.k}, temperature {options.temp:g}, {options.n} tokens")
    for n, spents in found.items():
        print(f"context {n:6}: {statistics.median(spents):6.1f} us per token ({min(spents):.1f} to {max(spents):.1f})")


def _prompt(n: int, seed: int) -> list[int]:
    """`n` tokens, but at least two, that share no beginning with another prompt and end as all do."""
    rng = random.Random(f"{n} {seed}")
    return [*(rng.randrange(N_SPECIAL, N_VOCAB) for _ in range(max(n, 2))), N_SPECIAL]


def _measure(pair: Pair, prompt: list[int], options: argparse.Namespace) -> float:
    """Seconds of processor time per token."""
    marks = Marks()
    Writer(
        pair,
        options.k,
        Limits(options.n),
        open_view=lambda header: open_view(
            header, plain=True, stdout=io.StringIO(), stderr=io.StringIO(), environ={"COLUMNS": "80"}
        ),
        trace=marks,
        settings={},
        clock=time.perf_counter,
    ).write(prompt)
    return marks.per_token()


if __name__ == "__main__":
    main()
