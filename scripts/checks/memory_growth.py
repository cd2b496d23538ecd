"""Whether memory grows with what is written: less than 1 KB a token is the promise.

    python -m scripts.checks.memory_growth [-n 20000] [--drafts none,model,ngram,ngram+model]

`specdec run` continues a prompt with a tiny planted pair (tests/planted.py) in a process of its own: once for a few
tokens, once for `-n` more in a context of the same size. What the second one's resident size was above the first one's
at its peak, divided by `-n`, is what a token keeps. The text is drawn at temperature 1 from a chain of 320 tokens, so
that it seldom repeats itself, which is the most that lookup has to index. Exit code 1 if a token keeps 1 KB or more.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted import N_SPECIAL, disturbed, random_chain, write_planted

N_VOCAB = 320
FIRST = 1000
"""Tokens of the first run: what only a beginning allocates is in both."""
MOST = 1024
"""Bytes that a token may keep."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=20_000)
    parser.add_argument("--drafts", default="none,model,ngram,ngram+model")
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
            few, many = (peak_bytes(drafting(name, draft), target, n, n_ctx) for n in (FIRST, FIRST + options.n))
            each = (many - few) / options.n
            worst = max(worst, each)
            print(
                f"{name:12} {few / 2**20:6.1f} MB at first, {(many - few) / 2**20:5.1f} MB more: {each:5.0f} B a token"
            )
    return int(worst >= MOST)


def drafting(name: str, draft: Path) -> list[str]:
    """The options of a run with drafts by this name."""
    sources = name.split("+")
    if "model" not in sources:
        return ["--draft", name]
    return ["--draft", str(draft), *([] if "ngram" in sources else ["--no-ngram"])]


def peak_bytes(drafting: list[str], target: Path, n: int, n_ctx: int) -> int:
    """Resident size at its peak of a run that writes `n` tokens."""
    command = [sys.executable, "-m", "specdec_cli", "run", str(target), "a b c", *drafting, "--raw", "--plain"]
    command += ["--force", "-n", str(n), "--ctx", str(n_ctx), "--temp", "1", "--seed", "1", "--threads", "1"]
    environment = os.environ | {"SPECDEC_CACHE": str(target.parent)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as run:
        said = run.stderr.read() if run.stderr is not None else b""
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit(said.decode(errors="replace"))
    return used.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
