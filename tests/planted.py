"""Tiny GGUF models whose next-token distribution is known exactly.

A planted model is a Markov chain dressed as a transformer: real llama.cpp, real files, real caches, and a
distribution that a test can write down. `P[s, v]` is the probability of token v after token s, float64,
shape [V, V], rows sum to 1. Why the model computes it:

1. The embedding width is V and `token_embd` is the identity, so token s enters the residual stream as the
   one-hot vector e_s.
2. A layer adds to the stream only through its output projections (attention output, `ffn_down`, and their
   likes in other architectures). These are zero, so e_s leaves the last layer as it came. Everything else
   in a layer is random: keys, values and states are computed and cached like those of any model.
3. RMS norm divides by sqrt(mean(x^2) + eps). For e_s the mean is 1/V, so the norm turns e_s into
   sqrt(V) e_s. With eps = 1e-12 the relative error is V * eps / 2, far below float32.
4. `output.weight[v, s] = log P[s, v] / sqrt(V)`, so logit v = sqrt(V) * output.weight[v, s] = log P[s, v].

Probability zero becomes `LOG_ZERO`, because 0 * -inf would poison the other rows.

`mixing` > 0 gives up the exactness to make logits depend on the whole prefix, for tests of caches and
rollback: the output projections are random and a layer adds a vector about `mixing` times as long as e_s.
Their columns have mean zero: the sum of the stream stays 1, so a logit that is the same in every row of P
(a token that never comes, a constant chance of EOS) is only rescaled by the norm. The sums over layers and
prefixes make no further promise.

The chains are written in four architectures, one for each kind of memory llama.cpp has: "llama" (plain
cache), "gemma3" (every other layer has a sliding window; embeddings arrive scaled by sqrt(V), which the norm
undoes), "mamba" (recurrent), "lfm2" (recurrent and attention layers by turns).
"""

import itertools
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from gguf import TokenType
from numpy.typing import DTypeLike, NDArray

Chain = NDArray[np.float64]
"""Next-token probabilities, shape [V, V]; row = token before, column = token after."""

Arch = Literal["llama", "gemma3", "mamba", "lfm2"]
VocabKind = Literal["llama", "gpt2"]
Tensors = dict[str, NDArray[np.generic]]

UNK, BOS, EOS = 0, 1, 2
N_SPECIAL = 3
BYTES = range(N_SPECIAL, N_SPECIAL + 256)
"""Ids of the byte tokens, in a vocabulary that has them."""

LOG_ZERO = -80.0
"""The logit of a token that never comes: a float32 softmax gives it 2e-35."""

RMS_EPSILON = 1e-12
DEFAULT_LAYERS: Mapping[Arch, int] = {"llama": 1, "gemma3": 2, "mamba": 1, "lfm2": 2}


# --- chains ---------------------------------------------------------------------------------------------


def random_chain(
    n_vocab: int,
    seed: int,
    sharpness: float = 2.0,
    *,
    p_eos: float = 0.0,
    eos: int = EOS,
    never: Iterable[int] = (UNK, BOS),
) -> Chain:
    """A random P, shape [n_vocab, n_vocab].

    `sharpness` is the standard deviation of log P within a row (0: uniform; 4: nearly greedy). `eos` comes
    with probability `p_eos` from every state, tokens in `never` do not come at all. Both have rows all the
    same: a prompt may hold any token.
    """
    weights = np.exp(sharpness * np.random.default_rng(seed).normal(size=(n_vocab, n_vocab)))
    weights[:, [*never, eos]] = 0.0
    chain = (1.0 - p_eos) * weights / weights.sum(axis=1, keepdims=True)
    chain[:, eos] = p_eos
    return chain


def disturbed(chain: Chain, amount: float, seed: int) -> Chain:
    """A draft for `chain`: every log probability moved by normal noise of deviation `amount`, same zeros."""
    weights = chain * np.exp(amount * np.random.default_rng(seed).normal(size=chain.shape))
    return weights / weights.sum(axis=1, keepdims=True)


def log_chain(chain: Chain) -> Chain:
    """The logits that a planted model gives: log P, with `LOG_ZERO` for zero. Shape [V, V]."""
    return np.log(np.maximum(chain, np.exp(LOG_ZERO)))


def overlap(p: Chain, q: Chain) -> NDArray[np.float64]:
    """1 - TV by state, shape [V]: the best chance of acceptance that any rule can give a draft token."""
    return np.minimum(p, q).sum(axis=1)


def coupled_rate(p: Chain, q: Chain) -> NDArray[np.float64]:
    """Chance that draft and target choose the same token under shared Gumbel noise, by state, shape [V].

    Both choose v when no u beats it in either race: 1 / sum_u max(p_u / p_v, q_u / q_v).
    """
    return np.array([_same_choice(*rows) for rows in zip(p, q, strict=True)])


def _same_choice(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    both = (p > 0) & (q > 0)
    beaten_by = np.maximum(p[None, :] / p[both, None], q[None, :] / q[both, None])  # [v, u]
    return float((1.0 / beaten_by.sum(axis=1)).sum())


# --- vocabularies ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vocab:
    """A tokenizer as GGUF stores it. Variants: `dataclasses.replace`, `renamed`, `padded`."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    kind: str = "llama"
    pre: str = "default"
    merges: tuple[str, ...] = ()
    bos: int = BOS
    eos: int = EOS
    unk: int = UNK
    add_bos: bool = True
    add_eos: bool = False
    chat_template: str | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def renamed(self, names: Mapping[int, str]) -> "Vocab":
        """The same vocabulary with other texts for some ids."""
        return replace(self, tokens=tuple(names.get(i, text) for i, text in enumerate(self.tokens)))

    def padded(self, n_pad: int) -> "Vocab":
        """`n_pad` unused tokens more at the end, as published models have to fill up a round size."""
        return replace(
            self,
            tokens=(*self.tokens, *(f"<|unused_{i}|>" for i in range(n_pad))),
            types=self.types + (TokenType.UNUSED,) * n_pad,
            scores=self.scores + (-1000.0,) * n_pad,
        )


def make_vocab(n_vocab: int, kind: VocabKind = "llama") -> Vocab:
    """<unk>, <s>, </s>, 256 byte tokens if they fit, and words: " a", " b", ... " 9", " aa", " ab", ...

    "llama" is SentencePiece-like (the space alone is its first word), "gpt2" is byte-pair encoding. Words
    are prefix-closed, so that text made of them comes back as the same ids. Without byte tokens
    (n_vocab < 259) llama.cpp aborts the process when it has to tokenize anything else: give such a model
    ids, or words only.
    """
    space, encode = ("▁", _hex_bytes) if kind == "llama" else ("Ġ", _unicode_bytes)
    in_bytes = encode() if n_vocab >= N_SPECIAL + 256 else []
    byte_type = TokenType.BYTE if kind == "llama" else TokenType.NORMAL
    n_words = n_vocab - N_SPECIAL - len(in_bytes)
    lone_space = [""] if kind == "llama" else []
    words = list(itertools.islice(itertools.chain(lone_space, _words()), n_words))
    return Vocab(
        tokens=("<unk>", "<s>", "</s>", *in_bytes, *(space + word for word in words)),
        types=(TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[byte_type] * len(in_bytes))
        + (TokenType.NORMAL,) * n_words,
        scores=(0.0,) * (N_SPECIAL + len(in_bytes)) + tuple(-float(i) for i in range(n_words)),
        kind=kind,
        merges=tuple(f"{space}{word[:-1]} {word[-1]}" for word in words) if kind == "gpt2" else (),
    )


def _words() -> Iterator[str]:
    letters = string.ascii_lowercase + string.ascii_uppercase + string.digits
    for length in itertools.count(1):
        yield from ("".join(word) for word in itertools.product(letters, repeat=length))


def _hex_bytes() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _unicode_bytes() -> list[str]:
    """GPT-2's alphabet: a printable character for each byte, in byte order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    substitutes = itertools.count(256)
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


# --- files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlantedPair:
    """Two planted files with one vocabulary, and what they compute."""

    target: Path
    draft: Path
    p: Chain
    q: Chain


def write_pair(folder: Path, n_vocab: int = 320, *, amount: float = 0.7, seed: int = 0) -> PlantedPair:
    """target.gguf from a random P and draft.gguf from a disturbed P. They write words only, never EOS."""
    quiet = (UNK, BOS, *BYTES) if n_vocab > N_SPECIAL + 256 else (UNK, BOS)
    p = random_chain(n_vocab, seed, never=quiet)
    q = disturbed(p, amount, seed + 1)
    target = write_planted(folder / "target.gguf", p)
    draft = write_planted(folder / "draft.gguf", q)
    return PlantedPair(target, draft, p, q)


def write_planted(
    path: Path,
    chain: Chain,
    *,
    arch: Arch = "llama",
    vocab: Vocab | None = None,
    n_vocab_pad: int = 0,
    pad_logit: float = 0.0,
    mixing: float = 0.0,
    seed: int = 0,
    n_ctx_train: int = 4096,
    n_layers: int | None = None,
    n_head: int = 4,
    n_ff: int | None = None,
    window: int = 16,
    dtype: DTypeLike = np.float32,
) -> Path:
    """Write the model of `chain` (see the module's text) and return its path.

    V / n_head, the size of a head, must be even. `n_vocab_pad` adds unused tokens beyond V, whose logits
    are `pad_logit` after any token of the chain; after an unused token every logit is 0. `seed` draws the
    weights that do not matter unless `mixing` > 0. `window` is the sliding window of "gemma3". `dtype`
    (float32 or float16) is that of the matrices; `n_layers`, `n_head`, `n_ff` make any shape for timing.
    """
    n_embd = len(chain)
    vocab = (vocab or make_vocab(n_embd)).padded(n_vocab_pad)
    assert n_embd % n_head == 0, "the heads share the width evenly"
    assert n_embd // n_head % 2 == 0, "rotary positions turn pairs of numbers"
    assert len(vocab) == n_embd + n_vocab_pad, "one row of the chain for each token"
    shape = _Shape(n_embd, n_layers or DEFAULT_LAYERS[arch], n_head, n_ff or 2 * n_embd, window, n_ctx_train)
    weights = _Weights(seed, np.dtype(dtype), mixing)
    ends = _ends(chain, n_vocab_pad, pad_logit, np.dtype(dtype))
    final_norm = "token_embd_norm" if arch == "lfm2" else "output_norm"
    ends[f"{final_norm}.weight"] = np.ones(n_embd, np.float32)
    layers = (
        {f"blk.{i}.{name}": tensor for name, tensor in _LAYERS[arch](weights, shape, i).items()}
        for i in range(shape.n_layers)
    )
    _write(path, arch, vocab, shape, itertools.chain([ends], layers))
    return path


def write_tiny_swa(path: Path, seed: int, n_vocab: int = 320, window: int = 16) -> Path:
    """A model with a sliding window whose logits depend on the prefix."""
    chain = random_chain(n_vocab, seed)
    return write_planted(path, chain, arch="gemma3", mixing=1.0, seed=seed, window=window)


def write_tiny_mamba(path: Path, seed: int, n_vocab: int = 320) -> Path:
    """A recurrent model whose logits depend on the prefix: its memory cannot give back single tokens."""
    return write_planted(path, random_chain(n_vocab, seed), arch="mamba", mixing=1.0, seed=seed)


def write_tiny_hybrid(path: Path, seed: int, n_vocab: int = 320) -> Path:
    """A recurrent layer, then attention; logits depend on the prefix. Rolls back only with `n_rs_seq` > 0."""
    return write_planted(path, random_chain(n_vocab, seed), arch="lfm2", mixing=1.0, seed=seed)


def write_vocab_only(path: Path, vocab: Vocab) -> Path:
    """A tokenizer without weights, to be opened with `vocab_only`."""
    _write(path, "llama", vocab, _Shape(64, 1, 4, 128, 0, 4096), [])
    return path


@dataclass(frozen=True, slots=True)
class _Shape:
    n_embd: int
    n_layers: int
    n_head: int
    n_ff: int
    window: int
    n_ctx_train: int

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_head_kv(self) -> list[int]:
        """Of a hybrid: recurrent layers (even) have no keys."""
        return [self.n_head * (layer % 2) for layer in range(self.n_layers)]


def _write(path: Path, arch: Arch, vocab: Vocab, shape: _Shape, groups: Iterable[Tensors]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    _add_shape(writer, arch, shape)
    add_vocab(writer, vocab)
    for name, tensor in itertools.chain.from_iterable(group.items() for group in groups):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, arch: Arch, shape: _Shape) -> None:
    recurrent = arch == "mamba"
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(0 if recurrent else shape.n_ff)
    writer.add_head_count(0 if recurrent else shape.n_head)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    if arch == "gemma3":
        writer.add_sliding_window(shape.window)
        writer.add_sliding_window_pattern(2)
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    if arch == "lfm2":
        writer.add_head_count_kv(shape.n_head_kv)
        writer.add_shortconv_l_cache(_CONV)
        writer.add_vocab_size(shape.n_embd)
    if recurrent:
        writer.add_ssm_conv_kernel(_CONV)
        writer.add_ssm_inner_size(2 * shape.n_embd)
        writer.add_ssm_state_size(_STATE)
        writer.add_ssm_time_step_rank(_RANK)


def add_vocab(writer: gguf.GGUFWriter, vocab: Vocab) -> None:
    writer.add_tokenizer_model(vocab.kind)
    writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    writer.add_token_scores(vocab.scores)
    writer.add_token_types([int(kind) for kind in vocab.types])
    if vocab.kind == "gpt2":
        writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(vocab.bos)
    writer.add_eos_token_id(vocab.eos)
    writer.add_unk_token_id(vocab.unk)
    writer.add_add_bos_token(vocab.add_bos)
    writer.add_add_eos_token(vocab.add_eos)
    if vocab.chat_template is not None:
        writer.add_chat_template(vocab.chat_template)


# --- weights --------------------------------------------------------------------------------------------

_CONV, _STATE, _RANK = 4, 8, 4
"""Of the recurrent layers: taps of the convolution, size of a state, rank of the time step."""


class _Weights:
    """Draws matrices. As GGUF has them: shape [n_out, n_in]."""

    def __init__(self, seed: int, dtype: np.dtype[np.generic], mixing: float) -> None:
        self.mixing = mixing
        self.dtype = dtype
        self._rng = np.random.default_rng(seed)

    def inner(self, n_out: int, n_in: int) -> NDArray[np.generic]:
        """Keeps the size of numbers: from RMS 1 to RMS 1."""
        return (self._rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(self.dtype)

    def centred(self, n_out: int, n_in: int) -> NDArray[np.generic]:
        """Like `inner`, its results sum to 0."""
        matrix = self.inner(n_out, n_in)
        return matrix - matrix.mean(axis=0, dtype=np.float64).astype(self.dtype)

    def back(self, n_out: int, n_in: int) -> NDArray[np.generic]:
        """Back into the residual stream: from RMS 1 to a vector of length `mixing` that sums to 0."""
        return (self.centred(n_out, n_in) * (self.mixing / np.sqrt(n_out))).astype(self.dtype)


def _ends(chain: Chain, n_pad: int, pad_logit: float, dtype: np.dtype[np.generic]) -> Tensors:
    """Embedding and output matrix, both [V + n_pad, V]."""
    n_embd = len(chain)
    embedding = np.eye(n_embd + n_pad, n_embd)
    logits = np.vstack([log_chain(chain).T, np.full((n_pad, n_embd), pad_logit)])
    return {
        "token_embd.weight": embedding.astype(dtype),
        "output.weight": (logits / np.sqrt(n_embd)).astype(dtype),
    }


def _llama_layer(w: _Weights, shape: _Shape, _layer: int) -> Tensors:
    return {
        **_keys(w, shape),
        "attn_output.weight": w.back(shape.n_embd, shape.n_embd),
        **_feed_forward(w, shape),
        "ffn_down.weight": w.back(shape.n_embd, shape.n_ff),
    }


def _gemma3_layer(w: _Weights, shape: _Shape, _layer: int) -> Tensors:
    """The norms after the projections do the mixing: they bring results to RMS 1, as the scaled e_s has."""
    post_norm = np.full(shape.n_embd, w.mixing, np.float32)
    return {
        **_keys(w, shape),
        **_head_norms(shape),
        "attn_output.weight": w.centred(shape.n_embd, shape.n_embd),
        "post_attention_norm.weight": post_norm,
        **_feed_forward(w, shape),
        "ffn_down.weight": w.centred(shape.n_embd, shape.n_ff),
        "post_ffw_norm.weight": post_norm,
    }


def _lfm2_layer(w: _Weights, shape: _Shape, layer: int) -> Tensors:
    n = shape.n_embd
    if shape.n_head_kv[layer]:
        return {**_llama_layer(w, shape, layer), **_head_norms(shape)}
    return {
        "attn_norm.weight": np.ones(n, np.float32),
        "shortconv.conv.weight": w.inner(n, _CONV).astype(np.float32),
        "shortconv.in_proj.weight": w.inner(3 * n, n),
        "shortconv.out_proj.weight": w.back(n, n),
        **_feed_forward(w, shape),
        "ffn_down.weight": w.back(n, shape.n_ff),
    }


def _mamba_layer(w: _Weights, shape: _Shape, _layer: int) -> Tensors:
    n, inner = shape.n_embd, 2 * shape.n_embd
    return {
        "attn_norm.weight": np.ones(n, np.float32),
        "ssm_in.weight": w.inner(2 * inner, n),
        "ssm_conv1d.weight": w.inner(inner, _CONV).astype(np.float32),
        "ssm_conv1d.bias": np.zeros(inner, np.float32),
        "ssm_x.weight": w.inner(_RANK + 2 * _STATE, inner),
        "ssm_dt.weight": w.inner(inner, _RANK),
        "ssm_dt.bias": np.zeros(inner, np.float32),
        "ssm_a": np.tile(-np.arange(1, _STATE + 1, dtype=np.float32) / _STATE, (inner, 1)),
        "ssm_d": np.ones(inner, np.float32),
        "ssm_out.weight": w.back(n, inner),
    }


def _keys(w: _Weights, shape: _Shape) -> Tensors:
    n = shape.n_embd
    return {
        "attn_norm.weight": np.ones(n, np.float32),
        **{f"attn_{name}.weight": w.inner(n, n) for name in "qkv"},
    }


def _head_norms(shape: _Shape) -> Tensors:
    return {f"attn_{name}_norm.weight": np.ones(shape.head_dim, np.float32) for name in "qk"}


def _feed_forward(w: _Weights, shape: _Shape) -> Tensors:
    return {
        "ffn_norm.weight": np.ones(shape.n_embd, np.float32),
        "ffn_gate.weight": w.inner(shape.n_ff, shape.n_embd),
        "ffn_up.weight": w.inner(shape.n_ff, shape.n_embd),
    }


_LAYERS: Mapping[Arch, Callable[[_Weights, _Shape, int], Tensors]] = {
    "llama": _llama_layer,
    "gemma3": _gemma3_layer,
    "mamba": _mamba_layer,
    "lfm2": _lfm2_layer,
}


def write_split(source: Path, folder: Path, stem: str, n_parts: int = 2) -> list[Path]:
    """The model in parts, as llama.cpp's gguf-split writes them: only the first one says what it is."""
    reader = gguf.GGUFReader(source)
    paths = []
    for i in range(n_parts):
        path = folder / f"{stem}-{i + 1:05}-of-{n_parts:05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if i == 0:
            _copy_metadata(reader, writer)
        else:
            writer.kv_data[0].clear()
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", n_parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[i::n_parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
            writer.kv_data[0][field.name].sub_type = field.types[-1]
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
