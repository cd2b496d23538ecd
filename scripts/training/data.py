"""Text that a target writes itself, with what a draft or a head learns from: the data of the trainings.

    python -m scripts.training.data TARGET.gguf FOLDER [--tokens 400000] [--layers 2,15,29|none] [--seed 0]

Many answers at once through llama.cpp, at temperatures of 0, 0.5 and 0.8. Each pass gives everything: the
next tokens, their 64 likeliest alternatives, the last hidden state and the inputs of the layers named. So
the features are those of the very file that will be drafted for, quantised or not, and no second pass is
needed. Begun again, it goes on where it stopped; another seed in the same folder adds other texts. A file
shard-SEED-NNNN.npz holds, for n tokens in s answers:

    tokens    int32 [n]            prompt and answer, one after another
    starts    int64 [s + 1]        where each begins, and n
    prompts   int32 [s]            length of each prompt
    heats     float32 [s]          temperature
    inputs    float16 [n, l, d]    inputs of the l layers named, as llama.cpp hands them out
    hidden    float16 [n, d]       the state after the last norm; zeros before the end of the prompt
    top_ids   int32 [n, 64]        likeliest next tokens, zeros before the end of the prompt
    top_logs  float16 [n, 64]      their log probabilities at temperature 1, -inf before the end of the prompt
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from numpy.typing import NDArray

from scripts.training.eagle3_driver import layer_input, set_layer_input
from scripts.training.instructions import instruction
from specdec_cli.generation.prompts import conversation
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings

TOP = 64
HEATS, HEAT_WEIGHTS = (0.0, 0.5, 0.8), (4, 3, 3)
LENGTHS = (96, 160, 256)
LONGEST_PROMPT = 300
PER_SHARD = 48
_LOOP = 24

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Answer:
    """One prompt and what the target has written after it so far."""

    prompt: list[int]
    heat: float
    limit: int
    tokens: list[int] = field(default_factory=list)
    inputs: list[NDArray[np.float16]] = field(default_factory=list)
    hidden: list[NDArray[np.float16]] = field(default_factory=list)
    top_ids: list[NDArray[np.int32]] = field(default_factory=list)
    top_logs: list[NDArray[np.float16]] = field(default_factory=list)

    @property
    def written(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def loops(self) -> bool:
        """Whether the end repeats what stands before it: small models get stuck, and one round teaches enough."""
        end = self.tokens[-_LOOP:]
        before = self.tokens[len(self.prompt) : -_LOOP]
        return self.written > 3 * _LOOP and any(before[i : i + _LOOP] == end for i in range(len(before) - _LOOP + 1))


class Writer:
    """A llama.cpp context with many sequences that all write at once. `close` it."""

    def __init__(self, model: LlamaModel, n_sequences: int, layers: tuple[int, ...], threads: int) -> None:
        self._n, self._layers = n_sequences, layers
        self._n_embd: int = llama_cpp.llama_model_n_embd(model.handle)
        self._n_vocab = model.n_vocab
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_sequences * (LONGEST_PROMPT + max(LENGTHS) + 4)
        params.n_batch = params.n_ubatch = max(LONGEST_PROMPT, n_sequences)
        params.n_seq_max = n_sequences
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True  # the last hidden state, and then of every token
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            sys.exit("llama.cpp could not make a context of so many sequences.")
        self._batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self._memory = llama_cpp.llama_get_memory(self._context)
        for layer in layers:
            set_layer_input(self._context, layer, True)

    def evaluate(self, entries: list[tuple[int, int, int]]) -> tuple[Floats, NDArray[np.float16], NDArray[np.float16]]:
        """(token, position, sequence) of each entry. Logits [n, vocabulary] (a view), inputs, hidden states."""
        n = self._batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            self._batch.token[i], self._batch.pos[i] = token, position
            self._batch.n_seq_id[i], self._batch.seq_id[i][0], self._batch.logits[i] = 1, sequence, 1
        if llama_cpp.llama_decode(self._context, self._batch) != 0:
            sys.exit("llama.cpp could not evaluate a batch.")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (n, self._n_vocab))
        inputs = np.empty((n, len(self._layers), self._n_embd), np.float16)
        for i, layer in enumerate(self._layers):
            inputs[:, i] = self._copied(layer_input(self._context, layer), n)
        return logits, inputs, self._copied(llama_cpp.llama_get_embeddings(self._context), n)

    def _copied(self, pointer: Any, n: int) -> NDArray[np.float16]:
        return np.clip(np.ctypeslib.as_array(pointer, (n, self._n_embd)), -6e4, 6e4).astype(np.float16)

    def forget(self, sequence: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


def write(model: LlamaModel, writer: Writer, n_sequences: int, seed: int) -> Iterator[Answer]:
    """Finished answers, without end: whoever is done makes room for the next prompt."""
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    ends = model.end_tokens  # asks llama.cpp about every token there is
    running: dict[int, Answer] = {}
    while True:
        for sequence in range(n_sequences):
            if sequence not in running:
                answer = running[sequence] = _next_prompt(model, rng)
                entries = [(token, i, sequence) for i, token in enumerate(answer.prompt)]
                logits, inputs, hidden = writer.evaluate(entries)
                answer.tokens = list(answer.prompt)
                _take([answer], logits[-1:], hidden[-1:], noise)
                answer.inputs.append(inputs)
        order = sorted(running)
        entries = [(running[s].tokens[-1], len(running[s].tokens) - 1, s) for s in order]
        logits, inputs, hidden = writer.evaluate(entries)
        for i, sequence in enumerate(order):
            running[sequence].inputs.append(inputs[i : i + 1])
        _take([running[s] for s in order], logits, hidden, noise)
        for sequence in order:
            answer = running[sequence]
            if answer.tokens[-1] in ends or answer.written > answer.limit or answer.loops:
                writer.forget(sequence)
                yield running.pop(sequence)


def _take(answers: list[Answer], logits: Floats, hidden: NDArray[np.float16], noise: torch.Generator) -> None:
    """Write down what the target thinks of the next token, and choose one among the likeliest."""
    rows = torch.from_numpy(np.ascontiguousarray(logits))
    top, ids = rows.topk(TOP)
    logs = top - rows.logsumexp(dim=1, keepdim=True)
    gumbel = -torch.empty_like(top).exponential_(generator=noise).log()
    heats = torch.tensor([[a.heat] for a in answers])
    chosen = ids.gather(1, (top + heats * gumbel).argmax(dim=1, keepdim=True))
    for i, answer in enumerate(answers):
        answer.tokens.append(int(chosen[i]))
        answer.hidden.append(hidden[i])
        answer.top_ids.append(ids[i].numpy().astype(np.int32))
        answer.top_logs.append(logs[i].numpy().astype(np.float16))


def _next_prompt(model: LlamaModel, rng: random.Random) -> Answer:
    while True:
        talk = conversation(model, system=None, thinking=None, now=datetime.now)
        text = instruction(rng)
        prompt = talk.ask(text) if talk else model.tokenize(text, add_special=True, parse_special=False)
        if len(prompt) <= LONGEST_PROMPT:
            (heat,) = rng.choices(HEATS, HEAT_WEIGHTS)
            return Answer(prompt, heat, rng.choice(LENGTHS))


def save(answers: list[Answer], path: Path) -> None:
    """One shard. The last token of an answer was chosen but never evaluated: it is left out."""
    tokens, inputs, hidden, top_ids, top_logs = [], [], [], [], []
    for a in answers:
        before = len(a.prompt) - 1
        tokens += a.tokens[:-1]
        inputs += a.inputs
        hidden += [np.zeros((before, a.hidden[0].shape[0]), np.float16), np.stack(a.hidden)]
        top_ids += [np.zeros((before, TOP), np.int32), np.stack(a.top_ids)]
        top_logs += [np.full((before, TOP), -np.inf, np.float16), np.stack(a.top_logs)]
    with _whole(path) as unfinished:
        np.savez(
            unfinished,
            tokens=np.array(tokens, np.int32),
            starts=np.cumsum([0, *(len(a.tokens) - 1 for a in answers)]),
            prompts=np.array([len(a.prompt) for a in answers], np.int32),
            heats=np.array([a.heat for a in answers], np.float32),
            inputs=np.concatenate(inputs),
            hidden=np.concatenate(hidden),
            top_ids=np.concatenate(top_ids),
            top_logs=np.concatenate(top_logs),
        )


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    unfinished = path.with_name(f"{path.name}.part.npz")
    yield unfinished
    unfinished.replace(path)


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt with its answer, as a shard holds it."""

    tokens: NDArray[np.int32]
    n_prompt: int
    heat: float
    inputs: NDArray[np.float16]
    hidden: NDArray[np.float16]
    top_ids: NDArray[np.int32]
    top_logs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens)


def shards(folder: Path) -> list[Path]:
    """The finished shards, oldest first."""
    return sorted(path for path in folder.glob("shard-*.npz") if ".part" not in path.name)


def read(path: Path) -> list[Text]:
    """All texts of a shard."""
    with np.load(path) as file:
        data = dict(file)
    spans = zip(data["starts"][:-1], data["starts"][1:], strict=True)
    return [
        Text(
            data["tokens"][a:b],
            int(data["prompts"][i]),
            float(data["heats"][i]),
            *(data[name][a:b] for name in ("inputs", "hidden", "top_ids", "top_logs")),
        )
        for i, (a, b) in enumerate(spans)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=400_000, help="written tokens to end with")
    parser.add_argument("--sequences", type=int, default=48)
    parser.add_argument("--layers", default="2,15,29", help="none: for Medusa, and architectures that tell no inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    own = [path for path in shards(options.folder) if path.name.startswith(f"shard-{options.seed}-")]
    done = sum(len(text) - text.n_prompt for path in own for text in read(path))
    number = len(own)
    layers = () if options.layers == "none" else tuple(int(layer) for layer in options.layers.split(","))
    began, before = time.perf_counter(), done
    with LlamaModel(ModelSettings(options.target)) as model:
        writer = Writer(model, options.sequences, layers, options.threads)
        answers: list[Answer] = []
        for answer in write(model, writer, options.sequences, seed=1000 * options.seed + number):
            answers.append(answer)
            done += answer.written
            if len(answers) == PER_SHARD or done >= options.tokens:
                save(answers, options.folder / f"shard-{options.seed}-{number:04}.npz")
                answers, number = [], number + 1
                speed = (done - before) / (time.perf_counter() - began)
                print(f"{done:,} tokens in {number} shards, {speed:.0f} tokens/s", flush=True)
            if done >= options.tokens:
                break
        writer.close()


if __name__ == "__main__":
    main()
