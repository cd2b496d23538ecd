"""Hold the memory estimate against the resident size of loaded models.

    python -m scripts.benchmarks.memory FILE.gguf [FILE.gguf ...] [--ctx 2048,8192] [--kv f16,q8_0] [--ubatch 512]

Each file is loaded in a process of its own and a batch is evaluated in a context; the growth of the process's resident
size (Linux, /proc/self/smaps_rollup) is printed beside the estimate made from the header alone.
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.versions import versions
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import read_model
from specdec_cli.models.memory import need, repacked_formats
from specdec_cli.settings import ContextSettings, ModelSettings

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ctx", default="2048,8192")
    parser.add_argument("--kv", default="f16,q8_0")
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.files[0], int(options.ctx), options.kv, options.ubatch)))
        return
    print(f"{'file':36} {'context':>8} {'cache':>6} {'estimate':>10} {'resident':>10} {'off by':>8}")
    worst = 0.0
    for file, ctx, kv in product(options.files, options.ctx.split(","), options.kv.split(",")):
        command = [
            sys.executable,
            __file__,
            str(file),
            "--one",
            "--ctx",
            ctx,
            "--kv",
            kv,
            "--ubatch",
            str(options.ubatch),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        estimate, resident = json.loads(done.stdout.splitlines()[-1])
        worst = max(worst, abs(estimate / resident - 1))
        print(
            f"{file.name[:36]:36} {ctx:>8} {kv:>6} {estimate / MIB:>8.0f} M {resident / MIB:>8.0f} M "
            f"{estimate / resident - 1:>+8.1%}"
        )
    print(f"worst: {worst:.1%}")


def measure(file: Path, n_ctx: int, cache_type: str, n_ubatch: int) -> tuple[int, int]:
    """Estimated and measured bytes of one model with one context."""
    context = ContextSettings(
        n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch, threads=2, cache_type=cache_type, max_rows=5
    )
    repacked = repacked_formats(versions()["llama_cpp_features"])
    estimate = need(model_facts(read_model(file)), context, repacked=repacked).resident
    before = resident_bytes()
    with LlamaModel(ModelSettings(file)) as model, LlamaSession(model, context) as session:
        session.score([(7 * i) % model.n_vocab for i in range(min(n_ctx, n_ubatch + 64))], 5)
        return estimate, resident_bytes() - before


def resident_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/smaps_rollup tells no resident size.")


if __name__ == "__main__":
    main()
