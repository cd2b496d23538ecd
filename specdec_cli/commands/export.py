"""`specdec export`: what runs the same pair in another engine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.completion import engines
from specdec_cli.commands.drafting_options import DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, draft_length, say
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs, write_output
from specdec_cli.settings import AUTO, USUAL_K, Adapters
from specdec_cli.untrusted import is_repo, one_line

if TYPE_CHECKING:
    from specdec_cli.export.pair import ExportedPair
    from specdec_cli.models.gguf import GgufHeader
    from specdec_cli.planning.drafting import Asked
    from specdec_cli.planning.profile import Profile
    from specdec_cli.presets.resolve import Resolved

_BASE_MODEL = "general.base_model.0.repo_url", "general.source.repo_url"
"""Where a GGUF file names the model that it was made from."""
_HUB = "https://huggingface.co/"


@takes_groups
def export(
    model: Annotated[str, MODEL],
    *,
    to: Annotated[str, typer.Option("--to", help="The engine: llama-server, vllm ...", autocompletion=engines)],
    pairing: DraftOptions,
    k: Annotated[
        str, typer.Option("-k", "--k", help="Draft tokens per round; auto: as tuned, or as the preset has it.")
    ] = AUTO,
    p_min: Annotated[float | None, typer.Option(min=0, max=1, help="As in run.")] = None,
    ctx: Annotated[int | None, typer.Option(min=0, help="Context size in tokens.")] = None,
    profiled: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Use the settings saved by bench --tune.")
    ] = True,
    name: Annotated[str | None, typer.Option(help="What the engine is to call the model.")] = None,
    hub_target: Annotated[
        str | None, typer.Option(help="OWNER/NAME of the original target, for engines that do not read GGUF.")
    ] = None,
    hub_draft: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
) -> None:
    """Print what runs the same pair in another engine, with the settings found best here.

    Engines: llama-server, llama-server-ini, llama-swap, lm-studio, koboldcpp, text-generation-webui, ollama, vllm,
    sglang, tabbyapi.
    """
    from specdec_cli.export.engines import ENGINES
    from specdec_cli.planning.drafting import Asked

    if to not in ENGINES:
        raise UsageError(f"Invalid --to: {to!r}.", hint=f"Use one of {', '.join(ENGINES)}.")
    for option, given in (("--hub-target", hub_target), ("--hub-draft", hub_draft)):
        if given is not None and not is_repo(given):
            raise UsageError(f"Invalid {option}: {given!r}.", hint="Write it as OWNER/NAME.")
    check_outputs({"--output": output}, {"MODEL": Path(model), **pairing.reads})
    asked = Asked(k=draft_length(k), p_min=p_min, lookup=False)
    files = pairing.files_for(model)
    if files.cross:
        raise UsageError(
            "A draft with a different tokenizer (--cross) cannot be exported: other programs need the target's.",
            hint="Omit --cross, or choose a draft with the target's tokenizer.",
        )
    if files.adapters != Adapters():
        raise UsageError(
            "LoRA adapters and control vectors cannot be exported yet.",
            hint="Omit them, and give them to the other program yourself.",
        )
    profile = _profile(files, asked, pairing.draft) if profiled else None
    pair = _pair(files, asked, profile, name, ctx, (hub_target, hub_draft))
    found = ENGINES[to](pair)
    for note in found.notes:
        say(note)
    if output is not None:
        write_output(output, f"{found.text}\n")
    else:
        sys.stdout.write(f"{found.text}\n")


def _profile(files: "Resolved", asked: "Asked", draft: str | None) -> "Profile | None":
    from specdec_cli.commands.tune import profile_of
    from specdec_cli.drafters import NAMED

    return profile_of(files, asked) if draft not in NAMED else None


def _pair(
    files: "Resolved",
    asked: "Asked",
    profile: "Profile | None",
    name: str | None,
    ctx: int | None,
    hub: tuple[str | None, str | None],
) -> "ExportedPair":
    from specdec_cli.export.pair import ExportedPair
    from specdec_cli.models.gguf import read_model
    from specdec_cli.models.heads import own_head, read_head, refuse_as_target
    from specdec_cli.planning.drafting import decide
    from specdec_cli.settings import LONGEST_AUTO

    headers = read_model(files.target)
    refuse_as_target(headers, files.target.name)
    drafting = decide(asked, files, profile, asked.k or LONGEST_AUTO)
    draft, drafter = drafting.draft or drafting.head, drafting.drafter
    draft_headers = read_model(draft) if draft is not None and drafting.head is None else ()
    if draft is not None and draft_headers:
        head = read_head(draft_headers, headers, draft.name, draft)
        drafter = head.kind if head is not None else drafter
    elif drafter == "mtp":
        own_head(headers, files.target.name)  # refuses a file without such layers
    preset = files.preset
    usual = (preset.k if preset is not None else None) or USUAL_K
    return ExportedPair(
        name=name or (preset.name if preset is not None else files.target.stem),
        target=files.target.absolute(),
        drafter=drafter,
        draft=draft.absolute() if draft is not None else None,
        k=usual if drafting.auto else drafting.k,
        p_min=drafting.p_min,
        n_ctx=ctx,
        threads=profile.threads if profile is not None else None,
        threads_draft=profile.threads_draft if profile is not None else None,
        cache_type=profile.cache_type if profile is not None else None,
        cache_type_draft=profile.cache_type_draft if profile is not None else None,
        flash_attention=profile.flash_attention if profile is not None else None,
        sampling=_sampling(files) if preset is not None else {},
        hub_target=hub[0] or _original(headers),
        hub_draft=hub[1] or _original(draft_headers),
    )


def _sampling(files: "Resolved") -> dict[str, float | int]:
    params = files.sampling
    return {"temp": params.temperature, "top-k": params.top_k, "top-p": params.top_p, "min-p": params.min_p}


def _original(headers: "tuple[GgufHeader, ...]") -> str | None:
    """The model of the Hub that a file says it was made from."""
    urls = [headers[0].metadata.get(key) for key in _BASE_MODEL] if headers else []
    names = [one_line(url).removeprefix(_HUB) for url in urls if isinstance(url, str) and url.startswith(_HUB)]
    return next((name for name in names if is_repo(name)), None)
