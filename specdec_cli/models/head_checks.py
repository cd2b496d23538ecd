"""Checks what llama.cpp assumes about a trained head's tensors and metadata; wrong values crash it."""

import struct
from collections.abc import Sequence
from pathlib import Path

from specdec_cli.errors import ModelError
from specdec_cli.models.gguf import ArrayInfo, GgufHeader, TensorInfo, tensors_of

Headers = Sequence[GgufHeader]

DAMAGED = "The file is damaged, or was not converted by llama.cpp's converter."

_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_NO_WEIGHTS = ("I8", "I16", "I32", "I64", "F64")
"""Number formats that llama.cpp loads and its kernels do not multiply with."""
_ADDED = ("norm.weight", "norm_2.weight", "_conv_base", ".bias", ".scale", "rope_freqs.weight", "attn_sinks.weight")
"""Ends of the names of tensors that are no matrices: their kernels take float32 alone."""

_TABLES = ("d2t",)
"""Tensors that hold whole numbers."""
_OF_A_PART = ("block_count", "nextn_predict_layers", "context_length")
"""What a file with some of a model's layers may say otherwise than the model."""


def other_target(message: str) -> ModelError:
    """For a head that does not go with this target."""
    return ModelError(message, hint="Use the head that was trained with this target.")


def check_shape(header: GgufHeader, name: str) -> None:
    """What llama.cpp takes for granted of the head's own layers. Raises ModelError."""
    n_layers, n_head = header.number("block_count"), header.number("attention.head_count")
    n_embd = header.number("embedding_length")
    usual = n_embd // max(n_head, 1)
    keys, values = header.number("attention.key_length", usual), header.number("attention.value_length", usual)
    turned = header.number("rope.dimension_count", keys)
    n_kv = header.number("attention.head_count_kv", n_head)
    epsilon = header.metadata.get(f"{header.architecture}.attention.layer_norm_rms_epsilon")
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    wrong = [
        (header.architecture == "eagle3" and n_layers != 1, f"has {n_layers} layers; an EAGLE-3 head has 1"),
        (not n_head or not n_kv or n_head % n_kv != 0, f"has {n_head} attention heads for {n_kv} key-value heads"),
        (not keys or keys != values, f"has keys of size {keys} and values of size {values}"),
        (not 0 < turned <= keys or turned % 2 != 0, f"rotates {turned} dimensions of keys of size {keys}"),
        (header.number("nextn_predict_layers") > 0, "has MTP layers, which this kind of head cannot have"),
        (header.number("embedding_length_out", n_embd) != n_embd, "outputs hidden states of a different width"),
        (not isinstance(epsilon, float) or not 0 <= epsilon < 1, f"has an invalid norm epsilon ({epsilon})"),
        (scaling not in _ROPE_SCALINGS, f"has an unknown RoPE scaling ({str(scaling)[:20]!r})"),
        (
            header.number("expert_count") + header.number("expert_used_count") > 0,
            "has experts, which this kind of head cannot have",
        ),
    ]
    for is_wrong, what in wrong:
        if is_wrong:
            raise ModelError(f"{name} {what}.", hint=DAMAGED)


def check_formats(headers: Headers, name: str, beginnings: tuple[str, ...] = ("",)) -> None:
    """Number formats of the head's tensors: those whose names begin so. Raises ModelError."""
    for tensor in tensors_of(headers):
        if not tensor.name.startswith(beginnings) or tensor.name in _TABLES:
            continue
        if tensor.type in _NO_WEIGHTS or (tensor.name.endswith(_ADDED) and tensor.type != "F32"):
            raise ModelError(f"{name} has the tensor {tensor.name} as {tensor.type}.", hint=DAMAGED)


def check_figures(header: GgufHeader, target: GgufHeader, name: str) -> None:
    """That layers of the target in a file of their own are described as the target is. Raises ModelError."""
    for key in sorted(target.metadata.keys() | header.metadata.keys()):
        theirs, ours = (str(part.metadata.get(key, "not given")) for part in (header, target))
        if key.startswith(f"{target.architecture}.") and key.partition(".")[2] not in _OF_A_PART and theirs != ours:
            raise other_target(
                f"{name} was made for another target: {key} is {theirs[:20]} here and {ours[:20]} there."
            )


def check_ends(headers: Headers, target: Headers, name: str, file: Path | None) -> None:
    """Token embeddings and output matrix: the head's own, or the target's, of a shape that its graph can use."""
    header = headers[0]
    tensors, theirs = ({t.name: t for t in tensors_of(part)} for part in (headers, target))
    n_embd, n_tokens, d2t = header.number("embedding_length"), n_tokens_of(header), tensors.get("d2t")
    embedding, output = tensors.get("token_embd.weight"), tensors.get("output.weight")
    if header.architecture == "dflash" and output is None:
        output = embedding
    if embedding is None or output is None:
        what = "token embeddings" if embedding is None else "output matrix"
        check_vocabulary(header, target[0], name, f"shares the {what} of the target but ")
        if n_embd != target[0].number("embedding_length") or "token_embd.weight" not in theirs:
            raise other_target(
                f"{name} has no {what} of its own and is {n_embd} wide, so it cannot share those of this target "
                f"({target[0].number('embedding_length')} wide)."
            )
        embedding = embedding or theirs["token_embd.weight"]
        output = output or theirs.get("output.weight", theirs["token_embd.weight"])
    if _n_rows(embedding) < n_tokens:
        raise ModelError(f"{name} has embeddings for {_n_rows(embedding)} tokens, not {n_tokens}.", hint=DAMAGED)
    n_drafted = n_tokens if d2t is None else d2t.shape[0]
    if _n_rows(output) != n_drafted:
        raise ModelError(
            f"{name} drafts {n_drafted} tokens, but its output matrix has {_n_rows(output)} rows.", hint=DAMAGED
        )
    if d2t is not None:
        if d2t.type != "I64" or len(d2t.shape) != 1 or d2t not in headers[0].tensors:
            raise ModelError(f"{name} has a token table (d2t) of the wrong type.", hint=DAMAGED)
        if file is not None:
            _check_d2t(d2t, n_tokens, file)


def _check_d2t(d2t: TensorInfo, n_tokens: int, path: Path) -> None:
    """The target's ids of the tokens that the head drafts: llama.cpp writes to these rows unseen."""
    with path.open("rb") as file:
        file.seek(d2t.offset)
        ids = struct.unpack(f"<{d2t.shape[0]}q", file.read(d2t.n_bytes))
    if not 0 <= min(ids) <= max(ids) < n_tokens:
        raise other_target(
            f"{path.name} drafts token {min(ids) if min(ids) < 0 else max(ids)}, but there are {n_tokens}."
        )


def check_vocabulary(header: GgufHeader, target: GgufHeader, name: str, why: str = "") -> None:
    if n_tokens_of(header) != n_tokens_of(target):
        raise other_target(f"{name} {why}has {n_tokens_of(header):,} tokens; the target has {n_tokens_of(target):,}.")


def check_same(what: str, ours: int, theirs: int, name: str) -> None:
    if ours != theirs:
        raise other_target(f"{name} was trained for a target with a {what} of {ours}; this one's is {theirs}.")


def n_tokens_of(header: GgufHeader) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return tokens.length if isinstance(tokens, ArrayInfo) else header.number("vocab_size")


def has_tokenizer(header: GgufHeader) -> bool:
    return isinstance(header.metadata.get("tokenizer.ggml.tokens"), ArrayInfo)


def _n_rows(tensor: TensorInfo) -> int:
    return tensor.shape[1] if len(tensor.shape) > 1 else 1
