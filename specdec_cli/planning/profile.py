"""What was found to be fastest for a pair on this machine, kept so that later runs use it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from specdec_cli.drafters import DRAFTERS, sources
from specdec_cli.llama.devices import gpu_devices
from specdec_cli.llama.versions import versions
from specdec_cli.paths import config_folder, write_whole
from specdec_cli.planning.machine import processor, usable_cores
from specdec_cli.settings import CACHE_TYPE_BYTES, Adapters, FlashAttention
from specdec_cli.untrusted import one_line
from specdec_cli.untrusted_files import read_json

_LARGEST_FILE = 1 << 16
_LONGEST_DRAFT, _MOST_THREADS, _MOST_SPEEDUP = 511, 1024, 1000.0
"""A pass takes 512 tokens unless asked for more; beyond the others nothing was ever measured."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The fastest way found. `drafter` is none where drafting does not pay; `threads`, the caches' types,
    `flash_attention` and `repack` are None where the usual is best.

    `speedup` over plain decoding and `date` are what it was measured to be, and when.
    """

    drafter: str
    k: int | Literal["auto"]
    p_min: float
    threads: int | None
    speedup: float
    date: str
    cache_type: str | None = None
    cache_type_draft: str | None = None
    flash_attention: FlashAttention | None = None
    threads_draft: int | None = None
    repack: bool | None = None

    def __str__(self) -> str:
        if self.drafter == "none":
            return f"plain decoding, because no draft pays here{self._opened} (measured {self.date})"
        p_min = f", p-min {self.p_min:g}" if self.p_min else ""
        how = f"{self.drafter} k {self.k}{p_min}{self._opened}"
        return f"{how} ({self.speedup:.2f} times plain decoding, measured {self.date})"

    @property
    def _opened(self) -> str:
        """How contexts are opened, where that is not the usual way."""
        parts = (
            f"{self.threads} threads" if self.threads is not None else "",
            f"{self.threads_draft} for the draft" if self.threads_draft is not None else "",
            "weights not reordered" if self.repack is False else "",
            f"cache {self.cache_type}" if self.cache_type is not None else "",
            f"draft's cache {self.cache_type_draft}" if self.cache_type_draft is not None else "",
            f"flash attention {self.flash_attention}" if self.flash_attention is not None else "",
        )
        return "".join(f", {part}" for part in parts if part)


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile is good for: files by name and size, devices, and the build of llama.cpp."""

    target: tuple[str, int]
    draft: tuple[str, int] | None
    processor: str
    devices: tuple[str, ...]
    build: str
    adapters: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Where the profile of this key lies."""
        depends = asdict(self)
        if not self.adapters:  # as keys were before there were any
            del depends["adapters"]
        digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:20]
        return config_folder() / "profiles" / f"{digest}.json"


def key_for(target: Path, draft: Path | None, adapters: Adapters | None = None) -> ProfileKey:
    """The key of a pair on this machine, as it is now. Raises OSError for a file that is not there."""
    return ProfileKey(
        target=named(target),
        draft=named(draft) if draft is not None else None,
        processor=f"{processor()}, {usable_cores()} cores",
        devices=tuple(device.name for device in gpu_devices()),
        build=versions()["llama_cpp_python"],
        adapters=_named_adapters(adapters) if adapters is not None else (),
    )


def _named_adapters(adapters: Adapters) -> tuple[str, ...]:
    target = (*adapters.target, *adapters.control)
    return (*(f"target: {one}" for one in target), *(f"draft: {one}" for one in adapters.draft))


def named(path: Path) -> tuple[str, int]:
    """A file as keys have it; hashing gigabytes at every start would cost more than it tells."""
    return path.name, path.stat().st_size


def load_profile(key: ProfileKey) -> Profile | None:
    """The profile for this key; None without one, and for a file that is none."""
    try:
        data = read_json(key.file, _LARGEST_FILE)
    except (OSError, ValueError):
        return None
    profile = data.get("profile") if isinstance(data, dict) else None
    needed = {field.name for field in fields(Profile) if field.default is MISSING}
    if not isinstance(profile, dict) or not needed <= profile.keys() <= {field.name for field in fields(Profile)}:
        return None
    return _checked(profile)


def _checked(data: Mapping[str, Any]) -> Profile | None:
    k, p_min, speedup = data["k"], data["p_min"], data["speedup"]
    caches = [data.get(name) for name in ("cache_type", "cache_type_draft")]
    is_right = (
        isinstance(data["drafter"], str)
        and _is_drafter(data["drafter"])
        and (k == "auto" or (type(k) is int and 0 <= k <= _LONGEST_DRAFT))
        and isinstance(p_min, (int, float))
        and 0 <= p_min <= 1
        and all(_is_threads(data.get(name)) for name in ("threads", "threads_draft"))
        and isinstance(speedup, (int, float))
        and 0 < speedup <= _MOST_SPEEDUP
        and isinstance(data["date"], str)
        and all(cache is None or (isinstance(cache, str) and cache in CACHE_TYPE_BYTES) for cache in caches)
        and data.get("flash_attention") in (None, "auto", "on", "off")
        and (data.get("repack") is None or isinstance(data["repack"], bool))
    )
    if not is_right:
        return None
    numbers = {"p_min": float(p_min), "speedup": float(speedup), "date": one_line(data["date"])}
    return Profile(**{**data, **numbers})


def _is_threads(n: Any) -> bool:
    return n is None or (type(n) is int and 0 < n <= _MOST_THREADS)


def _is_drafter(name: str) -> bool:
    """Whether it is one of the table, or one that takes turns with lookup."""
    first, *second = sources(name)
    return first in DRAFTERS and (not second or (first == "ngram" and second[0] in DRAFTERS.keys() - {"none", first}))


def save_profile(key: ProfileKey, profile: Profile) -> Path:
    """Raises OSError."""
    write_whole(key.file, json.dumps({"key": asdict(key), "profile": asdict(profile)}, indent=1) + "\n")
    return key.file
