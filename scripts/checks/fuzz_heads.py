"""Spoilt heads by the thousand: each is refused in words, or drafts, or says why it does not; none ends the process.

    python -m scripts.checks.fuzz_heads [KIND ...] [--patience 20]

For every kind of head (eagle3, dflash, dflash2, dspark, mtp beside its target) every key of its header gets wrong
values, and every tensor is dropped, turned, cut, made longer, put into other formats and filled with NaN; a tiny
target then writes a few tokens with it, in a child process. Prints what ended a child or took too long, and counts;
ends with 1 after either. About half a second a file.
"""

import argparse
import os
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.errors import SpecdecError
from specdec_cli.generation.pair import open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests import heads
from tests.planted import Tensors, random_chain, write_planted

Spoil = Callable[[gguf.GGUFWriter, Tensors], None]

N = 264
CHAIN = random_chain(N, seed=3)
KINDS: dict[str, Callable[[Path], Path]] = {
    "eagle3": lambda path: heads.write_eagle3(path, N, drafted=np.arange(0, N, 2)),
    "dflash": lambda path: heads.write_dflash(path, N),
    "dflash2": lambda path: heads.write_dflash(path, N, "dflash2"),
    "dspark": lambda path: heads.write_dflash(path, N, "dspark"),
    "mtp": lambda path: heads.write_mtp(path, CHAIN, part="head"),
}
NUMBERS = (0, 1, 2, 3, 5, 63, 66, 67, 132, 1000, 2**31 - 1, 2**32 - 1)
MORE_KEYS = (
    "attention.causal attention.head_count_kv attention.key_length attention.scale attention.sliding_window "
    "attention.value_length embedding_length_out expert_count hyper_connection_count logit_scale nextn_predict_layers "
    "pooling_type rope.dimension_count rope.dimension_sections rope.freq_base rope.scaling.type sample_from_anchor "
    "vocab_size"
)
"""Keys that the files do not have."""


def spoilt_keys(writer: gguf.GGUFWriter, arch: str) -> Iterator[tuple[str, Spoil]]:
    found = [key for key in writer.kv_data[0] if key.startswith(f"{arch}.")]
    more = [f"{arch}.{key}" for key in MORE_KEYS.split()]
    for key in dict.fromkeys([*found, *more, "tokenizer.ggml.mask_token_id"]):
        for value in (*NUMBERS, None, "banana", [1, 0, 0, 0], -1.5):

            def spoil(writer: gguf.GGUFWriter, _: Tensors, key: str = key, value: object = value) -> None:
                writer.kv_data[0].pop(key, None)
                if isinstance(value, int):
                    writer.add_uint32(key, value)
                elif isinstance(value, float):
                    writer.add_float32(key, value)
                elif isinstance(value, str):
                    writer.add_string(key, value)
                elif isinstance(value, list):
                    writer.add_array(key, value)

            yield f"{key} = {value}", spoil


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "dropped": lambda _: None,
    "turned": lambda x: np.ascontiguousarray(x.T),
    "shorter": lambda x: x[:-1] if len(x) > 1 else x,
    "longer": lambda x: np.concatenate([x, x[:2]]),
    "flat": lambda x: x.reshape(-1),
    "three numbers": lambda x: x.reshape(-1)[:3],
    "float16": lambda x: x.astype(np.float16),
    "int32": lambda x: x.astype(np.int32),
    "NaN": lambda x: np.full(x.shape, np.nan, np.float32) if x.dtype != np.int64 else x * 0 - 1,
}


def spoilt_tensors(names: list[str]) -> Iterator[tuple[str, Spoil]]:
    for name in names:
        for how, change in CHANGES.items():

            def spoil(_: gguf.GGUFWriter, tensors: Tensors, name: str = name, change: object = change) -> None:
                changed = change(tensors.pop(name))  # type: ignore[operator]
                if changed is not None:
                    tensors[name] = changed

            yield f"{name} {how}", spoil


def written(path: Path, kind: str, spoil: Spoil) -> Path:
    """A head of this kind, spoilt just before it is written."""
    finish = heads._finish

    def spoilt(writer: gguf.GGUFWriter, path: Path, tensors: Tensors, metadata: object) -> Path:
        tensors = dict(tensors)
        spoil(writer, tensors)
        return finish(writer, path, tensors, metadata)

    heads._finish = spoilt
    try:
        return KINDS[kind](path)
    finally:
        heads._finish = finish


def run(target: Path, head: Path) -> str:
    """Twelve tokens; what came of it."""
    request = PairRequest(
        target, Drafting("model", 4, head, force=True), Sampling(seed=5), Placement(n_ctx=128, n_batch=32, threads=1)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        rounds = list(
            generate(
                pair.target.session,
                pair.decoding.drafter,
                FixedLength(4, give_up_after=10**9),
                pair.rule,
                [1, *range(3, 40)],
                max_tokens=12,
                ends=lambda _: False,
                clock=time.perf_counter,
            )
        )
    return "drafted" if any(r.drafted for r in rounds) else "did not draft"


def in_child(work: Callable[[], str], patience: float) -> str:
    """What `work` says, in a process of its own: "ended by signal N" or "too slow" if it does not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            said = work()
        except SpecdecError:
            said = "refused"
        except BaseException as error:
            said = f"raised {type(error).__name__}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], patience)
    if not ready:
        os.kill(child, signal.SIGKILL)
    said = os.read(reader, 100).decode()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return "too slow" if not ready else said or f"ended by signal {os.WTERMSIG(status)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=list(KINDS))
    parser.add_argument("--patience", type=float, default=20.0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_planted(folder / "target.gguf", CHAIN, n_layers=3, mixing=1.0)
        trunk = heads.write_mtp(folder / "trunk.gguf", CHAIN, part="trunk")
        for kind in options.kinds:
            ways: list[tuple[str, Spoil]] = []

            def look(writer: gguf.GGUFWriter, tensors: Tensors, ways: list[tuple[str, Spoil]] = ways) -> None:
                ways += [*spoilt_keys(writer, writer.arch), *spoilt_tensors(list(tensors))]

            written(folder / "whole.gguf", kind, look)
            for label, spoil in ways:

                def work(kind: str = kind, spoil: Spoil = spoil) -> str:
                    head = written(folder / "head.gguf", kind, spoil)
                    return run(trunk if kind == "mtp" else target, head)

                said = in_child(work, options.patience)
                counts[said] += 1
                if said not in ("refused", "drafted", "did not draft"):
                    print(f"{kind}: {label}: {said}", flush=True)
    print(f"{sum(counts.values()):,} heads: " + ", ".join(f"{n} {said}" for said, n in counts.most_common()))
    return int(any(said not in ("refused", "drafted", "did not draft") for said in counts))


if __name__ == "__main__":
    sys.exit(main())
