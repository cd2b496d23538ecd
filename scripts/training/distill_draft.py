"""Distil a small llama out of a bigger one, on the text the bigger one writes itself, and write it as a GGUF.

    python -m scripts.training.data TARGET.gguf DATA
    python -m scripts.training.distill_draft TARGET.gguf DATA DRAFT.gguf [--layers 0,1,29] [--tokens N]

The draft begins as the target's layers named, with its embeddings, norm, output matrix and tokenizer; only the
layers and the last norm learn. The loss is the cross-entropy to the target's 64 likeliest tokens (their KL
divergence but for a constant), over the most frequent `--rows` tokens alone, which makes a step several times
cheaper; in the first 30 % of the training also the distance from the target's last hidden state. The file has the
target's whole vocabulary. Begun again it goes on from DRAFT.pt; DRAFT.csv keeps agreement and overlap.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scripts.training.data import Text
from scripts.training.draft_files import TargetFile, write_llama
from scripts.training.layers import FeedForward, Norm, Rope, heads_of, load
from scripts.training.loop import Data, Rows, Score, add_options, cross_entropy, rows_for, train
from specdec_cli.llama.quantize import quantize

WINDOW = 256


class Layer(nn.Module):
    def __init__(self, target: TargetFile) -> None:
        super().__init__()
        d, n_kv = target.n_embd, target.n_embd // target.n_head * target.n_head_kv
        self._n_head, self._n_head_kv = target.n_head, target.n_head_kv
        self.attn_norm, self.ffn_norm = (Norm(d, target.epsilon) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(d, n, bias=False) for n in (d, n_kv, n_kv, d))
        self.ffn = FeedForward(d, target.n_ff)

    def forward(self, state: Tensor, rope: Rope) -> Tensor:
        x = self.attn_norm(state)
        query = rope(heads_of(self.q(x), self._n_head))
        key, value = rope(heads_of(self.k(x), self._n_head_kv)), heads_of(self.v(x), self._n_head_kv)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        state = state + self.o(seen.transpose(1, 2).flatten(2)).float()
        return state + self.ffn(self.ffn_norm(state)).float()

    def parts(self) -> dict[str, nn.Module]:
        """By the names of a GGUF."""
        return {
            "attn_norm": self.attn_norm,
            "attn_q": self.q,
            "attn_k": self.k,
            "attn_v": self.v,
            "attn_output": self.o,
            "ffn_norm": self.ffn_norm,
            "ffn_gate": self.ffn.gate,
            "ffn_up": self.ffn.up,
            "ffn_down": self.ffn.down,
        }


class Draft(nn.Module):
    """Embeddings in, states after the last norm out."""

    def __init__(self, target: TargetFile, layers: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(target) for _ in layers)
        self.output_norm = Norm(target.n_embd, target.epsilon)
        self._rope = Rope(target.n_embd // target.n_head, target.rope_base, WINDOW)
        load(self.output_norm, {"weight": target.weight("output_norm")})
        for source, layer in zip(layers, self.layers, strict=True):
            for name, part in layer.parts().items():
                load(part, {"weight": target.weight(f"blk.{source}.{name}")})

    def forward(self, embedded: Tensor) -> Tensor:
        state = embedded
        for layer in self.layers:
            state = layer(state, self._rope)
        return self.output_norm(state)

    def tensors(self, target: TargetFile) -> dict[str, NDArray[np.generic]]:
        """As a GGUF names them, with the target's embeddings."""
        parts = {f"blk.{i}.{name}": part for i, layer in enumerate(self.layers) for name, part in layer.parts().items()}
        parts["output_norm"] = self.output_norm
        own = {f"{name}.weight": part.weight.detach().float().numpy() for name, part in parts.items()}
        ends = {"token_embd.weight": target.weight("token_embd")}
        if not target.is_tied:
            ends["output.weight"] = target.weight("output")
        return {**ends, **own}


def losses(
    draft: Draft, ends: tuple[Tensor, Tensor], texts: list[Text], rows: Rows, state_weight: float, score: Score
) -> Tensor:
    """Over the answers in the first WINDOW tokens; `ends`: all embeddings, and those rows of the output matrix."""
    width = min(WINDOW, max(len(text) for text in texts))
    names = ("tokens", "hidden", "top_ids", "top_logs")
    tokens, hidden, ids, logs = (
        torch.stack([_cut(getattr(text, name), width, -torch.inf if name == "top_logs" else 0) for text in texts])
        for name in names
    )
    state = draft(ends[0][tokens].float())
    wanted = logs[..., 0] > -torch.inf
    own = state[wanted]
    loss = cross_entropy(functional.linear(own, ends[1]), *rows.targets(ids[wanted], logs[wanted]), score)
    if state_weight:
        aim = hidden[wanted]
        loss = loss + state_weight * functional.mse_loss(own, aim) / aim.pow(2).mean()
    return loss


def _cut(array: NDArray[np.generic], width: int, filler: float) -> Tensor:
    part = torch.from_numpy(array[:width])
    part = part.float() if part.is_floating_point() else part.long()
    return functional.pad(part, (0, 0) * (part.dim() - 1) + (0, width - len(part)), value=filler)


def save(draft: Draft, target: TargetFile, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.file.parent) as folder:
        whole, small = Path(folder) / "whole.gguf", Path(folder) / "small.gguf"
        name = f"Draft for {options.target.stem}"
        write_llama(whole, target, draft.tensors(target), n_layers=len(draft.layers), n_ff=target.n_ff, name=name)
        if options.type != "F32":
            quantize(whole, small, options.type, threads=1)
        (whole if options.type == "F32" else small).replace(options.file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("data", type=Path, help="folder that training_data.py fills")
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument("--layers", type=lambda text: [int(n) for n in text.split(",")], default=[0, 1, 29])
    parser.add_argument("--type", default="Q4_0", help="number format of the file")
    add_options(parser, tokens=1_500_000, batch=6)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target, data = TargetFile(options.target), Data(options.data)
    rows = rows_for(options, data, target.n_vocab)
    draft = Draft(target, options.layers)
    embeddings = torch.from_numpy(target.weight("token_embd")).to(torch.bfloat16)
    output = torch.from_numpy(target.weight("output")[rows.d2t])

    def loss_of(texts: list[Text], _rng: random.Random, state_weight: float, scores: list[Score]) -> Tensor:
        return losses(draft, (embeddings, output), texts, rows, state_weight, scores[0])

    train(
        draft,
        data,
        rows,
        options,
        n_scores=1,
        states_until=0.3,
        loss_of=loss_of,
        save=lambda: save(draft, target, options),
    )


if __name__ == "__main__":
    main()
