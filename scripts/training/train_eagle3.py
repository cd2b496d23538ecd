"""Train an EAGLE-3 head for a llama on the text it writes itself, and write it as a GGUF.

    python -m scripts.training.data TARGET.gguf DATA          # or at the same time: new shards are picked up
    python -m scripts.training.train_eagle3 TARGET.gguf DATA HEAD.gguf [--tokens N] [--rows 8192] [--steps 3]
    python -m scripts.training.train_eagle3 TARGET.gguf DATA HEAD.gguf --check

EAGLE-3 (Li et al., arXiv 2503.01840): one decoder layer sees, at position p, the embedding of token p + 1 and
a state, and predicts token p + 2. The state comes from the inputs of three layers of the target (norm, fc);
further into a draft it is the layer's own last result. "Training-time test": every position is unrolled
`--steps` tokens deep on its own states, as it will be used. The loss is the cross-entropy to the target's 64
likeliest tokens, weighted 0.8^step, and in the first 40 % of the training also the distance from the target's
last hidden state. The output matrix is the target's, its most frequent `--rows` rows, and stays as it is;
the layer begins as the target's last one.

Begun again it goes on from HEAD.pt. Prints held-out agreement (the likeliest token is the target's) and
overlap (sum of min(p, q)) by step of the draft; HEAD.csv keeps them. `--check` trains nothing: it writes the
head as it is, disturbed by noise, and compares llama.cpp's logits with PyTorch's.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scripts.training.data import Text
from scripts.training.draft_files import TargetFile, write_eagle3
from scripts.training.eagle3_driver import HeadOnTarget
from scripts.training.layers import FeedForward, Norm, Rope, heads_of, load
from scripts.training.loop import Data, Rows, Score, add_options, cross_entropy, rows_for, train
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.quantize import quantize
from specdec_cli.settings import ModelSettings

WINDOW = 192
STEP_WEIGHT = 0.8


class Head(nn.Module):
    """The encoder and the decoder layer; `embeddings` [vocabulary, d] are the target's."""

    def __init__(self, target: TargetFile, d2t: NDArray[np.int64]) -> None:
        super().__init__()
        d, n_kv = target.n_embd, target.n_embd // target.n_head * target.n_head_kv
        self.n_head, self.n_head_kv = target.n_head, target.n_head_kv
        self.fc_norm, self.fc = Norm(3 * d, target.epsilon), nn.Linear(3 * d, d, bias=False)
        self.embedding_norm, self.state_norm = Norm(d, target.epsilon), Norm(d, target.epsilon)
        self.q, self.k, self.v = (nn.Linear(2 * d, n, bias=False) for n in (d, n_kv, n_kv))
        self.o = nn.Linear(d, d, bias=False)
        self.ffn_norm, self.ffn = Norm(d, target.epsilon), FeedForward(d, target.n_ff)
        self.output_norm = Norm(d, target.epsilon)
        self.output = nn.Linear(d, len(d2t), bias=False)
        self.output.weight.requires_grad = False
        self.rope = Rope(d // target.n_head, target.rope_base, 1024)

    def encode(self, features: Tensor) -> Tensor:
        """Inputs of three layers [..., 3 d] to states [..., d]."""
        return self.fc(self.fc_norm(features)).float()

    def unroll(self, embedded: list[Tensor], state: Tensor) -> Iterator[Tensor]:
        """States after each step [batch, n, d]; `embedded[i]` holds the embeddings that step i is given."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step, embedding in enumerate(embedded):
            both = torch.cat((self.embedding_norm(embedding), self.state_norm(state)), dim=-1)
            query = self.rope(heads_of(self.q(both), self.n_head), step)
            keys.append(self._shared(self.rope(heads_of(self.k(both), self.n_head_kv), step)))
            values.append(self._shared(heads_of(self.v(both), self.n_head_kv)))
            state = state + self.o(_attend(query, keys, values).transpose(1, 2).flatten(2)).float()
            state = state + self.ffn(self.ffn_norm(state)).float()
            yield state

    def _shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.n_head // self.n_head_kv, dim=1)

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """As a GGUF names them."""
        names = {
            "enc.output_norm": self.fc_norm,
            "fc": self.fc,
            "output_norm": self.output_norm,
            "output": self.output,
            "blk.0.attn_norm": self.embedding_norm,
            "blk.0.attn_norm_2": self.state_norm,
            "blk.0.attn_q": self.q,
            "blk.0.attn_k": self.k,
            "blk.0.attn_v": self.v,
            "blk.0.attn_output": self.o,
            "blk.0.ffn_norm": self.ffn_norm,
            "blk.0.ffn_gate": self.ffn.gate,
            "blk.0.ffn_up": self.ffn.up,
            "blk.0.ffn_down": self.ffn.down,
        }
        return {f"{name}.weight": part.weight.detach().float().numpy() for name, part in names.items()}


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Draft step i at position p sees the true prefix up to p (step 0), then its own steps 1 to i from p."""
    if len(keys) == 1:
        return functional.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    n = query.shape[-2]
    scale = query.shape[-1] ** -0.5
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    scores = (query @ keys[0].transpose(-1, -2) * scale).masked_fill(later, -torch.inf)
    own = [(query * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat((scores, *own), dim=-1).float().softmax(dim=-1).to(query.dtype)
    seen = weights[..., :n] @ values[0]
    for i, value in enumerate(values[1:]):
        seen = seen + weights[..., n + i : n + i + 1] * value
    return seen


def input_sizes(texts: list[Text]) -> NDArray[np.float32]:
    """Root mean square of each of the three inputs. The first tokens have states of their own kind and do not count."""
    return np.sqrt(np.mean([(text.inputs[8:].astype(np.float32) ** 2).mean(axis=(0, 2)) for text in texts], axis=0))


def begin(head: Head, target: TargetFile, d2t: NDArray[np.int64], sizes: NDArray[np.float32]) -> None:
    """First weights: the target's last layer on the state, its first on the embedding, fc passing on the last input."""
    d, last = target.n_embd, f"blk.{target.n_layers - 1}"
    whole = np.sqrt((sizes**2).mean())
    fc = np.concatenate((np.zeros((d, 2 * d)), np.eye(d)), axis=1)
    fc = fc * sizes[2] / 3 + np.random.default_rng(0).normal(size=fc.shape) * 0.02
    joined = {
        name: np.concatenate((target.weight(f"blk.0.attn_{name}") * 0.5, target.weight(f"{last}.attn_{name}")), axis=1)
        for name in "qkv"
    }
    load(
        head,
        {
            "fc_norm.weight": np.repeat(whole / sizes, d).astype(np.float32),
            "fc.weight": fc.astype(np.float32),
            "embedding_norm.weight": target.weight("blk.0.attn_norm"),
            "state_norm.weight": target.weight(f"{last}.attn_norm"),
            **{f"{name}.weight": weight.astype(np.float32) for name, weight in joined.items()},
            "o.weight": target.weight(f"{last}.attn_output"),
            "ffn_norm.weight": target.weight(f"{last}.ffn_norm"),
            **{f"ffn.{name}.weight": target.weight(f"{last}.ffn_{name}") for name in ("gate", "up", "down")},
            "output_norm.weight": target.weight("output_norm"),
            "output.weight": target.weight("output")[d2t],
        },
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows of texts, [b, w, ...]; rows without a target have probabilities of zero."""

    tokens: Tensor
    features: Tensor
    hidden: Tensor
    rows: Tensor
    probs: Tensor
    best: Tensor

    @classmethod
    def of(cls, texts: list[Text], rows: Rows, rng: random.Random) -> "Batch":
        width = min(WINDOW, max(len(text) for text in texts))
        parts: list[list[Tensor]] = [[], [], [], [], []]
        for text in texts:
            first = rng.randint(0, max(0, len(text) - width))
            for part, array in zip(
                parts,
                (text.tokens, text.inputs.reshape(len(text), -1), text.hidden, text.top_ids, text.top_logs),
                strict=True,
            ):
                window = torch.from_numpy(array[first : first + width])
                window = window.float() if window.is_floating_point() else window.long()
                filler = -torch.inf if array is text.top_logs else 0
                pad = (0, 0) * (window.dim() - 1) + (0, width - len(window))
                part.append(functional.pad(window, pad, value=filler))
        tokens, features, hidden, ids, logs = (torch.stack(part) for part in parts)
        return cls(tokens, features, hidden, *rows.targets(ids, logs))


def losses(head: Head, embeddings: Tensor, batch: Batch, state_weight: float, scores: list[Score]) -> Tensor:
    """The loss of as many steps as there are scores; what happened is added to them."""
    n_steps = len(scores)
    n = batch.tokens.shape[1] - n_steps
    embedded = [embeddings[batch.tokens[:, 1 + i : 1 + i + n]].float() for i in range(n_steps)]
    total = torch.zeros(())
    for i, state in enumerate(head.unroll(embedded, head.encode(batch.features[:, :n]))):
        at = slice(1 + i, 1 + i + n)
        wanted = batch.probs[:, at].sum(-1) > 0.5
        state = head.output_norm(state[wanted])
        targets = (part[:, at][wanted] for part in (batch.rows, batch.probs, batch.best))
        loss = cross_entropy(head.output(state), *targets, scores[i])
        weight = STEP_WEIGHT**i
        total = total + weight * loss
        if state_weight:
            hidden = batch.hidden[:, at][wanted]
            total = total + weight * state_weight * functional.mse_loss(state, hidden) / hidden.pow(2).mean()
    return total


def save(head: Head, target: TargetFile, options: argparse.Namespace, d2t: NDArray[np.int64]) -> None:
    """HEAD.gguf in float32 if asked for, else quantised by llama.cpp."""
    with tempfile.TemporaryDirectory(dir=options.file.parent) as folder:
        whole, small = Path(folder) / "whole.gguf", Path(folder) / "small.gguf"
        name = f"EAGLE-3 head for {options.target.stem}"
        write_eagle3(whole, target, head.tensors(), layers=options.layers, n_ff=target.n_ff, d2t=d2t, name=name)
        if options.type != "F32":
            quantize(whole, small, options.type, threads=1)
        (whole if options.type == "F32" else small).replace(options.file)


def check(target: TargetFile, options: argparse.Namespace) -> float:
    """Largest difference between llama.cpp's logits and PyTorch's, of all steps, on a head disturbed by noise."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    d2t = np.sort(rng.choice(target.n_vocab, options.rows, replace=False))
    head = Head(target, d2t)
    begin(head, target, d2t, np.ones(3, np.float32))
    with torch.no_grad():
        for name, p in head.named_parameters():
            p.add_(torch.randn_like(p) * (0.1 if "norm" in name else 0.02))
    options.type = "F32"
    save(head, target, options, d2t)
    tokens = rng.integers(target.n_vocab, size=48).tolist()
    embeddings = torch.from_numpy(target.weight("token_embd"))
    with LlamaModel(ModelSettings(options.target)) as model, HeadOnTarget(model, options.file) as pair:
        return max(_differences(pair, head, embeddings, tokens, torch.from_numpy(d2t), options.steps))


def _differences(
    pair: HeadOnTarget, head: Head, embeddings: Tensor, tokens: list[int], d2t: Tensor, n_steps: int
) -> Iterator[float]:
    _, features = pair.read(tokens)
    states = pair.encode(features)
    n = len(tokens) - n_steps
    with torch.no_grad():
        ours = head.encode(torch.from_numpy(features))
        yield _say("states of the encoder", ours, states)
        embedded = [embeddings[torch.tensor(tokens[1 + i : 1 + i + n])][None] for i in range(n_steps)]
        state = states[:n]
        for i, own in enumerate(head.unroll(embedded, ours[None, :n])):
            first = 0 if i == 0 else n - 1 + i  # of later steps only those of the last position
            logits, nexts = pair.step(tokens[1 + first : 1 + n + i], state, first)
            rows = head.output(head.output_norm(own[0, first and n - 1 :]))
            assert np.isneginf(np.delete(logits, d2t.numpy(), axis=1)).all()
            yield _say(f"logits of step {i + 1}", rows, logits[:, d2t.numpy()])
            state = nexts[-1:]


def _say(what: str, ours: Tensor, theirs: NDArray[np.float32]) -> float:
    difference = float((ours - torch.from_numpy(theirs)).abs().max())
    print(f"{what}: largest difference {difference:.4f}, deviation {float(ours.std()):.2f}")
    return difference / float(ours.std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("data", type=Path, help="folder that training_data.py fills")
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument("--steps", type=int, default=3, help="tokens each position is unrolled")
    parser.add_argument("--layers", type=lambda text: [int(n) for n in text.split(",")], default=[2, 15, 29])
    parser.add_argument("--type", default="Q8_0", help="number format of the file")
    parser.add_argument("--check", action="store_true")
    add_options(parser, tokens=1_500_000, batch=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = TargetFile(options.target)
    if options.check:
        difference = check(target, options)
        sys.exit(None if difference < 0.02 else f"The file is not the head: {difference:.3f} deviations apart.")
    data = Data(options.data)
    rows = rows_for(options, data, target.n_vocab)
    head = Head(target, rows.d2t)
    begin(head, target, rows.d2t, input_sizes(data.train[:32]))
    embeddings = torch.from_numpy(target.weight("token_embd")).to(torch.bfloat16)

    def loss_of(texts: list[Text], rng: random.Random, state_weight: float, scores: list[Score]) -> Tensor:
        return losses(head, embeddings, Batch.of(texts, rows, rng), state_weight, scores)

    train(
        head,
        data,
        rows,
        options,
        n_scores=options.steps,
        states_until=0.4,
        loss_of=loss_of,
        save=lambda: save(head, target, options, rows.d2t),
    )


if __name__ == "__main__":
    main()
