"""What the trainings share: the data they draw from, the loss on the target's likeliest tokens, their reports."""

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scripts.training.data import Text, read, shards
from scripts.training.layers import rate

HELD_OUT_EVERY = 16


class Data:
    """Texts of a folder that may still grow: every sixteenth is held out. Waits until there are any."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[Path]()
        self.train: list[Text] = []
        self.held_out: list[Text] = []
        self._order: list[int] = []
        self.refresh()
        while not self.train:
            time.sleep(5)
            self.refresh()

    def refresh(self) -> None:
        """Take up what has been written since."""
        for path in shards(self._folder):
            if path not in self._seen:
                self._seen.add(path)
                for i, text in enumerate(read(path)):
                    (self.held_out if i % HELD_OUT_EVERY == 0 else self.train).append(text)

    def draw(self, n: int, rng: random.Random) -> list[Text]:
        """The next texts; all come once before any comes again."""
        while len(self._order) < n:
            self.refresh()
            self._order += rng.sample(range(len(self.train)), len(self.train))
        chosen, self._order = self._order[:n], self._order[n:]
        return [self.train[i] for i in chosen]


class Rows:
    """A reduced vocabulary: `d2t` int64 [r] names the target's id of each row, in order."""

    def __init__(self, d2t: NDArray[np.int64], n_vocab: int) -> None:
        self.d2t = d2t
        self._row_of = torch.full((n_vocab,), -1)
        self._row_of[torch.from_numpy(d2t)] = torch.arange(len(d2t))

    @classmethod
    def frequent(cls, texts: Sequence[Text], n_vocab: int, n_rows: int) -> "Rows":
        """The ids that the target gives most probability; low ids, the older merges, break ties."""
        mass = 1e-3 / (1.0 + np.arange(n_vocab))
        for text in texts:
            np.add.at(mass, text.top_ids.ravel(), np.exp(text.top_logs.astype(np.float32)).ravel())
        return cls(np.sort(np.argsort(-mass, kind="stable")[:n_rows]).astype(np.int64), n_vocab)

    def targets(self, ids: Tensor, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and probabilities of the likeliest tokens, and the row of the likeliest (-1 if it has none).

        What the reduced vocabulary leaves out is shared among the rest; without a target all are zero.
        """
        rows = self._row_of[ids.long()]
        probs = logs.float().exp() * (rows >= 0)
        return rows.clamp_min(0), probs / probs.sum(-1, keepdim=True).clamp_min(1e-6), rows[..., 0]


@dataclass(slots=True)
class Score:
    """Sums over positions, of one step of a draft."""

    n: int = 0
    loss: float = 0.0
    agreed: float = 0.0
    overlap: float = 0.0

    def means(self) -> tuple[float, float, float]:
        """Loss, top-1 agreement with the target, overlap (sum of min(p, q))."""
        n = max(1, self.n)
        return self.loss / n, self.agreed / n, self.overlap / n


def cross_entropy(logits: Tensor, rows: Tensor, probs: Tensor, best: Tensor, score: Score) -> Tensor:
    """Mean over positions; logits [m, r], rows and probs [m, 64], best [m]. Adds what happened to `score`."""
    logs = logits.float().log_softmax(dim=-1)
    picked = logs.gather(1, rows)
    loss = -(probs * picked).sum(-1).mean()
    with torch.no_grad():
        score.n += len(rows)
        score.loss += float(loss) * len(rows)
        score.agreed += float((logs.argmax(-1) == best).sum())
        score.overlap += float(torch.minimum(probs, picked.exp()).sum())
    return loss


class Report:
    """Prints how a training goes and appends it to a file of comma-separated values."""

    def __init__(self, file: Path, minutes: float) -> None:
        self._file, self._seconds, self._last = file, 60 * minutes, time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._last > self._seconds

    def add(self, step: int, tokens: int, seconds: float, train: Sequence[Score], held_out: Sequence[Score]) -> None:
        self._last = time.monotonic()
        means = [[f"{value:.3f}" for value in score.means()] for score in (*train, *held_out)]
        shown = [" ".join(m) for m in means]
        print(
            f"step {step}, {tokens:,} tokens, {seconds / 60:.1f} min: loss, agreement, overlap by draft token: "
            f"train {', '.join(shown[: len(train)])}; held out {', '.join(shown[len(train) :])}",
            flush=True,
        )
        if not self._file.exists():
            columns = [
                f"{kind} {name} {i + 1}"
                for kind in ("train", "held-out")
                for i in range(len(train))
                for name in ("loss", "agreement", "overlap")
            ]
            self._file.write_text(",".join(("step", "tokens", "seconds", *columns)) + "\n")
        with self._file.open("a") as file:
            file.write(",".join((str(step), str(tokens), f"{seconds:.0f}", *(v for m in means for v in m))) + "\n")


Loss = Callable[[list[Text], random.Random, float, list[Score]], Tensor]
"""Of some texts; the weight of the distance from the target's states, and the scores to add to, one a draft token."""


def add_options(parser: argparse.ArgumentParser, *, tokens: int, batch: int) -> None:
    """The options that all trainings have."""
    parser.add_argument("--tokens", type=int, default=tokens, help="tokens of answers to learn from, with repeats")
    parser.add_argument("--batch", type=int, default=batch, help="texts in a step")
    parser.add_argument("--rows", type=int, default=8192, help="size of the reduced vocabulary")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--report", type=float, default=2, help="minutes from report to report")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def train(
    module: nn.Module,
    data: Data,
    rows: Rows,
    options: argparse.Namespace,
    *,
    n_scores: int,
    states_until: float,
    loss_of: Loss,
    save: Callable[[], None],
) -> None:
    """Train until `options.tokens` have been learnt from, in bfloat16, and `save` at every report.

    Goes on from the checkpoint beside `options.file`, if there is one. `states_until`: the part of the training
    in which the target's states count.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    kept = checkpoint(options.file)
    step, seen, spent = 0, 0, 0.0
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        step, seen, spent = state["step"], state["seen"], state["spent"]
    rng, began = random.Random(step), time.monotonic() - spent
    report, scores = Report(options.file.with_suffix(".csv"), options.report), [Score() for _ in range(n_scores)]
    while seen < options.tokens:
        done = seen / options.tokens
        for group in optimizer.param_groups:
            group["lr"] = rate(done, options.rate)
        texts = data.draw(options.batch, rng)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(texts, rng, max(0.0, 1 - done / states_until), scores)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step, seen = step + 1, seen + sum(len(text) - text.n_prompt for text in texts)
        if report.due or seen >= options.tokens or step == 1:
            held_out = [Score() for _ in range(n_scores)]
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                for i in range(0, min(len(data.held_out), 48), 8):
                    loss_of(data.held_out[i : i + 8], random.Random(i), 0.0, held_out)
            report.add(step, seen, time.monotonic() - began, scores, held_out)
            scores = [Score() for _ in range(n_scores)]
            state = {
                "module": module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "d2t": torch.from_numpy(rows.d2t),
            }
            torch.save({**state, "step": step, "seen": seen, "spent": time.monotonic() - began}, kept)
            save()


def checkpoint(file: Path) -> Path:
    """Where the training that writes `file` keeps its state."""
    return file.with_suffix(".pt")


def rows_for(options: argparse.Namespace, data: Data, n_vocab: int) -> Rows:
    """The reduced vocabulary of a training that goes on, or a new one."""
    if checkpoint(options.file).exists():
        return Rows(torch.load(checkpoint(options.file), weights_only=True)["d2t"].numpy(), n_vocab)
    return Rows.frequent(data.train, n_vocab, min(options.rows, n_vocab))
