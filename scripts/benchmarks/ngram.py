"""What copying is worth: chances said against chances that came, and speed by draft length, replayed without the model.

    python -m scripts.benchmarks.ngram record TARGET FILE [--temp 0] [-n 256]
    python -m scripts.benchmarks.ngram replay FILE [--costs 3.9,6.8,9.2,8.5,...]
    python -m scripts.benchmarks.ngram bound FILE [--costs 3.9,6.8,9.2,8.5,...]
    python -m scripts.benchmarks.ngram flat

`record` writes the texts of the benchmark's prompts by plain decoding. `replay` drafts along them: the shares of
copied tokens that were right, by what was said of them, and tokens per pass and predicted speedup by the longest
draft and the least chance of a whole draft, for the kinds of text that copy and for the others. `bound` sets what
`-k auto` reaches by lookup alone beside the most that anybody could who copies from the same places and knows which
tokens will be right. `--costs` are milliseconds of passes of 1, 2, 3, ...
tokens (from `specdec bench --json`); without, those of SmolLM2-135M Q4_0 on 2 cores. `flat` times a call after texts
of 1,000 to 32,000 tokens.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Draft, More, Round
from specdec_cli.drafters.ngram.drafter import LEAST_CHANCE_IF_WEIGHED, NgramDrafter
from specdec_cli.generation.pair import Pair, open_pair, plain_decoding
from specdec_cli.generation.prompts import conversation
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling

COPYING = ("edit", "summary", "qa", "json")
COSTS = (3.9, 6.8, 9.2, 8.5, 11.8, 13.7, 13.7, 11.8, 12.7, 13.6, 14.5, 15.3, 15.6, 15.9, 16.1, 16.4)
LEAST = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    record = ways.add_parser("record")
    record.add_argument("target", type=Path)
    record.add_argument("file", type=Path)
    record.add_argument("--temp", type=float, default=0.0)
    record.add_argument("-n", type=int, default=256)
    record.set_defaults(way=_record)
    replay = ways.add_parser("replay")
    replay.add_argument("file", type=Path)
    replay.add_argument("--costs", type=lambda text: [float(part) for part in text.split(",")], default=COSTS)
    replay.set_defaults(way=_replay)
    bound = ways.add_parser("bound")
    bound.add_argument("file", type=Path)
    bound.add_argument("--costs", type=lambda text: [float(part) for part in text.split(",")], default=COSTS)
    bound.set_defaults(way=_bound)
    ways.add_parser("flat").set_defaults(way=_flat)
    options = parser.parse_args()
    options.way(options)


def _record(options: argparse.Namespace) -> None:
    sampling = SamplingParams(temperature=options.temp)
    request = PairRequest(options.target, Drafting("none", 0), Sampling(seed=1, params=sampling), Placement(n_ctx=4096))
    with open_pair(request, say=print, abort=AbortFlag()) as pair:
        texts = [
            {"kind": prompt.kind, "prompt": ids, "answer": answer}
            for prompt in read_prompts(SHIPPED)
            for ids, answer in _last_turn(pair, prompt.turns, options.n)
        ]
    options.file.write_text(json.dumps(texts))


def _last_turn(pair: Pair, turns: Sequence[str], n: int) -> Iterator[tuple[list[int], list[int]]]:
    model, ends = pair.target.model, pair.end_tokens
    talk = conversation(model, system=None, thinking=None, now=datetime.now)
    for i, turn in enumerate(turns, 1):
        ids = talk.ask(turn) if talk else model.tokenize(turn, add_special=True, parse_special=False)
        rounds = pair.rounds(ids, plain_decoding(pair.rule), max_tokens=n, clock=time.perf_counter)
        answer = [token for round_ in rounds for token in round_.tokens]
        if talk:
            words = b"".join(model.token_bytes(t) for t in answer if t not in ends)
            talk.answered([t for t in answer if t not in ends], words.decode(errors="replace"))
        if i == len(turns):
            yield ids, answer


def _replay(options: argparse.Namespace) -> None:
    texts, costs = json.loads(options.file.read_text()), options.costs
    _calibration(texts, len(costs) - 1)
    print("tokens per pass / predicted speedup, copying kinds and others, by least chance of a whole draft:")
    print("  k  " + "".join(f"{least:>24g}" for least in LEAST))
    for k in sorted({3, 4, 7, 11, len(costs) - 1}):
        cells = []
        for least in LEAST:
            by_kind = _by_kind(texts, k, least, costs)
            groups = [[v for kind, v in by_kind.items() if (kind in COPYING) == copies] for copies in (True, False)]
            cells += ["  ".join("/".join(f"{statistics.mean(x):.2f}" for x in zip(*g, strict=True)) for g in groups)]
        print(f"{k:3d}  " + "".join(f"{cell:>24}" for cell in cells))
    k = len(costs) - 1
    for kind, (tokens, speedup) in _by_kind(texts, k, 0.4, costs).items():
        print(f"{kind:12} k {k}, least chance 0.4: {tokens:.2f} tokens per pass, {speedup:.2f} times plain")


def _calibration(texts: Sequence[Mapping[str, Any]], k: int) -> None:
    said = np.array([one for text in texts for passed in _passes(text, k, 0.0) for one in passed[2]])
    groups = np.digitize(said[:, 0], STEPS[1:-1])
    print("said of a copied token, how often right, how many (all before it right):")
    for group in range(len(STEPS) - 1):
        inside = said[groups == group]
        if len(inside):
            low, high = STEPS[group], STEPS[group + 1]
            means = inside.mean(axis=0)
            print(f"  {low:g} to {high:g}: said {means[0]:.2f}, right {means[1]:.2f}, {len(inside)}")


def _by_kind(
    texts: Sequence[Mapping[str, Any]], k: int, least: float, costs: Sequence[float]
) -> dict[str, tuple[float, float]]:
    """Tokens per pass and speedup over plain decoding."""
    sums: dict[str, list[float]] = {}
    for text in texts:
        for width, emitted, _ in _passes(text, k, least):
            total = sums.setdefault(text["kind"], [0, 0, 0])
            for i, value in enumerate((emitted, 1, costs[width - 1])):
                total[i] += value
    return {kind: (n / passes, n * costs[0] / cost) for kind, (n, passes, cost) in sums.items()}


def _passes(text: Mapping[str, Any], k: int, least: float) -> Iterator[tuple[int, int, list[tuple[float, bool]]]]:
    return passes_along(text["prompt"], text["answer"], NgramDrafter(least_chance=least), k)


def passes_along(
    prompt: Sequence[int], answer: Sequence[int], drafter: NgramDrafter, k: int
) -> Iterator[tuple[int, int, list[tuple[float, bool]]]]:
    """For each pass: its width, tokens emitted, and of each draft token that was reached what was said, and whether it
    was right."""
    tokens, n = [*prompt, *answer[:1]], 1
    while n < len(answer):
        chances: list[float] = []
        room = min(k, len(answer) - n - 1)
        draft = drafter.propose(tokens, room, lambda c, said=chances: said.append(c) or True).tokens if room else ()
        kept = 0
        while kept < len(draft) and draft[kept] == answer[n + kept]:
            kept += 1
        told = [(chance, i < kept) for i, chance in enumerate(chances[: kept + 1])]
        emitted = min(kept + 1, len(answer) - n)
        tokens += answer[n : n + emitted]
        n += emitted
        yield len(draft) + 1, emitted, told


def _bound(options: argparse.Namespace) -> None:
    """Speedups by kind of text; of plain decoding where `auto` has the same costs."""
    texts, costs = json.loads(options.file.read_text()), [seconds / 1000 for seconds in options.costs]
    sums: dict[str, NDArray[np.float64]] = {}
    for text in texts:
        seconds = [
            len(text["answer"]) * costs[0],
            _auto_seconds(text, _Lookup(text, len(costs) - 1), costs, _learned(costs)),
            _least_seconds(text, costs),
        ]
        sums[text["kind"]] = sums.get(text["kind"], np.zeros(3)) + seconds
    print(f"{'kind':12} {'auto':>6} {'bound':>6}")
    for kind, (plain, chosen, least) in sums.items():
        print(f"{kind:12} {plain / chosen:6.2f} {plain / least:6.2f}")


def _learned(costs: Sequence[float]) -> Learned:
    return Learned(PassCosts(dict(enumerate(costs, 1)), longest=len(costs) - 1))


class _Lookup:
    """Lookup along one answer, worked out once: what it copies does not depend on what is known of the pair."""

    name = NgramDrafter.name

    def __init__(self, text: Mapping[str, Any], longest: int) -> None:
        self._copies: dict[int, list[tuple[int, float]]] = {}
        drafter, answer, tokens = NgramDrafter(least_chance=LEAST_CHANCE_IF_WEIGHED), text["answer"], [*text["prompt"]]
        for n in range(1, len(answer)):
            tokens.append(answer[n - 1])
            chances: list[float] = []
            draft = drafter.propose(tokens, longest, lambda c, said=chances: said.append(c) or True)
            self._copies[len(tokens)] = list(zip(draft.tokens, chances, strict=True))

    def propose(self, tokens: Sequence[int], k: int, more: More) -> Draft:
        found = []
        for token, chance in self._copies[len(tokens)][:k]:
            found.append(token)
            if not more(chance):
                break
        return Draft(tuple(found), source=self.name if found else "")


def _auto_seconds(text: Mapping[str, Any], drafter: _Lookup, costs: Sequence[float], learned: Learned) -> float:
    """Of the answer, by the lengths that `-k auto` chooses for lookup."""
    answer = text["answer"]
    length = AutoLength(learned, longest=len(costs) - 1, sources=(drafter.name,))
    tokens, total = list(text["prompt"]), 0.0
    length.begin(len(tokens))
    while (n := len(tokens) - len(text["prompt"])) < len(answer):
        is_first, room = n == 0, len(answer) - n - 1
        k = 0 if is_first else length.next(len(tokens), room)
        draft = drafter.propose(tokens, k, length.more) if k else Draft()
        drafted = draft.tokens[: length.keep(draft)] if draft.tokens else ()
        right = [a == b for a, b in zip(drafted, answer[n:], strict=False)]
        n_accepted = (*right, False).index(False)
        seconds = costs[len(drafted)]
        round_ = Round(drafted, n_accepted, answer[n + n_accepted], k, 0.0, seconds, seconds, source=draft.source)
        length.observe(round_)
        tokens += round_.tokens
        total += seconds
    return total


def _least_seconds(text: Mapping[str, Any], costs: Sequence[float]) -> float:
    """Of the answer, with drafts that end where what lookup finds goes wrong, or before if that is quicker."""
    answer, drafter = text["answer"], NgramDrafter(least_chance=0)
    n_right = []
    for n in range(len(answer)):
        found = drafter.propose([*text["prompt"], *answer[:n]], min(len(costs) - 1, len(answer) - n - 1)).tokens
        right = [a == b for a, b in zip(found, answer[n:], strict=False)]
        n_right.append((*right, False).index(False))
    least = [0.0] * (len(answer) + 1)
    for n in reversed(range(len(answer))):
        least[n] = min(costs[k] + least[n + k + 1] for k in range(n_right[n] + 1))
    return least[0]


def _flat(_: argparse.Namespace) -> None:
    words = (np.random.default_rng(0).zipf(1.25, size=34_000) % 5000).tolist()
    for name, source in (("words", words), ("a loop", list(range(17)) * 2000)):
        for n in (1000, 2000, 4000, 8000, 16_000, 32_000):
            drafter, text, times = NgramDrafter(least_chance=0), source[:n], []
            began = time.perf_counter()
            drafter.propose(text, 0)
            read = time.perf_counter() - began
            for i in range(n, n + 900, 3):
                text += source[i : i + 3]
                began = time.perf_counter()
                drafter.propose(text, 8)
                times.append(time.perf_counter() - began)
            print(
                f"{name}, {n} tokens: read in {1e3 * read:.1f} ms, then {1e6 * statistics.median(times):.0f} us a call"
            )


if __name__ == "__main__":
    main()
