"""Plants one bug after another and shows that a test catches each.

    python -m scripts.checks.mutations [--only WORD]

Every mutation is a replacement in a copy of the checkout; the suite's tests of the rule, the law and the
engine then run on the copy until one fails. Prints the test that caught it. Exit code 1 if one survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TESTS = (
    "decode/test_coupled",
    "decode/test_sampler_chain",
    "decode/test_penalties",
    "decode/test_noise",
    "decode/test_sampling",
    "decode/test_strict",
    "drafters/test_drafters",
    "drafters/test_predicted",
    "drafters/test_cross",
    "decode/test_rejection",
    "decode/test_engine",
    "decode/test_text_stream",
    "llama/test_grammar",
    "structured/test_masks",
    "generation/test_matrix",
    "generation/test_distribution",
    "generation/test_lora",
)


@dataclass(frozen=True)
class Mutation:
    """A bug: `old` must stand exactly once in `file`."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation("residual ignores the draft", "decode/rejection", "weight * p.probs - at(q, p.ids)", "weight * p.probs"),
    Mutation(
        "rejected token kept",
        "decode/rejection",
        "return i, self._own(start, i, residual(p, q))",
        "return i + 1, self._own(start, i, residual(p, q))",
    ),
    Mutation(
        "rejected token kept, coupled",
        "decode/coupled",
        "            if choice != token:\n                return i, choice",
        "            if choice != token:\n                return i + 1, choice",
    ),
    Mutation(
        "everything accepted",
        "decode/rejection",
        "if self._uniform(start, i, _ACCEPT) >= acceptance(p, q, token):",
        "if False:",
    ),
    Mutation(
        "bonus row off by one",
        "decode/rejection",
        "return n, self._own(start, n, self.law.distribution(rows[n], prefix))",
        "return n, self._own(start, n, self.law.distribution(rows[n - 1], prefix))",
    ),
    Mutation(
        "bonus row off by one, coupled",
        "decode/coupled",
        "self.choose(rows[len(draft.tokens)], prefix)",
        "self.choose(rows[len(draft.tokens) - 1], prefix)",
    ),
    Mutation(
        "rows off by one, block",
        "decode/rejection",
        "self.law.distribution(rows[i], prefix)\n            is_last",
        "self.law.distribution(rows[i - 1], prefix)\n            is_last",
    ),
    Mutation(
        "last draft token never accepted",
        "decode/rejection",
        "chance = weight if is_last else",
        "chance = 0.0 if is_last else",
    ),
    Mutation(
        "uniform reused for the residual",
        "decode/rejection",
        "_DRAFT, _ACCEPT, _OWN = 1, 2, 3",
        "_DRAFT, _ACCEPT, _OWN = 1, 2, 2",
    ),
    Mutation(
        "uniform reused from the draft",
        "decode/rejection",
        "_DRAFT, _ACCEPT, _OWN = 1, 2, 3",
        "_DRAFT, _ACCEPT, _OWN = 1, 1, 3",
    ),
    Mutation(
        "uniform reused in the next round's draft",
        "decode/rejection",
        "uniform(self.seed, start, np.array([place]), stream)",
        "uniform(self.seed, 0, np.array([start + place]), stream)",
    ),
    Mutation(
        "lying q: drawn greedily",
        "decode/rejection",
        "token = pick(q, self._uniform(start, len(tokens) - start, _DRAFT))",
        "token = int(q.ids[q.probs.argmax()])",
    ),
    Mutation(
        "lying q: reported at another temperature",
        "decode/rejection",
        "return Drawn(token, q,",
        "return Drawn(token, Distribution(q.ids, q.probs**0.8 / (q.probs**0.8).sum()),",
    ),
    Mutation(
        "lying q: p-min drops what was drawn",
        "drafters/draw",
        "drawn.token if drawn.q is None else argmax(row)",
        "drawn.token",
    ),
    Mutation(
        "block forgets the weight",
        "decode/rejection",
        "is_last else residual(p, qs[i], weight)",
        "is_last else residual(p, qs[i])",
    ),
    Mutation(
        "block stops at its first failure",
        "decode/rejection",
        "                n_accepted, own = i, p if is_last else residual(p, qs[i], weight)",
        "                n_accepted, own = i, p if is_last else residual(p, qs[i], weight)\n"
        "            else:\n                break",
    ),
    Mutation(
        "stop inside a draft ignored",
        "decode/engine",
        "        if ends(token):",
        "        if ends(token) and i == len(tokens):",
    ),
    Mutation(
        "penalties fed with rejected tokens",
        "decode/coupled",
        "choice = self.choose(rows[i], prefix)",
        "choice = self.choose(rows[i], prefix if i or not prefix else [*prefix[:-1], draft.tokens[-1]])",
    ),
    Mutation(
        "penalties without the draft's tokens",
        "decode/coupled",
        "            prefix = prefix.then((token,))\n        return len(draft.tokens)",
        "            prefix = Tokens((*prefix[:-1], token))\n        return len(draft.tokens)",
    ),
    Mutation(
        "penalties without the prompt",
        "decode/sampler_chain",
        "row = penalize(row, tokens, self.params)",
        "row = penalize(row, tokens[self._answer_begins :], self.params)",
    ),
    Mutation(
        "grammar advanced by rejected tokens",
        "llama/grammar",
        "shared = max(self._tokens.n_shared(tokens) - start, 0) if start == self._start else 0\n        for",
        "shared = min(len(self._tokens), len(tokens)) - start if start == self._start else 0\n        for",
    ),
    Mutation(
        "masks of a text that was taken back",
        "structured/masks",
        "        for later in [at for at in self._masks if at > length]:\n            del self._masks[later]\n",
        "",
    ),
    Mutation("masks not rolled back", "structured/masks", "self._matcher.rollback(n)", "self._matcher.rollback(0)"),
    Mutation(
        "what a schema forces is not certain",
        "structured/masks",
        "return int(found[0]) if len(found) == 1 else None",
        "return int(found[0]) if len(found) <= 8 else None",
    ),
    Mutation(
        "grammar after the cuts",
        "decode/sampler_chain",
        "return self.cut(self.allowed(row, tokens))",
        "return self.cut(self.adjusted(row, tokens))",
    ),
    Mutation("grammar begins with the prompt", "decode/engine", "    rule.law.begin(tokens)\n", ""),
    Mutation("noise reused between positions", "decode/noise", "+ position * _GAMMA)", "+ position // 2 * _GAMMA)"),
    Mutation(
        "noise of another position for large vocabularies",
        "decode/noise",
        "bits = _first_bits(seed, position, start, len(part))",
        "bits = _first_bits(seed, position + 1, start, len(part))",
    ),
    Mutation("bound of the loudest token too high", "decode/noise", "- slack + np.arange", "- slack + 2 + np.arange"),
    Mutation("streams not apart", "decode/noise", "(seed + stream * _MULTIPLY_2)", "seed"),
    Mutation(
        "temperature dropped",
        "decode/sampler_chain",
        "(logits[order] - logits.max()) / self.params.temperature",
        "(logits[order] - logits.max())",
    ),
    Mutation(
        "temperature dropped, coupled",
        "decode/coupled",
        "return ids, logits / self.law.params.temperature +",
        "return ids, logits +",
    ),
    Mutation(
        "bans dropped",
        "decode/sampler_chain",
        "row[self._biased] += self._amounts",
        "row[self._biased] += np.maximum(self._amounts, -9)",
    ),
    Mutation("padding can be chosen", "decode/sampler_chain", "row = row[: self.n_shared]\n", "row = row[:]\n"),
    Mutation("ids above the shared ones drafted", "decode/engine", "k, rule.law.n_shared)", "k, target.n_vocab)"),
    Mutation(
        "logprobs off by one",
        "decode/logprobs",
        "for row, token in zip(rows, tokens",
        "for row, token in zip(rows[1:], tokens",
    ),
    Mutation(
        "strict keeps the wide row", "decode/strict", "rows[i] = target.score(prefix, 1)[0]", "target.score(prefix, 1)"
    ),
    Mutation("strict forgets to copy", "decode/strict", "rows = rows.copy()", "rows = rows[:]"),
    Mutation("DRY goes past breakers", "decode/penalties", "if whole:", "if False:"),
    Mutation(
        "realigned to the farthest place",
        "drafters/ngram/predicted",
        "key=lambda place: abs(place - sure)",
        "key=lambda place: -abs(place - sure)",
    ),
    Mutation(
        "realigned without a look at what was before",
        "drafters/ngram/predicted",
        "if score == best",
        "if score",
    ),
    Mutation(
        "a wrong guess is believed",
        "drafters/ngram/predicted",
        "if self._length >= _SURE and len(self._places) == 1:",
        "if True:",
    ),
    Mutation(
        "the cursor stays where the last answer ended",
        "drafters/ngram/drafter",
        "            self._predicted.restart()\n",
        "",
    ),
    Mutation(
        "the draft's own ids handed over",
        "drafters/cross/drafter",
        "self._row[self._places] = logits[self._sources]",
        "self._row[: len(logits)] = logits[: len(self._row)]",
    ),
    Mutation(
        "text handed over before it is settled",
        "drafters/cross/drafter",
        "if is_settled else self._n_within(proposed, before - len(pending))",
        "",
    ),
    Mutation(
        "noise of the draft's own position",
        "drafters/cross/drafter",
        "self._draw(text.then(proposed), own, start",
        "self._draw(own, own, start",
    ),
    Mutation(
        "bytes that the text has already are written again",
        "drafters/cross/drafter",
        "            ids = self._after(pending, text, ids)\n",
        "            pass\n",
    ),
    Mutation(
        "the draft reads a space before every piece",
        "drafters/cross/reader",
        "return guarded[len(guard) :] if guarded[: len(guard)] == guard else ids",
        "return ids",
    ),
    Mutation(
        "a new text is read as if it were the old one",
        "drafters/cross/reader",
        "elif not goes_on:",
        "elif False:",
    ),
    Mutation(
        "a stale cache of other adapters",
        "generation/prompt_cache",
        ", *_adapted(opened.model.settings)]",
        "]",
    ),
    Mutation("adapters not applied", "llama/session", "        self._model.adapters.apply(self._context)\n", ""),
    Mutation(
        "adapters applied in full", "llama/adapters", "adapter.scale for adapter in adapters", "1.0 for _ in adapters"
    ),
    Mutation(
        "a control vector in all layers",
        "llama/adapters",
        "if vector.first <= layer <= (vector.last or n_layers):",
        "if True:",
    ),
    Mutation(
        "the draft adapted like the target",
        "planning/plan",
        "adapters=request.adapters.draft if head is None else (),",
        "",
    ),
    Mutation(
        "typical before top-k",
        "decode/sampling",
        "    ids = ids[top_k(row[ids], params.top_k or len(ids))]\n    logits",
        "    ids = ids[top_k(row[ids], len(ids))]\n    logits",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only mutations whose name has this in it")
    chosen = [mutation for mutation in MUTATIONS if parser.parse_args().only in mutation.name]
    survivors = 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        if failed := _first_failure(copy):
            raise SystemExit(f"Without any bug, {failed} fails already.")
        for mutation in chosen:
            caught_by = _try(copy, mutation)
            survivors += caught_by is None
            print(f"{mutation.name:50} {caught_by or 'SURVIVES'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


def _try(copy: Path, mutation: Mutation) -> str | None:
    """The first test that fails with the bug, None if all pass."""
    path = copy / "specdec_cli" / f"{mutation.file}.py"
    source = path.read_text(encoding="utf-8")
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: {mutation.file} has its place {source.count(mutation.old)} times.")
    path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return _first_failure(copy)
    finally:
        path.write_text(source, encoding="utf-8")


def _first_failure(copy: Path) -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *(f"tests/{name}.py" for name in TESTS)],
        cwd=copy,
        capture_output=True,
        text=True,
        # CI: examples are the same every time, and none fails for being slow.
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"},
        check=False,
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].removeprefix("FAILED tests/") if failed else None


if __name__ == "__main__":
    sys.exit(main())
