"""Engines that do not read GGUF: they take the original models from the Hub, in formats of their own."""

import json
import shlex
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.export.pair import Export, ExportedPair, drafts_by_model

_OTHER_WEIGHTS = (
    "{engine} reads other files than specdec: the original weights, not this quantization, so speed, memory and text "
    "will differ."
)


def vllm(pair: ExportedPair) -> Export:
    """A command line."""
    target = _original(pair.hub_target, "target", "--hub-target")
    config: dict[str, Any] | None = None
    if pair.sources == ("ngram",):
        config = {"method": "ngram", "num_speculative_tokens": pair.k, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    elif pair.sources:
        drafts_by_model(pair, "vLLM")
        draft = _original(pair.hub_draft, "draft", "--hub-draft")
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": pair.k}
    words = [f"vllm serve {shlex.quote(target)}", f"--served-model-name {shlex.quote(pair.name)}"]
    words += [f"--max-model-len {pair.n_ctx}"] if pair.n_ctx is not None else []
    words += [f"--speculative-config {shlex.quote(json.dumps(config))}"] if config is not None else []
    return Export(" ".join(words), (_OTHER_WEIGHTS.format(engine="vLLM"),))


def sglang(pair: ExportedPair) -> Export:
    """A command line."""
    target = _original(pair.hub_target, "target", "--hub-target")
    words = [
        f"python -m sglang.launch_server --model-path {shlex.quote(target)}",
        f"--served-model-name {shlex.quote(pair.name)}",
    ]
    words += [f"--context-length {pair.n_ctx}"] if pair.n_ctx is not None else []
    if pair.sources:
        drafts_by_model(pair, "SGLang")
        draft = shlex.quote(_original(pair.hub_draft, "draft", "--hub-draft"))
        words += [
            f"--speculative-algorithm STANDALONE --speculative-draft-model-path {draft}",
            f"--speculative-num-steps {pair.k} --speculative-eagle-topk 1",
            f"--speculative-num-draft-tokens {pair.k + 1}",
        ]
    return Export(" ".join(words), (_OTHER_WEIGHTS.format(engine="SGLang"),))


def tabby_api(pair: ExportedPair) -> Export:
    """A config.yml. Names are folders below its model folder. Strings are JSON, which YAML reads."""
    target = _original(pair.hub_target, "target", "--hub-target").rpartition("/")[2]
    lines = ["model:", "  model_dir: models", f"  model_name: {json.dumps(target)}"]
    lines += [f"  max_seq_len: {pair.n_ctx}"] if pair.n_ctx is not None else []
    if pair.sources:
        drafts_by_model(pair, "tabbyAPI")
        draft = _original(pair.hub_draft, "draft", "--hub-draft").rpartition("/")[2]
        lines += ["draft_model:", "  draft_mode: model", "  draft_model_dir: models"]
        lines += [f"  draft_model_name: {json.dumps(draft)}", f"  draft_num_tokens: {pair.k}"]
    note = "tabbyAPI runs EXL3 weights only: put an EXL3 quantization of each model into its folder."
    return Export("\n".join(lines), (note, _OTHER_WEIGHTS.format(engine="tabbyAPI")))


def _original(name: str | None, which: str, option: str) -> str:
    if name is None:
        raise UsageError(
            f"The {which}'s file does not say which model of the Hub it was made from.",
            hint=f"Give its id, OWNER/NAME, with {option}.",
        )
    return name
