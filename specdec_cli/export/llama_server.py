"""llama-server and what starts it: its flags, its INI preset, llama-swap.

Flags are those of llama.cpp's common/arg.cpp as llama-cpp-python 0.3.36 has it. The type of the draft is always named:
with a draft model alone, llama-server loads it and never drafts.
"""

import json
import shlex
from collections.abc import Mapping

from specdec_cli.errors import UsageError
from specdec_cli.export.pair import Export, ExportedPair

_TYPES: Mapping[str, str] = {
    "model": "draft-simple",
    "ngram": "ngram-simple",
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dflash2": "draft-dflash",
    "dspark": "draft-dspark",
}
"""llama.cpp's names of our drafters."""
_DRAFTS_GREEDILY = (
    "llama-server drafts the most likely token, so above temperature 0 it accepts fewer draft tokens than specdec."
)
_FIXED = "llama-server drafts a fixed number of tokens; specdec picks lengths from timings."


def server_flags(pair: ExportedPair) -> dict[str, str]:
    """Long flags without their dashes, in the order of a command line. Raises UsageError for a drafter that
    llama-server does not have."""
    flags = {"model": str(pair.target)}
    if pair.n_ctx is not None:
        flags["ctx-size"] = str(pair.n_ctx)
    if pair.threads is not None:
        flags["threads"] = str(pair.threads)
    if pair.flash_attention is not None:
        flags["flash-attn"] = pair.flash_attention
    if pair.cache_type is not None:
        flags |= {"cache-type-k": pair.cache_type, "cache-type-v": pair.cache_type}
    return flags | _draft_flags(pair) | {name: f"{value:g}" for name, value in pair.sampling.items()}


def llama_server(pair: ExportedPair) -> Export:
    """A command line."""
    return Export(_command(pair, "llama-server"), _notes(pair))


def ini_preset(pair: ExportedPair) -> Export:
    """A file for `llama-server --models-preset FILE`."""
    flags = server_flags(pair)
    width = max(map(len, flags))
    _refuse_line_breaks(pair.name, *flags.values())
    lines = [f"[{pair.name}]", *(f"{name:<{width}} = {value}" for name, value in flags.items())]
    return Export("\n".join(lines), _notes(pair))


def llama_swap(pair: ExportedPair) -> Export:
    """A configuration file. Strings are JSON, which YAML reads."""
    command = _command(pair, "llama-server --port ${PORT}")
    lines = ["models:", f"  {json.dumps(pair.name)}:", f"    cmd: {json.dumps(command)}", "    ttl: 600"]
    return Export("\n".join(lines), _notes(pair))


def _draft_flags(pair: ExportedPair) -> dict[str, str]:
    unknown = [name for name in pair.sources if name not in _TYPES]
    if unknown:
        raise UsageError(
            f"llama-server has no drafter like {unknown[0]}.", hint="Choose another with --draft, such as ngram."
        )
    if not pair.sources:
        return {}
    flags = {"spec-type": ",".join(_TYPES[name] for name in pair.sources)}
    if pair.draft is not None:
        flags["spec-draft-model"] = str(pair.draft)
    if pair.sources == ("ngram",):
        return flags | {"spec-ngram-simple-size-m": str(pair.k)}
    flags["spec-draft-n-max"] = str(pair.k)
    if pair.p_min:
        flags["spec-draft-p-min"] = f"{pair.p_min:g}"
    if pair.threads_draft is not None:
        flags["spec-draft-threads"] = str(pair.threads_draft)
    if pair.cache_type_draft is not None:
        flags |= {"spec-draft-type-k": pair.cache_type_draft, "spec-draft-type-v": pair.cache_type_draft}
    return flags


def _command(pair: ExportedPair, program: str) -> str:
    return " ".join([program, *(f"--{name} {shlex.quote(value)}" for name, value in server_flags(pair).items())])


def _notes(pair: ExportedPair) -> tuple[str, ...]:
    sampled = bool(pair.sampling.get("temp", 0.8))
    drafts = [name for name in pair.sources if name != "ngram"]
    return (*([_FIXED] if pair.sources else []), *([_DRAFTS_GREEDILY] if drafts and sampled else []))


def _refuse_line_breaks(*values: str) -> None:
    if any("\n" in value or "\r" in value for value in values):
        raise UsageError("A file name with a line break cannot stand in an INI file.", hint="Rename the file.")
