"""Options for the draft and for drafting, shared by commands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from specdec_cli.commands.completion import drafts, one_of
from specdec_cli.commands.options import draft_length, find, in_panel, quantize, say, words
from specdec_cli.commands.pull import offer_to_pull
from specdec_cli.commands.tune import profile_of
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption
from specdec_cli.settings import AUTO, Adapters

if TYPE_CHECKING:
    from specdec_cli.planning.drafting import Asked
    from specdec_cli.planning.profile import Profile
    from specdec_cli.presets.resolve import Resolved

_pair = in_panel("Draft")
_drafting = in_panel("Drafting")
_rule = in_panel("Verification")
_adapters = in_panel("Adapters")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What drafts for the model that a command names."""

    draft: Annotated[
        str | None,
        _pair(
            help="A GGUF file (draft model or trained head), Medusa heads (.safetensors), or ngram, lookahead, "
            "mtp, none (plain decoding). A preset has its own.",
            autocompletion=drafts,
        ),
    ] = None
    cross: Annotated[
        bool, _pair("--cross", help="Accept a draft model with a different tokenizer: its drafts are translated.")
    ] = False
    lora: Annotated[
        list[str] | None,
        _adapters(metavar="FILE[:SCALE]", help="LoRA adapter (GGUF) for the target; repeatable."),
    ] = None
    lora_draft: Annotated[
        list[str] | None,
        _adapters(metavar="FILE[:SCALE]", help="LoRA adapter (GGUF) for the draft model; repeatable."),
    ] = None
    control_vector: Annotated[
        list[str] | None,
        _adapters(
            metavar="FILE[:SCALE][:FROM-TO]",
            help="Control vector (GGUF) for the target, in these layers (default: all); repeatable.",
        ),
    ] = None
    offline: Annotated[bool, _pair("--offline", help="Do not offer to download missing files.")] = False

    @property
    def reads(self) -> ByOption:
        from specdec_cli.presets.adapters import file_of

        adapters = {f"--lora {text}": file_of(text) for text in self.lora or ()}
        adapters |= {f"--lora-draft {text}": file_of(text) for text in self.lora_draft or ()}
        adapters |= {f"--control-vector {text}": file_of(text) for text in self.control_vector or ()}
        return {"--draft": Path(self.draft) if self.draft else None, **adapters}

    def files_for(self, model: str) -> "Resolved":
        """The files of the pair, fetched first if the user agrees. Raises NotHere, UsageError, ModelError."""
        from specdec_cli.presets.adapters import named_adapters, named_vectors
        from specdec_cli.presets.resolve import named_preset, resolve

        preset = named_preset(model)
        if preset is not None and not self.offline:
            offer_to_pull(preset, self.draft)
        files = resolve(model, preset, self.draft, quantize, find, say)
        adapters = Adapters(
            named_adapters("--lora", self.lora or ()),
            named_adapters("--lora-draft", self.lora_draft or ()),
            named_vectors("--control-vector", self.control_vector or ()),
        )
        return replace(files, cross=files.cross or self.cross, adapters=adapters)


@dataclass(frozen=True, slots=True)
class DraftingOptions:
    """How the drafter of a run drafts."""

    k: Annotated[
        str,
        _drafting(
            "-k",
            "--k",
            help="Draft tokens per round; auto picks lengths from live timings.",
            autocompletion=one_of(AUTO, "1", "2", "4", "8"),
        ),
    ] = AUTO
    look_up: Annotated[bool, _drafting("--ngram/--no-ngram", help="With -k auto, also use n-gram lookup.")] = True
    p_min: Annotated[
        float | None,
        _drafting(
            min=0,
            max=1,
            help="Stop drafting at a token whose draft probability is below this (default: the preset's, or 0).",
        ),
    ] = None
    ngram_store: Annotated[
        Path | None,
        _drafting(
            help="Let n-gram lookup also copy from earlier runs. Prompts and answers are stored in this file "
            "(or one file per tokenizer in this folder) as token ids, readable by anyone with the model: up to "
            "262,144 tokens, the oldest dropped first. Without this option nothing is stored."
        ),
    ] = None
    predict: Annotated[
        Path | None,
        _drafting(
            help="A text that the answer will mostly repeat, such as the file to edit: drafts are copied from it. The "
            "model does not read it, so put it into the prompt as well if the answer needs it."
        ),
    ] = None
    force: Annotated[bool, _drafting("--force", help="Run even if the draft is not smaller than the target.")] = False
    profiled: Annotated[bool, _drafting("--profile/--no-profile", help="Use the settings saved by bench --tune.")] = (
        True
    )
    verify: Annotated[
        Literal["coupled", "rejection", "block"],
        _rule(
            help="coupled gives the text of plain decoding. rejection and block give its distribution, "
            "sometimes with a higher acceptance rate."
        ),
    ] = "coupled"
    strict: Annotated[
        bool,
        _rule(
            "--strict",
            help="Limit drafts to lengths whose passes give the same numbers as single tokens; where there are "
            "none, decide near ties in a pass of their own.",
        ),
    ] = False

    @property
    def reads(self) -> ByOption:
        return {"--predict": self.predict}

    @property
    def writes(self) -> ByOption:
        is_file = self.ngram_store is not None and not self.ngram_store.is_dir()
        return {"--ngram-store": self.ngram_store if is_file else None}

    def check(self, draft: str | None) -> None:
        """Raises UsageError for options that exclude each other, and for a store that cannot be."""
        draft_length(self.k)
        store = self.ngram_store
        if store is not None and not store.name:
            raise UsageError("--ngram-store needs a file name.", hint="Give a file, or omit it.")
        if store is not None and not store.parent.is_dir():
            raise UsageError(f"The folder for --ngram-store does not exist: {store.parent}.", hint="Create it first.")
        if self.predict is not None and draft in ("none", "lookahead"):
            raise UsageError(
                f"--predict and --draft {draft} contradict each other.", hint="Leave out one of the two, or use ngram."
            )
        if self.predict is not None and not self.look_up:
            raise UsageError("--no-ngram and --predict contradict each other.", hint="Leave out one of the two.")
        if draft == "ngram" and not self.look_up:
            raise UsageError("--no-ngram and --draft ngram contradict each other.", hint="Leave out one of the two.")

    def profile_of(self, files: "Resolved", draft: str | None) -> "Profile | None":
        """What bench --tune found for this pair, unless the user asked for a drafter by name."""
        from specdec_cli.drafters import NAMED

        return profile_of(files, self.asked()) if self.profiled and draft not in NAMED else None

    def asked(self) -> "Asked":
        from specdec_cli.planning.drafting import Asked

        return Asked(
            k=draft_length(self.k),
            p_min=self.p_min,
            lookup=self.look_up,
            verify=self.verify,
            strict=self.strict,
            ngram_store=self.ngram_store,
            predict=self.predict,
            force=self.force,
        )


def drafter_names(text: str | None, able: Sequence[str]) -> list[str]:
    """Drafters between commas, each one that is `able`, or two of them with + between. Raises UsageError."""
    from specdec_cli.drafters import sources

    names = words(text)
    unknown = [name for name in names if not all(source in able for source in sources(name))]
    if unknown:
        raise UsageError(
            f"Invalid --drafter: {unknown[0]!r}.",
            hint=f"Use one or more of {', '.join(able)}, separated by commas, or ngram+model for n-gram lookup first.",
        )
    return names
