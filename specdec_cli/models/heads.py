"""Trained heads: what their GGUF headers say, and whether they can draft for a target.

A head is no language model of its own: it reads hidden states of the target it was trained for. llama.cpp ends
the process, or hands out zeros, where a head and a target do not go together; so everything of the kind is settled
here, from headers alone, and told in words.

| kind            | architecture | reads                                | and                                       |
|-----------------|--------------|--------------------------------------|-------------------------------------------|
| eagle3          | eagle3       | the inputs of three layers           | Li et al., arXiv 2503.01840               |
| dflash, dflash2 | dflash       | the inputs of some layers            | fills a block of places in one pass       |
| dspark          | dflash       | the same                             | draws each place from the one before      |
| mtp             | the target's | the state that the output layer gets | is in the target's file or in one beside  |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specdec_cli.errors import ModelError
from specdec_cli.models.gguf import GgufHeader, tensors_of
from specdec_cli.models.head_checks import (
    DAMAGED,
    Headers,
    check_ends,
    check_figures,
    check_formats,
    check_same,
    check_shape,
    check_vocabulary,
    has_tokenizer,
    n_tokens_of,
    other_target,
)
from specdec_cli.models.memory import ModelFacts

Kind = Literal["eagle3", "dflash", "dflash2", "dspark", "mtp"]

OUTPUT_STATE = -1
"""In place of a layer's number: the state that the output layer gets (llama.cpp calls it h_nextn)."""

_OTHER_DRAFT = "Use an ordinary draft model of the same family, or --draft ngram."

_TELLS_LAYERS = {
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
    "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3",
    "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
}  # fmt: skip
"""Architectures whose graphs tell the inputs of their layers (t_layer_inp in llama.cpp's src/models). qwen4exp sets it
as well, to a row that is several times as wide as llama.cpp then demands."""
_TELLS_LAST_LAYER = {"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"}
"""Those that also tell what leaves the last layer, as input number n_layers."""
_TELLS_OUTPUT_STATE = {
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma4", "glm-dsa", "glm4moe",
    "glm5-next", "hy_v3", "mimo2", "nemotron_h", "nemotron_h_moe", "gpt-oss", "qwen35", "qwen35moe", "qwen3next",
    "step35",
}  # fmt: skip
"""Those that set h_nextn; the others give zeros."""
_HAS_MTP_GRAPH = {
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next", "hy_v3",
    "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
}  # fmt: skip
_SEVERAL_MTP_LAYERS = {"glm5-next", "hy_v3", "mimo2", "step35"}
"""The graphs of the others end the process over a file with more than one."""


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What it takes to run a head. `layers` are those of the target that it reads; `n_tokens` its vocabulary.

    `longest` is the most tokens that it drafts at once, None without a limit. A block head is fed one token and masks
    (`mask`), and predicts from the first row on if it is `anchored`, else from the second. `is_own` is a head inside
    the target's own file.
    """

    kind: Kind
    layers: tuple[int, ...]
    n_tokens: int
    has_tokenizer: bool
    longest: int | None = None
    mask: int = -1
    anchored: bool = False
    is_causal: bool = True
    has_confidence: bool = False
    top_k: int = 0
    is_own: bool = False


def head_kind(headers: Headers) -> Kind | None:
    """Which kind of head a file is; None for a model."""
    header = headers[0]
    if header.architecture == "eagle3":
        return "eagle3"
    if header.architecture == "dflash":
        names = {tensor.name for tensor in tensors_of(headers)}
        return "dspark" if "markov_w1.weight" in names else "dflash2" if "selector_hidden.weight" in names else "dflash"
    if header.number("nextn_predict_layers") and _lacks_trunk(headers):
        return "mtp"
    return None


def needs_tokenizer(headers: Headers) -> bool:
    """Whether a file without a tokenizer is of no use: a head may know tokens by their number alone."""
    return head_kind(headers) is None or has_tokenizer(headers[0])


def refuse_as_target(headers: Headers, name: str) -> None:
    """A head cannot write text, and neither can an encoder. Raises ModelError."""
    kind = head_kind(headers)
    if kind is None and headers[0].architecture != "gemma4-assistant":
        _refuse_encoder(headers[0], name)
        return
    raise ModelError(
        f"{name} is a trained head ({kind or headers[0].architecture}), which drafts for the model it was "
        "trained with and cannot generate text on its own.",
        hint="Give that model as MODEL and this file with --draft.",
    )


def _refuse_encoder(header: GgufHeader, name: str) -> None:
    """Such files hold tokenizers that match, and no llama.cpp decodes them token by token. Raises ModelError."""
    is_causal = header.metadata.get(f"{header.architecture}.attention.causal", True)
    if is_causal and header.architecture not in ("t5", "t5encoder"):
        return
    raise ModelError(
        f"{name} is an encoder, encoder-decoder or diffusion model ({header.architecture}), which cannot "
        "generate text token by token.",
        hint="Use a decoder-only language model.",
    )


def read_head(headers: Headers, target: Headers, name: str, file: Path | None = None) -> HeadFacts | None:
    """The facts of the head called `name` and that it goes with the target; None for an ordinary model.

    In `file`, if it is here, the table of the head's tokens is looked at as well. Raises ModelError.
    """
    kind = head_kind(headers)
    if headers[0].architecture == "gemma4-assistant":
        raise ModelError(
            f"{name} is a head that writes into its target's cache (gemma4-assistant), which is not supported.",
            hint=_OTHER_DRAFT,
        )
    if kind is None:
        _refuse_encoder(headers[0], name)
        return None
    if kind == "mtp":
        return _mtp(headers, target, name, is_own=False)
    return _layer_head(kind, headers, target, name, file)


def own_head(target: Headers, name: str) -> HeadFacts:
    """The head inside the target's own file. Raises ModelError."""
    return _mtp(target, target, name, is_own=True)


def described(head: HeadFacts, name: str) -> str:
    """What a head is, in a line for the user."""
    if head.kind == "mtp":
        where = "the target's own MTP layers" if head.is_own else f"{name} has MTP layers for the target"
        return f"head: {head.kind}, {where}"
    layers = ", ".join("last" if i == OUTPUT_STATE else str(i) for i in head.layers)
    block = f", at most {head.longest} tokens per draft" if head.longest else ""
    return f"head: {name} is a trained head ({head.kind}), reads layers {layers} of the target{block}"


def hidden_bytes(head: HeadFacts, n_embd: int, n_batch: int) -> int:
    """Hidden states of a target `n_embd` wide: a batch in llama.cpp's hands, and two in ours until they are read."""
    return 3 * n_batch * 4 * n_embd * len(head.layers)


def own_part(facts: ModelFacts, target: Headers) -> tuple[ModelFacts, ModelFacts]:
    """What the head inside a target's file takes, and what the rest of that does."""
    n = target[0].number("nextn_predict_layers")
    head_bytes = sum(facts.layer_bytes[-n:])
    head = replace(
        facts,
        weights_bytes=head_bytes,
        n_layers=n,
        n_params=sum(math.prod(t.shape) for t in tensors_of(target) if ".nextn." in t.name),
        output_bytes=0,
        layer_bytes=facts.layer_bytes[-n:],
        cache_elements=facts.cache_elements[-n:],
        state_bytes=facts.state_bytes[-n:],
        format_bytes={},
    )
    rest = replace(
        facts,
        weights_bytes=facts.weights_bytes - head_bytes,
        n_layers=facts.n_layers - n,
        layer_bytes=facts.layer_bytes[:-n],
        cache_elements=facts.cache_elements[:-n],
        state_bytes=facts.state_bytes[:-n],
    )
    return head, rest


def _mtp(headers: Headers, target: Headers, name: str, *, is_own: bool) -> HeadFacts:
    header, n_nextn = headers[0], headers[0].number("nextn_predict_layers")
    architecture = target[0].architecture
    if not n_nextn:
        raise ModelError(
            f"{name} has no multi-token prediction layers (MTP, NextN).",
            hint="Use a file converted with them, or a draft model.",
        )
    if header.architecture != architecture:
        raise other_target(f"{name} is a head for {header.architecture}; the target is {architecture}.")
    if architecture not in _HAS_MTP_GRAPH:
        raise ModelError(f"llama.cpp cannot run the MTP layers of the architecture {architecture}.", hint=_OTHER_DRAFT)
    if n_nextn > 1 and architecture not in _SEVERAL_MTP_LAYERS:
        raise ModelError(
            f"{name} has {n_nextn} MTP layers; llama.cpp supports one for {architecture}.", hint=_OTHER_DRAFT
        )
    names = {tensor.name for tensor in tensors_of(headers)}
    first = header.number("block_count") - n_nextn
    missing = [
        tensor
        for layer in range(max(first, 0), first + n_nextn)
        for part in (*_MTP_TENSORS, *_MORE_MTP_TENSORS.get(architecture, ()))
        if (tensor := f"blk.{layer}.{part}.weight") not in names
    ]
    if first < 0 or missing:
        what = f"lacks {missing[0]}" if missing else "has more MTP layers than layers"
        raise ModelError(f"{name} declares MTP layers but {what}.", hint="Use a file converted with them.")
    check_same("hidden size", header.number("embedding_length"), target[0].number("embedding_length"), name)
    check_vocabulary(header, target[0], name)
    if is_own:
        check_formats(headers, name, tuple(f"blk.{layer}." for layer in range(first, first + n_nextn)))
    else:
        check_figures(header, target[0], name)
        check_formats(headers, name)
    return HeadFacts("mtp", (OUTPUT_STATE,), n_tokens_of(header), has_tokenizer(header), is_own=is_own)


_MTP_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_EXPERTS = ("ffn_gate_inp",)
_MORE_MTP_TENSORS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "qwen35moe", "qwen3next"), _EXPERTS
    ),
    "bailingmoe3": ("nextn.shared_head_norm",),
    "mimo2": ("attn_qkv", "ffn_gate", "ffn_down", "ffn_up"),
    "nemotron_h_moe": (*_EXPERTS, "nextn.shared_head_norm"),
}
"""What the graph of an architecture demands of an MTP layer (GGML_ASSERT)."""


def _layer_head(kind: Kind, headers: Headers, target: Headers, name: str, file: Path | None) -> HeadFacts:
    """EAGLE-3 and the DFlash family."""
    header = headers[0]
    layers = _layers(kind, header, target[0], name)
    width = header.number("target_hidden_size" if kind == "eagle3" else "embedding_length")
    check_same("hidden size", width, target[0].number("embedding_length"), name)
    check_shape(header, name)
    check_formats(headers, name)
    if not n_tokens_of(header):
        raise ModelError(f"{name} has no vocabulary size.", hint=DAMAGED)
    if not has_tokenizer(header):
        check_vocabulary(header, target[0], name)
    check_ends(headers, target, name, file)
    if kind == "eagle3":
        return HeadFacts(kind, layers, n_tokens_of(header), has_tokenizer(header))
    return _block_head(kind, headers, layers, name)


def _layers(kind: Kind, header: GgufHeader, target: GgufHeader, name: str) -> tuple[int, ...]:
    """The layers of the target that the head reads, all of which llama.cpp can tell."""
    layers = header.metadata.get(f"{header.architecture}.target_layers")
    if not isinstance(layers, tuple) or not layers or not all(isinstance(i, int) for i in layers):
        raise ModelError(f"{name} does not say which target layers it reads.", hint=DAMAGED)
    if kind == "eagle3" and len(layers) != 3:
        raise ModelError(f"{name} reads {len(layers)} layers of its target; an EAGLE-3 head reads 3.", hint=DAMAGED)
    if target.architecture not in _TELLS_LAYERS:
        raise ModelError(
            f"{name} reads hidden states of inner layers, which llama.cpp does not expose for {target.architecture}.",
            hint=_OTHER_DRAFT,
        )
    n_layers = target.number("block_count") - target.number("nextn_predict_layers")
    tells_last = target.architecture in (_TELLS_OUTPUT_STATE if kind == "eagle3" else _TELLS_LAST_LAYER)
    wrong = [i for i in layers if not 0 <= i < n_layers + tells_last]
    if wrong:
        raise other_target(f"{name} reads layer {wrong[0]} of its target, which has layers 0 to {n_layers - 1}.")
    return tuple(OUTPUT_STATE if kind == "eagle3" and i == n_layers else i for i in layers)


def _block_head(kind: Kind, headers: Headers, layers: tuple[int, ...], name: str) -> HeadFacts:
    header = headers[0]
    if header.number("hyper_connection_count"):
        raise ModelError(f"{name} is a DSpark head of the DeepSeek V4 type, which is not supported.", hint=_OTHER_DRAFT)
    block, top_k = header.number("block_size", 0 if kind in ("dspark", "dflash2") else 16), 0
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    if type(mask) is not int or not 0 <= mask < n_tokens_of(header):
        raise ModelError(f"{name} has no mask token (mask_token_id).", hint=DAMAGED)
    if block < 2:
        raise ModelError(f"{name} has no block size (block_size).", hint=DAMAGED)
    windows = header.metadata.get("dflash.attention.sliding_window_pattern")
    if header.number("attention.sliding_window") and not (isinstance(windows, tuple) and any(windows)):
        raise ModelError(f"{name} has a sliding window but no layer that uses it.", hint=DAMAGED)
    if kind == "dflash2":
        top_k = header.number("selector_top_k")
        if not 0 < top_k <= n_tokens_of(header) or header.number("embedding_length") < top_k * (top_k + 1):
            raise ModelError(f"{name} chooses among {top_k} tokens, which it has no room for.", hint=DAMAGED)
    anchored = kind == "dspark" and header.metadata.get("dflash.sample_from_anchor", True) is True
    return HeadFacts(
        kind,
        layers,
        n_tokens_of(header),
        has_tokenizer(header),
        longest=block if anchored else block - 1,
        mask=mask,
        anchored=anchored,
        is_causal=header.metadata.get("dflash.attention.causal") is True,
        has_confidence=kind == "dspark" and any(t.name == "conf_proj.weight" for t in tensors_of(headers)),
        top_k=top_k,
    )


def _lacks_trunk(headers: Headers) -> bool:
    return all(tensor.name != "blk.0.attn_norm.weight" for tensor in tensors_of(headers))
