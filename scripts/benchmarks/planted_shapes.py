"""What drafting is worth at the shapes of large models, with planted acceptance.

    python -m scripts.benchmarks.planted_shapes [--pairs 7b,1.5b] [--shares 0.6,0.8] [-k 1,2,3,4,5,6,7,8] [--minutes 10]
                                     [--formats Q4_0] [--draft-format Q4_0] [--folder FOLDER]

Writes pairs of files that cost what real ones of their shapes cost, and whose next token is known (coded.py): `7b`
has the layers of Qwen2.5-7B with a draft like Qwen2.5-0.5B, both with the real 152,064 tokens; `1.5b` those of
Qwen2.5-1.5B with a draft like SmolLM2-135M, both with SmolLM2's 49,152 tokens. The target is written in each of the
formats (Q4_0, Q8_0, BF16), the draft in one. Unlike published files, the output matrix has the format of the others and
the draft's is not shared with its embedding. The target goes round a ring of words, of which the
draft knows a share of the steps (rings.py), so acceptance is known to the token. FOLDER keeps the files; those of
`7b` take 5 GB in Q4_0 and 16 GB in BF16, and memory as much, in Q4_0 twice that.

For each k (auto, too) prints theory's accepted / drafted, what this ring must give, what was measured, and the speedup
predicted and measured beside plain decoding. Answers are as long as the minutes allow.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.benchmarks.coded import Follows, Shape, write_coded
from scripts.benchmarks.number_formats import FORMATS
from scripts.benchmarks.rings import Known, counted, drawn, in_theory, lengths
from specdec_cli.bench.measure import Bench, Cell, Extent, Length, Setting, Task, longest_draft
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.lengths.speedup_model import CostCurve
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import AUTO
from tests.planted import Vocab, make_vocab

FIRST_WORD, N_WORDS = 260, 240
BOS = 1
GREEDY = SamplingParams(temperature=0.0)
SHORTEST, LONGEST = 24, 256
NEAREST = (0.005, 0.01, 0.02, 0.04, 0.08)
"""How near a ring comes to theory: the first that a short answer allows."""
_CURVE_ROUNDS = 2
_CURVE_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class Shapes:
    """A target, its draft, and the tokens of both."""

    target: Shape
    draft: Shape
    n_vocab: int


@dataclass(frozen=True, slots=True)
class Formats:
    """Of both models' matrices."""

    target: str
    draft: str


IN_FOUR_BITS = Formats("Q4_0", "Q4_0")
PAIRS = {
    "7b": Shapes(Shape(28, 3584, 18944, 28, 4), Shape(24, 896, 4864, 14, 2), 152_064),
    "1.5b": Shapes(Shape(28, 1536, 8960, 12, 2), Shape(30, 576, 1536, 9, 3), 49_152),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--shares", default="0.6,0.8")
    parser.add_argument("-k", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--formats", default="Q4_0", help="of the target, one after another")
    parser.add_argument("--draft-format", default="Q4_0", choices=FORMATS)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    names, shares = options.pairs.split(","), [float(share) for share in options.shares.split(",")]
    formats = [Formats(quant, options.draft_format) for quant in options.formats.split(",")]
    seconds = 60 * options.minutes / len(names) / len(shares) / len(formats)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for quants in formats:
                place = options.folder or Path(folder)
                measure(name, PAIRS[name], shares, lengths(options.k), seconds, place, quants)


def measure(
    name: str,
    shapes: Shapes,
    shares: Sequence[float],
    ks: Sequence[Length],
    seconds: float,
    folder: Path,
    formats: Formats = IN_FOUR_BITS,
) -> list[Cell]:
    """Print a row for each share and k, and return the cells; writes the files that are not in the folder yet.

    `seconds` are for the answers with one share. What passes cost is measured before, with a draft that knows every
    step: only then is known how long answers can be, and so which ring has theory's acceptance.
    """
    settings = [Setting("model", k, 0.0) for k in ks]
    longest, n_vocab = longest_draft(settings), shapes.n_vocab
    vocab, drafted = make_vocab(n_vocab), f"{name}-draft-{formats.draft}"
    target = written(folder / f"{name}-target-{formats.target}.gguf", shapes.target, vocab, formats.target)
    knowing = written(folder / f"{drafted}.gguf", shapes.draft, vocab, formats.draft)
    with _opened(target, knowing, longest, auto=False) as pair:
        text = [BOS, *range(FIRST_WORD, FIRST_WORD + N_WORDS)]
        bench = Bench(pair, GREEDY, SHORTEST, time.perf_counter)
        curve = bench.cost_curve(text, _CURVE_CONTEXT, longest + 1, 0.0, n_rounds=_CURVE_ROUNDS)
    n = _answer_length(curve, len(settings) + 2, seconds)
    print(
        f"{target.stem}: {target.stat().st_size / 1e9:.2f} GB, {1000 * curve.target[1]:.1f} ms a token, "
        f"draft {knowing.stat().st_size / 1e9:.2f} GB, {1000 * curve.draft:.1f} ms; answers of {n} tokens"
    )
    print("share    k  theory counted accepted predicted measured  text")
    found = []
    for share in shares:
        known = nearest_ring(share, n, [k for k in ks if isinstance(k, int)])
        draft = folder / f"{drafted}-{share:g}.gguf"
        draft.unlink(missing_ok=True)  # one of another ring
        written(draft, shapes.draft, vocab, formats.draft, known)
        with _opened(target, draft, longest, auto=AUTO in ks) as pair:
            bench = Bench(pair, GREEDY, n, time.perf_counter)
            task = Task(name, (BOS, FIRST_WORD))
            bench.run(task, settings[0], n_tokens=8)
            for _ in bench.measure(Extent([task], 1, n), settings):
                pass
        for cell in bench.cells.values():
            print(row(cell, curve, share, known, n), flush=True)
            found.append(cell)
    return found


def row(cell: Cell, curve: CostCurve, share: float, known: Known, n: int) -> str:
    """Words for one k; "-" where an automatic length leaves theory nothing to say."""
    k, predicted = cell.setting.k, cell.predicted(curve)
    theory = sure = "-"
    if isinstance(k, int):
        drafted, accepted = counted(known.tolist(), n, k)
        theory, sure = f"{in_theory(share, k):.3f}", f"{accepted / drafted:.3f}"
    expected = "-" if predicted is None else f"{predicted:.2f}"
    figures = f"{theory:>7} {sure:>7} {cell.acceptance or 0:8.3f} {expected:>9} {cell.speedup:8.2f}"
    return f"{share:5.2f} {k:>4} {figures}  {cell.worst.verdict}"


def follows(n_vocab: int, known: Known | None = None) -> Follows:
    """The ring, every other token followed by itself. Steps that are not `known` lead to where the next such one leads,
    the last of them to a token outside: wrong everywhere, and still a permutation."""
    after = np.arange(n_vocab)
    words = FIRST_WORD + np.arange(N_WORDS)
    after[words] = np.roll(words, -1)
    if known is not None and not known.all():
        unknown = [*words[~known], n_vocab - 1]
        after[unknown] = np.roll(after[unknown], -1)
    return after


def nearest_ring(share: float, n: int, ks: Sequence[int]) -> Known:
    """The places that come nearest to theory in an answer of `n` tokens."""
    for near in NEAREST[:-1]:
        try:
            return drawn(share, N_WORDS, n, ks, near)
        except ValueError:
            continue
    return drawn(share, N_WORDS, n, ks, NEAREST[-1])


def _opened(target: Path, draft: Path, longest: int, *, auto: bool) -> AbstractContextManager[Pair]:
    request = PairRequest(
        target,
        Drafting("none", longest, draft, force=True, auto=auto),
        Sampling(seed=1, params=GREEDY),
        Placement(n_ctx=1024),
    )
    return open_pair(request, say=lambda _: None, abort=AbortFlag())


def _answer_length(curve: CostCurve, n_answers: int, seconds: float) -> int:
    """Tokens, where an answer takes about as long as plain decoding."""
    return int(min(max(seconds / (n_answers * curve.target[1]), SHORTEST), LONGEST))


def written(path: Path, shape: Shape, vocab: Vocab, quant: str, known: Known | None = None) -> Path:
    """Under its name only when it is whole."""
    if not path.exists():
        print(f"Writing {path.name} ...", file=sys.stderr)
        after = follows(len(vocab), known)
        write_coded(path.with_suffix(".half"), shape, vocab, after, quant).rename(path)
    return path


if __name__ == "__main__":
    main()
