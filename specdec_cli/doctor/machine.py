"""Checks of what is here whatever the model: the build of llama.cpp, processors, memory, disks and folders."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from specdec_cli.doctor.checkup import Check, Finding
from specdec_cli.doctor.processors import PROC, load
from specdec_cli.hub.cache import leftovers
from specdec_cli.hub.client import cache_root
from specdec_cli.hub.inventory import draft_work
from specdec_cli.llama import amx
from specdec_cli.llama.devices import built_for_gpu, gpu_devices, has_rpc
from specdec_cli.llama.versions import versions
from specdec_cli.paths import cache_folder, config_folder, create_beside, state_folder
from specdec_cli.planning.machine import available_memory, usable_cores

_REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
}
"""Features of a processor that llama.cpp's kernels gain from: as Linux calls them, and as llama.cpp does."""
_GPU_DRIVERS = {"/dev/nvidiactl": "-DGGML_CUDA=on", "/dev/kfd": "-DGGML_HIP=on"}
"""What a GPU's driver puts there, and the build that uses it."""
_BUSY = 0.25
_LITTLE_MEMORY, _LITTLE_DISK, _FULL_DISK = 10**9, 2 * 10**9, 10**8
_TRIAL = b"x" * 4096
"""A full disk still takes the name of a file, but none of its bytes."""


def machine_checks() -> list[Check]:
    """In the order in which they are told."""
    folders = (
        ("cache", cache_folder(), "SPECDEC_CACHE"),
        ("Hub cache", cache_root(), "HF_HUB_CACHE"),
        ("presets", config_folder(), "SPECDEC_CONFIG"),
        ("history", state_folder(), "SPECDEC_STATE"),
    )
    return [
        Check("build", "the build of llama.cpp", build, 5.0),
        Check("GPU", "GPUs", gpu, 10.0),
        Check("cores", "the processor", cores, 5.0),
        Check("memory", "memory", memory, 2.0),
        *(Check(name, f"the folder {path}", partial(folder, name, path, variable), 5.0)
          for name, path, variable in folders),
    ]  # fmt: skip


def build(*, cpuinfo: Path = PROC / "cpuinfo") -> Finding:
    """Whether llama.cpp uses what the processor can do."""
    found = versions()
    built = {name for name, value in re.findall(r"(\w+) = (\d)", found["llama_cpp_features"]) if value != "0"}
    missing = [name for name in _able(cpuinfo) if name not in built]
    used = [name for name in _FEATURES.values() if name in built]
    rpc = "with RPC" if has_rpc() else "without RPC"
    what = f"llama-cpp-python {found['llama_cpp_python']}, {rpc}, uses {', '.join(used) or 'no vector instructions'}"
    if amx.crashes():
        text = f"{what}; its AMX kernels crash on this machine, so they stay off, which is slower (docs/install.md)."
        return Finding("build", "warning", text, f"CFLAGS=-mno-amx-int8 CXXFLAGS=-mno-amx-int8 {_REBUILD}")
    if missing:
        text = f"{what}; this processor also has {', '.join(missing)}. Built for it, passes are faster."
        return Finding("build", "warning", text, f'CMAKE_ARGS="-DGGML_NATIVE=on" {_REBUILD}')
    return Finding("build", "ok", f"{what}.")


def _able(cpuinfo: Path) -> list[str]:
    """What the processor can do, in llama.cpp's words; nothing where the system does not tell."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    return [name for flag, name in _FEATURES.items() if flag in flags]


def gpu(*, drivers: Sequence[str] | None = None) -> Finding:
    """Whether layers can go to a GPU, if there is one. `drivers` are the device files that lie here."""
    devices = gpu_devices()
    if devices:
        free = ", ".join(f"{device.name} ({device.free_bytes / 1e9:.1f} GB free)" for device in devices)
        return Finding("GPU", "ok", f"{free}.")
    if built_for_gpu():
        text = "This llama.cpp has GPU support, but finds no GPU. Check the driver."
        return Finding("GPU", "warning", text, "nvidia-smi" if shutil.which("nvidia-smi") else "ls -l /dev/dri")
    here = [path for path in _GPU_DRIVERS if os.path.exists(path)] if drivers is None else drivers
    if here:
        text = "A GPU's driver is here, but this llama.cpp was built without GPU support: all layers stay on the CPU."
        return Finding("GPU", "warning", text, f'CMAKE_ARGS="{_GPU_DRIVERS[here[0]]}" {_REBUILD}')
    return Finding("GPU", "ok", "This llama.cpp was built without GPU support, and no GPU's driver was found.")


def cores() -> Finding:
    """How many cores are ours, and what else runs on them."""
    n, found = usable_cores(), load()
    what = f"{n} usable core{'s' * (n != 1)}"
    if found is None:
        return Finding("cores", "ok", f"{what}; how busy they are is not known here.")
    if found.share < _BUSY:
        return Finding("cores", "ok", f"{what}, {found.share:.0%} busy.")
    pid, name = found.busiest or (0, "")
    who = f", most of all by {name} (process {pid})" if pid else ""
    text = f"{what}, {found.share:.0%} busy{who}. Speed varies while others compute, and drafts gain less."
    return Finding("cores", "warning", text, f"ps -o pid,user,etime,args -p {pid}" if pid else "uptime")


def memory() -> Finding:
    """What can be taken without swapping."""
    free = available_memory()
    if free is None:
        return Finding("memory", "ok", "How much memory is free is not known here.")
    if free < _LITTLE_MEMORY:
        text = f"Only {free / 1e6:,.0f} MB of memory are free. Close other programs."
        return Finding("memory", "warning", text, "ps -e -o pid,rss,comm --sort=-rss | head")
    return Finding("memory", "ok", f"{free / 1e9:.1f} GB free.")


def folder(
    name: str, path: Path, variable: str, *, usage: Callable[[Path], tuple[int, int, int]] | None = None
) -> Finding:
    """Whether files can be written there, and how much room they have. Leaves nothing behind."""
    place = _nearest(path)
    is_needed = variable in ("SPECDEC_CACHE", "HF_HUB_CACHE")
    try:
        _write_and_delete(place)
        free = (usage or shutil.disk_usage)(place)[2]
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"{path} cannot be written: {(error.strerror or str(error)).lower()}."
        command = _free_some() if is_full else f"export {variable}=/path/to/a/writable/folder"
        return Finding(name, "problem" if is_needed else "warning", text, command)
    if is_needed and free < _LITTLE_DISK:
        text = f"{path} has only {free / 1e6:,.0f} MB of disk space left."
        return Finding(name, "problem" if free < _FULL_DISK else "warning", text, _free_some())
    return Finding(name, "ok", f"{path} is writable, {free / 1e9:.1f} GB free.")


def _nearest(path: Path) -> Path:
    """The folder itself, or the one that it would be made in."""
    return next((one for one in (path, *path.parents) if os.path.lexists(one)), path)


def _write_and_delete(place: Path) -> None:
    handle, trial = create_beside(place / "specdec-doctor")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_TRIAL)
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink()


def _free_some() -> str:
    """How to make room: what was never finished goes first."""
    has_leftovers = any(leftovers(cache_root())) or bool(draft_work())
    return "specdec rm --leftovers" if has_leftovers else "specdec list"
