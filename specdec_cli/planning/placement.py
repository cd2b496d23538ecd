"""Whether a pair fits into a machine, how its layers are best placed, and what would make it fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specdec_cli.models.memory import DEVICE_RESERVE_BYTES, PROGRAM_BYTES, ModelFacts, Need, layers_that_fit, need
from specdec_cli.settings import ContextSettings

SMALLEST_CONTEXT = 512
_BITS = (("Q6_K", 6.6), ("Q5_K_M", 5.7), ("Q4_K_M", 4.9), ("Q3_K_M", 3.9), ("Q2_K", 3.2))
"""Common quantisations of a smaller size, and about how many bits each weight takes."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A model and the context it is to have. Without `repack` its weights stay as they lie in the file."""

    facts: ModelFacts
    context: ContextSettings
    repack: bool = True


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device with its own memory."""

    name: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory that can be taken: of the processor (None if unknown) and of each GPU. `repacked` are the formats that
    its kernels reorder (memory.repacked_formats)."""

    ram_bytes: int | None
    gpus: tuple[Gpu, ...] = ()
    repacked: frozenset[str] = frozenset()

    @property
    def gpu_bytes(self) -> int:
        return sum(gpu.free_bytes for gpu in self.gpus)

    @property
    def free_bytes(self) -> int | None:
        """Of all kinds together; None if that of the processor is not known."""
        return None if self.ram_bytes is None else self.ram_bytes + self.gpu_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """A placement: layers of each model on the GPUs, and what both then need where."""

    machine: Machine
    layers: int
    draft_layers: int
    target: Need
    draft: Need | None

    @property
    def ram(self) -> int:
        return PROGRAM_BYTES + self.target.ram + (self.draft.ram if self.draft is not None else 0)

    @property
    def gpu(self) -> int:
        return self.target.gpu + (self.draft.gpu if self.draft is not None else 0)

    @property
    def fits_ram(self) -> bool:
        return self.machine.ram_bytes is None or self.ram <= self.machine.ram_bytes

    @property
    def fits_gpu(self) -> bool:
        return self.gpu <= self.machine.gpu_bytes

    @property
    def fits(self) -> bool:
        return self.fits_ram and self.fits_gpu

    def on_gpu(self, gpu: Gpu) -> int:
        """What one GPU gets: llama.cpp shares layers out by free memory."""
        return self.gpu * gpu.free_bytes // max(self.machine.gpu_bytes, 1)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that would make a pair fit, and how it then lies."""

    text: str
    fit: Fit


def place(target: Sized, draft: Sized | None, machine: Machine, asked: str = "auto", asked_draft: str = "auto") -> Fit:
    """Where the layers go. `asked` is auto, all or a number of layers; auto gives the draft its place first, since it
    is small and runs most often."""
    # What is left over on each GPU but the first; layers_that_fit leaves it on one.
    free = machine.gpu_bytes - DEVICE_RESERVE_BYTES * max(len(machine.gpus) - 1, 0)
    draft_need, draft_layers = None, 0
    if draft is not None:
        draft_layers = _layers(asked_draft, draft, machine, free)
        draft_need = need(draft.facts, draft.context, draft_layers, machine.repacked)
        free -= draft_need.gpu
    layers = _layers(asked, target, machine, free)
    repacked = machine.repacked if target.repack else frozenset[str]()
    return Fit(machine, layers, draft_layers, need(target.facts, target.context, layers, repacked), draft_need)


def _layers(asked: str, model: Sized, machine: Machine, free: int) -> int:
    if not machine.gpus:
        return 0
    if asked == "auto":
        return layers_that_fit(model.facts, model.context, free)
    return model.facts.n_offloadable if asked == "all" else int(asked)


def changes(target: Sized, draft: Sized | None, machine: Machine) -> list[Change]:
    """What would make the pair fit, the change that costs least first; empty if nothing would."""
    found = []
    for text, new_target, new_draft, asked_draft in _ideas(target, draft, machine):
        fit = place(new_target, new_draft, machine, "auto", asked_draft)
        if fit.fits:
            found.append(Change(text, fit))
    return found


def _ideas(target: Sized, draft: Sized | None, machine: Machine) -> Iterator[tuple[str, Sized, Sized | None, str]]:
    small, small_draft = _with_q8_cache(target), _with_q8_cache(draft) if draft is not None else None
    yield "an 8-bit cache (--kv q8_0 --kv-draft q8_0)", small, small_draft, "auto"
    if draft is not None and machine.gpus:
        yield "the draft on the CPU (--ngl-draft 0)", target, draft, "0"
    least = max(SMALLEST_CONTEXT, target.context.max_rows)
    for n_ctx in _shorter(target.context.n_ctx, least):
        yield f"a context of {n_ctx} (--ctx {n_ctx})", *_with_context(target, draft, n_ctx), "auto"
    if draft is not None:
        yield "n-gram lookup instead of a draft model (--draft ngram)", target, None, "auto"
        for n_ctx in (target.context.n_ctx, *_shorter(target.context.n_ctx, least)):
            text = f"no draft model, an 8-bit cache and a context of {n_ctx} (--draft ngram --kv q8_0 --ctx {n_ctx})"
            yield text, *_with_context(small, None, n_ctx), "auto"
    bits = 8 * target.facts.weights_bytes / max(target.facts.n_params, 1)
    for name, fewer in _BITS:
        if fewer < bits - 0.3:
            yield (
                f"the target in {name}, about {fewer / bits:.0%} of this file's size",
                _scaled(target, fewer / bits),
                draft,
                "auto",
            )


def _shorter(n_ctx: int, least: int) -> Iterator[int]:
    while n_ctx > least:
        n_ctx = max(n_ctx // 2, least)
        yield n_ctx


def _with_q8_cache(model: Sized) -> Sized:
    return replace(model, context=replace(model.context, cache_type="q8_0"))


def _with_context(target: Sized, draft: Sized | None, n_ctx: int) -> tuple[Sized, Sized | None]:
    def shortened(model: Sized) -> Sized:
        n_batch = min(model.context.n_batch, n_ctx)
        n_ubatch = min(model.context.n_ubatch, n_ctx)
        return replace(model, context=replace(model.context, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch))

    return shortened(target), shortened(draft) if draft is not None else None


def _scaled(model: Sized, ratio: float) -> Sized:
    """The model in a smaller number format."""
    facts = model.facts
    return replace(
        model,
        facts=replace(
            facts,
            weights_bytes=int(facts.weights_bytes * ratio),
            output_bytes=int(facts.output_bytes * ratio),
            layer_bytes=tuple(int(n * ratio) for n in facts.layer_bytes),
        ),
    )
