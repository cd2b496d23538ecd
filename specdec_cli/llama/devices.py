"""llama.cpp's devices, their free memory, and devices of other machines over RPC."""

import ctypes
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import llama_cpp
from llama_cpp import _ctypes_extensions, _ggml

from specdec_cli.errors import ModelError, UsageError

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU; RPC devices report the first

_NOT_GPU = ("CPU", "BLAS", "ZenDNN", "zDNN", "RPC")
"""Backends that compute on the processor, or on other machines; these have names such as RPC[host:port]."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can hold layers. `handle` is llama.cpp's pointer."""

    name: str
    is_gpu: bool
    free_bytes: int
    handle: int


def all_devices() -> list[Device]:
    """Every device of this build, the CPU included, in llama.cpp's order."""
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    get = ggml_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml_function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    memory = ggml_function("ggml_backend_dev_memory", None, ctypes.c_void_p, size_pointer, size_pointer)
    devices = []
    for i in range(ggml_function("ggml_backend_dev_count", ctypes.c_size_t)()):
        handle = get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                name=name(handle).decode(),
                is_gpu=kind(handle) in _GPU_TYPES,
                free_bytes=free.value,
                handle=handle,
            )
        )
    return devices


def gpu_devices() -> list[Device]:
    """The devices that layers can be offloaded to."""
    return [d for d in all_devices() if d.is_gpu]


def devices_named(names: tuple[str, ...]) -> list[Device]:
    """The devices with these names (any case), in this order. Raises UsageError for an unknown one."""
    known = {d.name.lower(): d for d in all_devices()}
    missing = [n for n in names if n.lower() not in known]
    if missing:
        raise UsageError(
            f"Unknown device: {missing[0]!r}.",
            hint=f"Available devices: {', '.join(d.name for d in known.values())}.",
        )
    return [known[n.lower()] for n in names]


def built_for_gpu() -> bool:
    """Whether this llama.cpp was compiled with a GPU backend, whether or not the machine has a GPU for it.

    `llama_supports_gpu_offload` asks something else: it is true for RPC alone, and false without a device.
    """
    get = ggml_function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    count = ggml_function("ggml_backend_reg_count", ctypes.c_size_t)()
    return any(not name(get(i)).decode().startswith(_NOT_GPU) for i in range(count))


def has_rpc() -> bool:
    """Whether this llama.cpp was built with RPC."""
    try:
        ggml_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    except AttributeError:
        return False
    return True


def add_rpc_server(endpoint: str) -> None:
    """Make the devices of an RPC server (`host:port`) usable here. Raises ModelError, UsageError."""
    try:
        add_server = ggml_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    except AttributeError as error:
        raise ModelError(
            "This llama.cpp was built without RPC.",
            hint='Reinstall it: CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-cache-dir '
            "--no-binary llama-cpp-python llama-cpp-python",
        ) from error
    _check_it_answers(endpoint)
    server = add_server(endpoint.encode())
    if not server:
        raise ModelError(f"The RPC server at {endpoint} has no devices.", hint="Start it with a device.")
    ggml_function("ggml_backend_register", None, ctypes.c_void_p)(server)


def _check_it_answers(endpoint: str) -> None:
    """llama.cpp ends the process when nobody answers."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"Invalid --rpc: {endpoint!r}.", hint="Give host:port, such as 192.168.0.2:50052.")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"No RPC server answers at {endpoint}: {reason}.", hint="Start one there, and check host and port."
        ) from error


@cache
def ggml_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml. Raises AttributeError if this build has none of that name.

    It is looked for through libllama first. A wheel holds copies of each library under several names, so
    that llama_cpp opens another libggml than libllama does, with a list of devices that libllama never sees.
    """
    for library in _libraries():
        if hasattr(library, name):
            function = library[name]  # an object of its own, whose types nobody else sets
            function.restype, function.argtypes = result, arguments
            return function
    raise AttributeError(name)


def _libraries() -> Iterator[ctypes.CDLL]:
    """Libraries that may have a function. Windows looks only in the library itself, not in those it opened."""
    yield llama_cpp.llama_cpp._lib
    yield _ggml.libggml
    for name in ("ggml-base", "ggml-rpc"):
        with suppress(FileNotFoundError, RuntimeError):
            yield _ctypes_extensions.load_shared_library(name, _ggml.libggml_base_path)
