"""What the trainings share: the data they draw from, the loss on the target's likeliest tokens, their reports."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from training_data import Text, read, shards

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
