"""Whether memory grows with what is written: less than 1 KB a token is the promise.

    python -m scripts.checks.memory_growth [-n 20000] [--drafts none,model,ngram,ngram+model,lookahead]

`specdec run` continues a prompt with a tiny planted pair (tests/planted.py) in a process of its own. Its resident size
is sampled while it writes, and a token keeps what that grew by between the first tokens and the last, divided by the
tokens between. The text is drawn at temperature 1 from a chain of 320 tokens, so that it seldom repeats itself, which
is the most that lookup has to index. Exit code 1 if a token keeps 1 KB or more.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.planted import N_SPECIAL, disturbed, random_chain, write_planted

N_VOCAB = 320
FIRST = 1000
"""Tokens before the first sample: what only a beginning allocates is in both."""
MOST = 1024
"""Bytes that a token may keep."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=20_000)
    parser.add_argument("--drafts", default="none,model,ngram,ngram+model,lookahead")
    options = parser.parse_args()
    n_ctx = FIRST + options.n + 64
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        chain = random_chain(N_VOCAB, 0, never=range(N_SPECIAL))
        target, draft = (
            write_planted(Path(folder) / f"{name}.gguf", table, n_ctx_train=n_ctx, n_layers=1)
            for name, table in (("target", chain), ("draft", disturbed(chain, 0.1, 1)))
        )
        for name in options.drafts.split(","):
            n = FIRST + options.n
            samples = list(sizes(drafting(name, draft), target, n, n_ctx))
            n_bytes = samples[-1][0]
            end = n - n // 50  # models are closed while the last of the text is read
            first, last = (next(size for at, size in samples if at * n >= mark * n_bytes) for mark in (FIRST, end))
            each = (last - first) / (end - FIRST)
            worst = max(worst, each)
            print(
                f"{name:12} {first / 2**20:6.1f} MB after {FIRST:,}, {last / 2**20:6.1f} after {end:,}: "
                f"{each:.0f} B a token"
            )
    return int(worst >= MOST)


def drafting(name: str, draft: Path) -> list[str]:
    """The options of a run with drafts by this name."""
    sources = name.split("+")
    if "model" not in sources:
        return ["--draft", name]
    return ["--draft", str(draft), *([] if "ngram" in sources else ["--no-ngram"])]


def sizes(drafting: list[str], target: Path, n: int, n_ctx: int) -> Iterator[tuple[int, int]]:
    """Samples of a run that writes `n` tokens: bytes of text that it has written, and its resident size in bytes."""
    command = [sys.executable, "-m", "specdec_cli", "run", str(target), "a b c", *drafting, "--raw", "--plain"]
    command += ["--force", "-n", str(n), "--ctx", str(n_ctx), "--temp", "1", "--seed", "1", "--threads", "1"]
    environment = os.environ | {"SPECDEC_CACHE": str(target.parent)}
    written = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as run:
        assert run.stdout is not None
        while some := os.read(run.stdout.fileno(), 1 << 12):
            written += len(some)
            pages = Path(f"/proc/{run.pid}/statm").read_text(encoding="ascii").split()[1:2]
            if pages and pages != ["0"]:
                yield written, int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
    if run.returncode:
        raise SystemExit(f"the run failed with exit code {run.returncode}")


if __name__ == "__main__":
    sys.exit(main())
