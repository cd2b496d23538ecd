"""Other engines that read the same GGUF files: LM Studio, koboldcpp, text-generation-webui."""

import json
import shlex
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.export.llama_server import server_flags
from specdec_cli.export.pair import Export, ExportedPair, drafts_by_model

_IMPORTED = "LM Studio knows models by its own keys: import both files first (lms import FILE), then check with lms ls."


def lm_studio(pair: ExportedPair) -> Export:
    """Commands for `lms`."""
    draft = drafts_by_model(pair, "LM Studio")
    load = f"lms load {shlex.quote(pair.target.stem)} --identifier {shlex.quote(pair.name)}"
    flags = f"--speculative-draft-simple --speculative-draft-model {shlex.quote(draft.stem)}"
    more = f" --speculative-draft-max-tokens {pair.k}"
    context = f" --context-length {pair.n_ctx}" if pair.n_ctx is not None else ""
    imports = [f"lms import {shlex.quote(str(path))}" for path in (pair.target, draft)]
    return Export("\n".join([*imports, f"{load} {flags}{more}{context}"]), (_IMPORTED,))


def koboldcpp(pair: ExportedPair) -> Export:
    """A .kcpps file: koboldcpp's options by name, as JSON."""
    found: dict[str, Any] = {"model_param": str(pair.target)}
    if pair.sources == ("mtp",):
        found |= {"usemtp": True, "draftamount": pair.k}
    elif pair.sources:
        found |= {"draftmodel": str(drafts_by_model(pair, "koboldcpp")), "draftamount": pair.k}
    if pair.n_ctx is not None:
        found["contextsize"] = pair.n_ctx
    if pair.threads is not None:
        found["threads"] = pair.threads
    if pair.flash_attention == "on":
        found["flashattention"] = True
    return Export(json.dumps(found, indent=2), ("Start it with: koboldcpp --config FILE.kcpps",))


def text_generation_webui(pair: ExportedPair) -> Export:
    """A command line. It passes no type of draft on to llama-server, which would then not draft at all."""
    if "ngram" in pair.sources:
        raise UsageError(
            "text-generation-webui has no option for n-gram lookup.", hint="Use --to llama-server, or a draft model."
        )
    words = ["python server.py --loader llama.cpp", f"--model {shlex.quote(str(pair.target))}"]
    if pair.sources:
        draft = drafts_by_model(pair, "text-generation-webui")
        kind = server_flags(pair)["spec-type"]
        extra = shlex.quote(f"--spec-type {kind}")
        words += [f"--model-draft {shlex.quote(str(draft))}", f"--draft-max {pair.k}", f"--extra-flags {extra}"]
    words += [f"--ctx-size {pair.n_ctx}"] if pair.n_ctx is not None else []
    return Export(" ".join(words))


def ollama(pair: ExportedPair) -> Export:
    """A Modelfile, for what Ollama can draft with. Raises UsageError for an ordinary draft."""
    if pair.sources[-1:] not in ((), ("mtp",), ("dflash",)):
        raise UsageError(
            "Ollama cannot run an ordinary draft model: DRAFT in a Modelfile takes MTP and DFlash heads only.",
            hint="Use --to llama-server, or run the pair with specdec.",
        )
    lines = [f"FROM {pair.target}"]
    lines += [f"DRAFT {pair.draft}"] if pair.draft is not None else []
    lines += [f"PARAMETER draft_num_predict {pair.k}"] if pair.sources else []
    lines += [f"PARAMETER num_ctx {pair.n_ctx}"] if pair.n_ctx is not None else []
    return Export("\n".join(lines), ("Create it with: ollama create NAME -f Modelfile",))
