"""Options for devices, memory and threads, shared by every command that opens a pair."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from specdec_cli.commands.completion import cache_types, one_of
from specdec_cli.commands.options import first, in_panel, layers
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.planning.profile import Profile
    from specdec_cli.planning.request import Placement

_placement = in_panel("GPU, memory, threads")


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """None means "choose"."""

    ngl: Annotated[
        str,
        _placement(
            help="Layers of the target on the GPU: auto, all or a number.", autocompletion=one_of("auto", "all")
        ),
    ] = "auto"
    ngl_draft: Annotated[
        str,
        _placement(help="Layers of the draft on the GPU: auto, all or a number.", autocompletion=one_of("auto", "all")),
    ] = "auto"
    device: Annotated[
        list[str] | None,
        _placement(help="Device to use, by llama.cpp's name; repeatable. cpu uses no GPU."),
    ] = None
    main_gpu: Annotated[int, _placement(min=0, help="GPU for everything that is not split.")] = 0
    tensor_split: Annotated[str | None, _placement(help="How to split layers across GPUs, such as 3,1.")] = None
    rpc: Annotated[list[str] | None, _placement(help="RPC server to use, as host:port; repeatable.")] = None
    require_gpu: Annotated[
        bool, _placement("--require-gpu", help="Fail instead of running the target without a GPU.")
    ] = False
    flash_attn: Annotated[Literal["auto", "on", "off"] | None, _placement(help="Flash attention (default: auto).")] = (
        None
    )
    kv: Annotated[
        str | None,
        _placement(help="KV cache type of the target: f16, q8_0, q4_0 ... (default: f16).", autocompletion=cache_types),
    ] = None
    kv_draft: Annotated[
        str | None,
        _placement(
            help="KV cache type of the draft (default: f16). 4-bit types halve acceptance.", autocompletion=cache_types
        ),
    ] = None
    ctx: Annotated[
        int | None,
        _placement(
            min=0,
            help="Context size in tokens (default: 4096, or less if the model was trained for less); 0: "
            "the model's training context.",
        ),
    ] = None
    ctx_draft: Annotated[int | None, _placement(min=0, help="Context size of the draft (default: the target's).")] = (
        None
    )
    batch: Annotated[int, _placement(min=1, help="Prompt tokens per pass.")] = 512
    ubatch: Annotated[int | None, _placement(min=1, help="Physical batch size (default: as --batch).")] = None
    threads: Annotated[
        int | None, _placement(min=1, help="Threads for the target (default: the cores this process may use).")
    ] = None
    threads_draft: Annotated[int | None, _placement(min=1, help="Threads for the draft (default: the target's).")] = (
        None
    )
    repack: Annotated[
        bool | None,
        _placement(
            help="Reorder the target's weights for the CPU's kernels (default: on). Off, wide passes cost less "
            "compared with single tokens, which cost more."
        ),
    ] = None
    mmap: Annotated[bool, _placement(help="Memory-map model files.")] = True
    mlock: Annotated[bool, _placement("--mlock", help="Lock the weights in RAM.")] = False
    trust: Annotated[
        bool, _placement("--trust", help="Open new files without first testing them in a separate process.")
    ] = False

    def asked(self, profile: "Profile | None" = None) -> "Placement":
        """What was given; what was not, as bench --tune found it best. Raises UsageError."""
        from specdec_cli.planning.request import Placement

        return Placement(
            gpu_layers=layers(self.ngl, "--ngl"),
            gpu_layers_draft=layers(self.ngl_draft, "--ngl-draft"),
            devices=tuple(self.device or ()),
            main_gpu=self.main_gpu,
            tensor_split=_shares(self.tensor_split),
            rpc=tuple(self.rpc or ()),
            require_gpu=self.require_gpu,
            repack=first(self.repack, profile.repack if profile else None, True),
            mmap=self.mmap,
            mlock=self.mlock,
            trust=self.trust,
            flash_attention=first(self.flash_attn, profile.flash_attention if profile else None, "auto"),
            cache_type=first(self.kv, profile.cache_type if profile else None, "f16"),
            cache_type_draft=first(self.kv_draft, profile.cache_type_draft if profile else None, "f16"),
            n_ctx=self.ctx,
            n_ctx_draft=self.ctx_draft,
            n_batch=self.batch,
            n_ubatch=self.ubatch,
            threads=self.threads if self.threads is not None or profile is None else profile.threads,
            threads_draft=self.threads_draft
            if self.threads_draft is not None or self.threads is not None or profile is None
            else profile.threads_draft,
        )


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        shares = (-1.0,)
    if all(0 <= share < float("inf") for share in shares) and (any(shares) or not shares):
        return shares
    raise UsageError(f"Invalid --tensor-split: {text!r}.", hint="Give numbers separated by commas, such as 3,1.")
