"""What was found to be fastest for a pair on this machine, kept so that later runs use it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specdec_cli.folders import config_folder, write_whole
from specdec_cli.llama.build import versions
from specdec_cli.llama.devices import gpu_devices
from specdec_cli.machine import processor, usable_cores


@dataclass(frozen=True, slots=True)
class Profile:
    """The fastest way found. `drafter` is none where drafting does not pay; `threads` None for the usual number.

    `speedup` over plain decoding and `date` are what it was measured to be, and when.
    """

    drafter: str
    k: int
    p_min: float
    threads: int | None
    speedup: float
    date: str

    def __str__(self) -> str:
        if self.drafter == "none":
            return f"plain decoding, since no draft pays here (measured {self.date})"
        p_min = f", p-min {self.p_min:g}" if self.p_min else ""
        threads = f", {self.threads} threads" if self.threads is not None else ""
        return (
            f"{self.drafter} k {self.k}{p_min}{threads} ({self.speedup:.2f} times plain decoding, measured {self.date})"
        )


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile is good for: files by name and size, devices, and the build of llama.cpp."""

    target: tuple[str, int]
    draft: tuple[str, int] | None
    processor: str
    devices: tuple[str, ...]
    build: str

    @property
    def file(self) -> Path:
        """Where the profile of this key lies."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]
        return config_folder() / "profiles" / f"{digest}.json"


def key_for(target: Path, draft: Path | None) -> ProfileKey:
    """The key of a pair on this machine, as it is now. Raises OSError for a file that is not there."""
    return ProfileKey(
        target=_named(target),
        draft=_named(draft) if draft is not None else None,
        processor=f"{processor()}, {usable_cores()} cores",
        devices=tuple(device.name for device in gpu_devices()),
        build=versions()["llama_cpp_python"],
    )


def _named(path: Path) -> tuple[str, int]:
    """A file as keys have it; hashing gigabytes at every start would cost more than it tells."""
    return path.name, path.stat().st_size


def load_profile(key: ProfileKey) -> Profile | None:
    """The profile for this key; None without one, and for a file that is none."""
    try:
        data = json.loads(key.file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    profile = data.get("profile") if isinstance(data, dict) else None
    if not isinstance(profile, dict) or profile.keys() != {field.name for field in fields(Profile)}:
        return None
    return _checked(profile)


def _checked(data: Mapping[str, Any]) -> Profile | None:
    k, p_min, threads, speedup = data["k"], data["p_min"], data["threads"], data["speedup"]
    is_right = (
        data["drafter"] in ("model", "ngram", "lookahead", "medusa", "none")
        and type(k) is int
        and k >= 0
        and isinstance(p_min, (int, float))
        and 0 <= p_min <= 1
        and (threads is None or (type(threads) is int and threads > 0))
        and isinstance(speedup, (int, float))
    )
    return Profile(data["drafter"], k, float(p_min), threads, float(speedup), str(data["date"])) if is_right else None


def save_profile(key: ProfileKey, profile: Profile) -> Path:
    """Raises OSError."""
    write_whole(key.file, json.dumps({"key": asdict(key), "profile": asdict(profile)}, indent=1) + "\n")
    return key.file
