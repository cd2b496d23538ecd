"""What a shell may complete: presets, drafters, files and the values of options."""

import glob
import os
from collections.abc import Callable

_MODELS = (".gguf", ".safetensors")


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    from specdec_cli.presets.schema import preset_names

    return [name for name in sorted(preset_names()) if name.startswith(incomplete)]


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Completes one of these."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def cache_types(incomplete: str) -> list[str]:
    """Types of KV caches."""
    from specdec_cli.settings import CACHE_TYPE_BYTES

    return one_of(*CACHE_TYPE_BYTES)(incomplete)


def drafters(incomplete: str) -> list[str]:
    """Drafters, the last of several with commas between them."""
    from specdec_cli.drafters import DRAFTERS

    return _last_of(incomplete, [name for name in DRAFTERS if name != "none"])


def kinds_of_text(incomplete: str) -> list[str]:
    """Kinds of text of the shipped prompts, as above."""
    from specdec_cli.bench.prompt_set import SHIPPED, read_prompts

    return _last_of(incomplete, list(dict.fromkeys(prompt.kind for prompt in read_prompts(SHIPPED))))


def _last_of(incomplete: str, values: list[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{value}" for value in values if value.startswith(last)]


def models(incomplete: str) -> list[str]:
    """Presets, and files that may be models."""
    return [*presets(incomplete), *_files(incomplete)]


def drafts(incomplete: str) -> list[str]:
    """Drafters, and files that may be drafts."""
    from specdec_cli.drafters import NAMED

    return [*(name for name in NAMED if name.startswith(incomplete)), *_files(incomplete)]


def engines(incomplete: str) -> list[str]:
    """Engines that a pair can be exported to."""
    from specdec_cli.export.engines import ENGINES

    return [name for name in ENGINES if name.startswith(incomplete)]


def any_files(incomplete: str) -> list[str]:
    """Files and folders."""
    return _files(incomplete, ("",))


def _files(incomplete: str, endings: tuple[str, ...] = _MODELS) -> list[str]:
    found = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
    return [
        f"{path}/" if os.path.isdir(path) else path for path in found if os.path.isdir(path) or path.endswith(endings)
    ]
