"""What a shell may complete: presets, drafters and files."""

import glob
import os

_MODELS = (".gguf", ".safetensors")


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    from specdec_cli.presets.schema import preset_names

    return [name for name in sorted(preset_names()) if name.startswith(incomplete)]


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


def _files(incomplete: str) -> list[str]:
    found = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
    return [
        f"{path}/" if os.path.isdir(path) else path for path in found if os.path.isdir(path) or path.endswith(_MODELS)
    ]
