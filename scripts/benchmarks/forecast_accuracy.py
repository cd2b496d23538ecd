"""How near `specdec plan --speed` comes to what loaded models then do.

    python -m scripts.benchmarks.forecast_accuracy [--pairs demo,1.5b:Q8_0] [--seconds 20] [--folder FOLDER]

`demo` is SmolLM2-135M in F32 with its Q4_0 copy, `gemma` Gemma 3 270M in Q8_0 with its Q4_0 copy; `1.5b:FORMAT` and
`7b:FORMAT` are the shapes of planted_shapes.py with a Q4_0 draft that knows 0.7 of the steps. For each pair passes of
made-up weights are timed first, from the headers alone, and nothing that was remembered is used. Then both files are
opened and write greedily, plainly, with drafts of the best length of the forecast (3, if none pays) and with `-k auto`
by turns, for so many seconds in all.

Prints tokens/s as forecast and as measured: of plain decoding, and with drafts. What drafts bring depends on how many
are accepted, which is no forecast's business: here it is what the rounds that took place cost by the forecast. Then the
speed over plain decoding that was measured, for this length and for auto.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.planted_shapes import BOS, FIRST_WORD, PAIRS, nearest_ring, written
from specdec_cli.bench.measure import Bench, Run, Setting, Task, plain_like
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.forecast.costs import Costs
from specdec_cli.forecast.passes import CONTEXT, WIDEST, Seconds
from specdec_cli.forecast.speed import forecasts
from specdec_cli.generation.pair import open_pair
from specdec_cli.lengths.speedup_model import CostCurve, rounds_speedup
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.models.gguf import read_model
from specdec_cli.planning.machine import usable_cores
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import AUTO
from tests import real_models
from tests.planted import make_vocab

SHARE = 0.7
WHERE_NONE_PAYS = 3
GREEDY = SamplingParams(temperature=0.0)
PROMPT = "Once upon a time there was a"
_SHORTEST, _LONGEST = 32, 256


@dataclass(frozen=True, slots=True)
class Files:
    """A pair, and the ids of a prompt if a text will not do."""

    target: Path
    draft: Path
    prompt: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """Tokens per second as forecast and as measured, plain and with drafts of `k` tokens; measured with `auto`."""

    plain: tuple[float, float]
    drafted: tuple[float, float]
    k: int
    auto: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="demo,gemma,1.5b:Q4_0,1.5b:Q8_0,1.5b:BF16,7b:Q4_0,7b:Q8_0,7b:BF16")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print("pair          plain: forecast measured    off  k  drafted: forecast measured    off  times plain  auto")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.pairs.split(","):
            print(row(name, compared(pair_of(name, options.folder or Path(folder)), options.seconds)), flush=True)


def row(name: str, found: Compared) -> str:
    """Words for one pair."""
    (plain, plain_measured), (drafted, drafted_measured) = found.plain, found.drafted
    return (
        f"{name:13} {plain:15.2f} {plain_measured:8.2f} {plain / plain_measured - 1:+6.1%} "
        f"{found.k:2} {drafted:17.2f} {drafted_measured:8.2f} {drafted / drafted_measured - 1:+6.1%} "
        f"{drafted_measured / plain_measured:12.2f} {found.auto / plain_measured:5.2f}"
    )


def pair_of(name: str, folder: Path) -> Files:
    """The files of a pair; planted ones are written into the folder if they are not there."""
    if name == "demo":
        return Files(real_models.smollm2("F32"), real_models.smollm2("Q4_0"))
    if name == "gemma":
        return Files(real_models.gemma3_270m("Q8_0"), real_models.gemma3_270m("Q4_0"))
    shape, quant = name.split(":")
    shapes, vocab = PAIRS[shape], make_vocab(PAIRS[shape].n_vocab)
    known = nearest_ring(SHARE, _LONGEST, [WHERE_NONE_PAYS])
    target = written(folder / f"{shape}-target-{quant}.gguf", shapes.target, vocab, quant)
    draft = written(folder / f"{shape}-draft-Q4_0-ring.gguf", shapes.draft, vocab, "Q4_0", known)
    return Files(target, draft, (BOS, FIRST_WORD))


def compared(files: Files, seconds: float) -> Compared:
    """Forecast first, then load and measure."""
    costs = Costs(usable_cores(), seconds=600, again=True)
    target, draft = (costs.passes(read_model(path), 0) for path in (files.target, files.draft))
    (best,) = forecasts(target, draft, [SHARE])
    k = best.k or WHERE_NONE_PAYS
    plain, drafted, auto = measured(files, k, seconds, best.plain)
    return Compared((best.plain, speed(plain)), (of_rounds(drafted, target, draft), speed(drafted)), k, speed(auto))


def of_rounds(runs: Sequence[Run], target: Seconds, draft: Seconds) -> float:
    """Tokens per second that the rounds of these runs have by the forecast; the first one reads the prompt."""
    rounds = [(len(r.drafted), r.n_accepted, len(r.tokens)) for run in runs for r in run.rounds[1:]]
    return rounds_speedup(CostCurve(CONTEXT, target, draft[1]), rounds) / target[1]


def speed(runs: Sequence[Run]) -> float:
    return statistics.median(run.speed for run in runs)


def measured(files: Files, k: int, seconds: float, about: float) -> tuple[list[Run], list[Run], list[Run]]:
    """Runs without drafts, with those of `k` tokens and of automatic length, by turns; `about` are tokens per second to
    be expected."""
    request = PairRequest(
        files.target,
        Drafting("none", WIDEST - 1, files.draft, force=True, auto=True),
        Sampling(seed=1, params=GREEDY),
        Placement(n_ctx=1024),
    )
    n = int(min(max(seconds * about / 9, _SHORTEST), _LONGEST))
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        model = pair.target.model
        prompt = files.prompt or tuple(model.tokenize(PROMPT, add_special=True, parse_special=False))
        bench, task, setting = Bench(pair, GREEDY, n, time.perf_counter), Task("text", prompt), Setting("model", k, 0.0)
        settings = (plain_like(setting), setting, Setting("model", AUTO, 0.0))
        for one in settings:
            bench.run(task, one, n_tokens=8)
        found: tuple[list[Run], list[Run], list[Run]] = ([], [], [])
        began = time.perf_counter()
        while not found[0] or time.perf_counter() - began < seconds:
            for runs, one in zip(found, settings, strict=True):
                runs.append(bench.run(task, one))
    return found


if __name__ == "__main__":
    main()
