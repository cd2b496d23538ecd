"""Train Medusa heads on the last hidden state of a target, on the text it writes itself.

    python -m scripts.training.data TARGET.gguf DATA
    python -m scripts.training.train_medusa TARGET.gguf DATA HEADS.safetensors [--heads 3] [--tokens N] [--own-output]

Medusa-1 (Cai et al., arXiv 2401.10774): the target stays as it is. From the state h after the last norm at
token t, from which the target's output matrix predicts token t + 1, head i (0, 1, ...) predicts token t + 2 + i:

    x = h;  for each block j: x = x + silu(W_ij x + b_ij);  logits = U_i x

The file has the published names, float16: `{i}.{j}.linear.weight` [d, d] and `{i}.{j}.linear.bias` [d] for
block j, and `{i}.{n_blocks}.weight` [vocabulary, d] for U_i. Without --own-output the U_i are left out and all
heads use the target's output matrix, as Medusa's own first version does, which makes the file small: 0.7 MB a
head for d = 576. Beside it lies HEADS.json with Medusa's names: medusa_num_heads, medusa_num_layers, hidden_size,
vocab_size, base_model_name_or_path.

The loss is the cross-entropy to the target's 64 likeliest tokens among the most frequent `--rows`, and in the
first 40 % of the training also the distance from the target's own state at t + 1 + i. Begun again it goes on from
HEADS.pt; HEADS.csv keeps agreement and overlap by head.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from scripts.training.data import Text
from scripts.training.draft_files import TargetFile
from scripts.training.loop import Data, Rows, Score, add_options, cross_entropy, rows_for, train

HEAD_WEIGHT = 0.8


class Block(nn.Module):
    """x + silu(W x + b); at first x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.silu(self.linear(x)).float()


def heads_on(size: int, n_heads: int, n_blocks: int) -> nn.ModuleList:
    """Their state has the published names, but for the output matrices."""
    return nn.ModuleList(nn.Sequential(*(Block(size) for _ in range(n_blocks))) for _ in range(n_heads))


def losses(
    heads: nn.ModuleList, output: Tensor, texts: list[Text], rows: Rows, state_weight: float, scores: list[Score]
) -> Tensor:
    """The weighted loss of all heads over the answers of `texts`; what happened is added to `scores`."""
    total = torch.zeros(())
    for i, (head, score) in enumerate(zip(heads, scores, strict=True)):
        used = [text for text in texts if len(text) > text.n_prompt + i]
        states = torch.from_numpy(_joined(used, "hidden", 0, -1 - i)).float()
        wanted = torch.from_numpy(_joined(used, "hidden", 1 + i, None)).float()
        ids, logs = (torch.from_numpy(_joined(used, name, 1 + i, None)) for name in ("top_ids", "top_logs"))
        own = head(states)
        loss = cross_entropy(functional.linear(own, output), *rows.targets(ids, logs), score)
        if state_weight:
            loss = loss + state_weight * functional.mse_loss(own, wanted) / wanted.pow(2).mean()
        total = total + HEAD_WEIGHT**i * loss
    return total


def _joined(texts: list[Text], name: str, first: int, end: int | None) -> NDArray[np.generic]:
    """An array of all answers, each from the end of its prompt on, cut to [first:end]."""
    return np.concatenate([getattr(text, name)[text.n_prompt - 1 :][first:end] for text in texts])


def save(heads: nn.ModuleList, target: TargetFile, options: argparse.Namespace) -> None:
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in heads.state_dict().items()}
    if options.own_output:
        output = torch.from_numpy(target.weight("output")).half()
        tensors |= {f"{i}.{options.blocks}.weight": output.clone() for i in range(options.heads)}
    unfinished = options.file.with_suffix(".part")
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.chmod(0o644)  # safetensors lets nobody else read it
    unfinished.replace(options.file)
    facts = {
        "medusa_num_heads": options.heads,
        "medusa_num_layers": options.blocks,
        "hidden_size": target.n_embd,
        "vocab_size": target.n_vocab,
        "base_model_name_or_path": options.target.stem,
    }
    options.file.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("data", type=Path, help="folder that training_data.py fills")
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=1, help="residual blocks of a head")
    parser.add_argument("--own-output", action="store_true", help="write the output matrices too")
    add_options(parser, tokens=600_000, batch=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target, data = TargetFile(options.target, output_only=True), Data(options.data)
    rows = rows_for(options, data, target.n_vocab)
    output = torch.from_numpy(target.weight("output")[rows.d2t])
    heads = heads_on(target.n_embd, options.heads, options.blocks)

    def loss_of(texts: list[Text], _rng: random.Random, state_weight: float, scores: list[Score]) -> Tensor:
        return losses(heads, output, texts, rows, state_weight, scores)

    train(
        heads,
        data,
        rows,
        options,
        n_scores=options.heads,
        states_until=0.4,
        loss_of=loss_of,
        save=lambda: save(heads, target, options),
    )


if __name__ == "__main__":
    main()
