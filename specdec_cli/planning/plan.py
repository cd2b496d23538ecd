"""What is settled before any weights are read: the tokenizer check, contexts, placement, memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from specdec_cli.advice import cache_notes, pair_notes
from specdec_cli.drafters import sources
from specdec_cli.errors import NoGpu, UsageError, VocabularyMismatch
from specdec_cli.llama import amx
from specdec_cli.llama.devices import built_for_gpu, devices_named, gpu_devices
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.llama.versions import versions
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import read_model
from specdec_cli.models.heads import HeadFacts, described, hidden_bytes, own_head, own_part, read_head, refuse_as_target
from specdec_cli.models.memory import ModelFacts, repacked_formats
from specdec_cli.models.tokenizer_check import Report, compare, n_real, one_line, refusal
from specdec_cli.models.translation import Translation, figures
from specdec_cli.planning.drafting import longest_draft, n_branches
from specdec_cli.planning.machine import available_memory, usable_cores
from specdec_cli.planning.placement import Fit, Gpu, Machine, Sized, changes, place
from specdec_cli.planning.request import Drafting, PairRequest, Placement
from specdec_cli.settings import DEFAULT_CONTEXT, LONGEST_FORCED, ContextSettings, ModelSettings

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How both models will be opened. `n_shared` token ids mean the same in both.

    `tokenizers` is the check's verdict in a line, None without a draft model. `head` is what the draft is if it is
    no model of its own; the `draft` of a head inside the target's file is the target. `translation` is there for a
    draft with another vocabulary: then `n_shared` counts the target's tokens.
    """

    target: ModelSettings
    target_facts: ModelFacts
    target_context: ContextSettings
    draft: ModelSettings | None
    draft_facts: ModelFacts | None
    draft_context: ContextSettings
    n_shared: int
    tokenizers: str | None
    head: HeadFacts | None = None
    translation: Translation | None = None


HEAD_BATCH = 64
"""Rows that a head reads at once. Its graph makes logits of all of them, wanted or not: more would take much memory."""


def make_plan(request: PairRequest, say: Say) -> Plan:
    """Read the headers and decide; `say` takes notes for the user.

    Raises ModelError, VocabularyMismatch, NoGpu, UsageError.
    """
    drafting, placement = request.drafting, request.placement
    headers = read_model(request.target)
    refuse_as_target(headers, request.target.name)
    facts, vocabulary = model_facts(headers), read_vocabulary(request.target)
    # Padding is cut off with a draft and without, so that the text is the same in both cases.
    draft_facts, head, n_shared, tokenizers, translation = None, None, n_real(vocabulary), None, None
    if "mtp" in sources(drafting.drafter):
        head = own_head(headers, request.target.name)
        draft_facts, facts = own_part(facts, headers)
    elif drafting.draft is not None:
        draft_headers = read_model(drafting.draft)
        draft_facts = model_facts(draft_headers)
        head = read_head(draft_headers, headers, drafting.draft.name, drafting.draft)
        if head is not None and not head.has_tokenizer:
            tokenizers = f"{drafting.draft.name} has no tokenizer of its own; it knows {head.n_tokens:,} tokens"
        else:
            report = compare(vocabulary, read_vocabulary(drafting.draft))
            if report.verdict != "mismatch":
                n_shared, tokenizers = min(n_shared, report.n_shared), one_line(report)
            else:
                translation = _translation(report, drafting)
                tokenizers = f"tokenizers differ, drafts are translated ({figures(translation.overlap())})"
        notes = size_notes(facts, draft_facts, force=drafting.force) if head is None else []
        for note in (*notes, *cache_notes(placement.cache_type_draft)):
            say(note)
    if request.adapters.target and draft_facts is not None and head is None and not request.adapters.draft:
        say("The draft has no adapter (--lora-draft), so it drafts for the model without one: expect less acceptance.")
    if request.adapters.draft and (draft_facts is None or head is not None):
        raise UsageError("--lora-draft needs a draft model.", hint="Give one with --draft FILE, or omit --lora-draft.")
    if head is not None:
        say(described(head, (drafting.draft or request.target).name))
    contexts = _contexts(request, facts, draft_facts, say, head=head)
    fit = _fit(placement, *_sized(facts, draft_facts, contexts, head, repack=placement.repack), say)
    common = ModelSettings(
        request.target,
        gpu_layers=fit.layers,
        devices=placement.devices,
        main_gpu=placement.main_gpu,
        tensor_split=placement.tensor_split,
        mmap=placement.mmap,
        mlock=placement.mlock,
        with_mtp=head is not None and head.is_own,
        repack=placement.repack,
        adapters=request.adapters.target,
        control=request.adapters.control,
    )
    draft = None
    if draft_facts is not None:
        draft = replace(
            common,
            path=drafting.draft or request.target,
            gpu_layers=fit.draft_layers,
            is_head=head is not None,
            with_mtp=head is not None and head.kind == "mtp",
            repack=True,  # a draft reads single tokens, which reordered weights are for
            adapters=request.adapters.draft if head is None else (),
            control=(),
        )
    return Plan(common, facts, contexts[0], draft, draft_facts, contexts[1], n_shared, tokenizers, head, translation)


def _translation(report: Report, drafting: Drafting) -> Translation:
    """Between tokenizers that differ. Raises VocabularyMismatch where that was not asked for, or cannot be."""
    translation = Translation(report.target, report.draft)
    reason = translation.why_not()
    if reason is None and drafting.cross:
        return translation
    refused = refusal(report, can_cross=reason is None)
    raise VocabularyMismatch(f"{refused}\nIt cannot be translated: {reason}.", hint=refused.hint) if reason else refused


def _head_context(context: ContextSettings, k: int) -> ContextSettings:
    n_batch = min(max(HEAD_BATCH, k + 1), context.n_ctx)
    return replace(context, n_batch=n_batch, n_ubatch=n_batch, max_rows=n_batch)


def size_notes(target: ModelFacts, draft: ModelFacts, *, force: bool) -> list[str]:
    """What the sizes of a pair make one expect. Raises UsageError for a draft that is not smaller, unless forced."""
    if draft.weights_bytes >= target.weights_bytes and not force:
        raise UsageError(
            f"The draft is not smaller than the target ({draft.weights_bytes / 1e6:,.0f} MB vs. "
            f"{target.weights_bytes / 1e6:,.0f} MB), so drafting would only cost time. Are the two swapped?",
            hint="Swap them, or run them as they are with --force.",
        )
    return pair_notes(target, draft)


def _contexts(
    request: PairRequest, facts: ModelFacts, draft_facts: ModelFacts | None, say: Say, *, head: HeadFacts | None
) -> tuple[ContextSettings, ContextSettings]:
    """Settings of both contexts: the draft's follow the target's unless asked otherwise."""
    placement, k = request.placement, longest_draft(request.drafting, has_states=any(facts.state_bytes))
    n_ctx = _context_length(placement.n_ctx, DEFAULT_CONTEXT, facts, "the target", say)
    threads = _threads(placement.threads, usable_cores(), say)
    n_batch = min(placement.n_batch, n_ctx)
    if request.sampling.grammar is not None and not any(facts.state_bytes):
        k = max(k, min(LONGEST_FORCED, n_ctx - 1, placement.longest_draft))
    target = ContextSettings(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_batch if placement.n_ubatch is None else min(placement.n_ubatch, n_ctx),
        threads=threads,
        cache_type=placement.cache_type,
        flash_attention=placement.flash_attention,
        # No draft is longer than the context, but a k that no pass could hold is told as it was given.
        max_rows=min(k + 1, n_ctx) if k <= placement.longest_draft else k + 1,
        wider_passes=not request.drafting.strict,
        branches=n_branches(request.drafting),
    )
    draft_ctx = n_ctx
    if head is not None:  # it turns positions, so none is too far: it only guesses worse beyond what it was trained for
        draft_ctx = placement.n_ctx_draft or n_ctx
    elif draft_facts is not None:
        draft_ctx = _context_length(placement.n_ctx_draft, n_ctx, draft_facts, "the draft", say)
    draft = replace(
        target,
        n_ctx=draft_ctx,
        threads=_threads(placement.threads_draft, threads, say),
        cache_type=placement.cache_type_draft,
        max_rows=1,
        max_back=target.n_back,
        branches=0,
    )
    return target, _head_context(draft, request.drafting.k) if head is not None else draft


def _context_length(asked: int | None, default: int, facts: ModelFacts, which: str, say: Say) -> int:
    """A model is never given more positions than it was trained for: some abort the process there."""
    n_ctx = default if asked is None else asked or facts.n_ctx_train
    if facts.n_ctx_train and n_ctx > facts.n_ctx_train:
        if asked is not None:
            say(
                f"The context of {which} is limited to {facts.n_ctx_train} tokens, which it was trained for, "
                f"instead of {n_ctx}."
            )
        return facts.n_ctx_train
    return n_ctx


def _threads(asked: int | None, default: int, say: Say) -> int:
    if asked is None:
        return default
    cores = usable_cores()
    if asked > cores:
        say(f"Using {cores} threads instead of {asked}: there are only {cores} usable cores.")
        return cores
    return asked


def _fit(placement: Placement, target: Sized, draft: Sized | None, say: Say) -> Fit:
    """Where the layers go, with a warning where they will be tight. Raises NoGpu if one is required and missing."""
    machine = machine_now(placement.devices)
    asked = [placement.gpu_layers] + ([placement.gpu_layers_draft] if draft is not None else [])
    if not machine.gpus:
        if placement.require_gpu:
            raise _no_gpu()
        if any(a not in ("auto", "0") for a in asked) and not placement.devices:
            say(f"{_no_gpu()} All layers stay on the CPU. {_no_gpu().hint}")
    fit = place(target, draft, machine, placement.gpu_layers, placement.gpu_layers_draft)
    if not fit.fits_gpu:
        say(
            f"The requested layers need about {fit.gpu / 1e9:.1f} GB of GPU memory and "
            f"{fit.machine.gpu_bytes / 1e9:.1f} GB are free. Use --ngl auto, a smaller --ctx or --kv q8_0."
        )
    if not fit.fits_ram and fit.machine.ram_bytes is not None:
        found = changes(target, draft, fit.machine)
        say(
            f"About {fit.ram / 1e9:.1f} GB are needed and {fit.machine.ram_bytes / 1e9:.1f} GB are free: expect "
            "swapping or running out of memory. What would fit: "
            f"{found[0].text if found else 'nothing of this size'}."
        )
    return fit


def size_up(
    request: PairRequest, facts: ModelFacts, draft_facts: ModelFacts | None, say: Say, *, head: HeadFacts | None = None
) -> tuple[Sized, Sized | None]:
    """Both models with the contexts that a run with this request would give them."""
    return _sized(facts, draft_facts, _contexts(request, facts, draft_facts, say, head=head), head)


def _sized(
    facts: ModelFacts,
    draft_facts: ModelFacts | None,
    contexts: tuple[ContextSettings, ContextSettings],
    head: HeadFacts | None,
    *,
    repack: bool = True,
) -> tuple[Sized, Sized | None]:
    if draft_facts is not None and head is not None:
        draft_facts = replace(draft_facts, hidden_bytes=hidden_bytes(head, facts.n_embd, contexts[0].n_batch))
    return Sized(facts, contexts[0], repack), Sized(draft_facts, contexts[1]) if draft_facts is not None else None


def machine_now(devices: tuple[str, ...] = ()) -> Machine:
    """This machine's free memory; of the devices named, if any are. Raises UsageError for an unknown one."""
    chosen = devices_named(devices) if devices else gpu_devices()
    return Machine(
        ram_bytes=available_memory(),
        gpus=tuple(Gpu(d.name, d.free_bytes) for d in chosen if d.is_gpu),
        repacked=frozenset() if amx.crashes() else repacked_formats(versions()["llama_cpp_features"]),
    )


def _no_gpu() -> NoGpu:
    if built_for_gpu():
        return NoGpu(
            "llama.cpp finds no GPU on this machine.", hint="Check the driver, or choose a device with --device."
        )
    return NoGpu(
        "This llama.cpp was built without GPU support.",
        hint='Reinstall it for your GPU, for example CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall '
        "--no-cache-dir --no-binary llama-cpp-python llama-cpp-python (Metal, Vulkan and HIP: docs/install.md).",
    )
