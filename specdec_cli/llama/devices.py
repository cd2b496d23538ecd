"""The devices that llama.cpp sees, their free memory, and devices of other machines over RPC."""

import ctypes
import socket
from dataclasses import dataclass
from functools import cache

import llama_cpp
from llama_cpp import _ctypes_extensions, _ggml

from specdec_cli.errors import ModelError, UsageError

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU; RPC devices report the first


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can hold layers. `handle` is llama.cpp's pointer."""

    name: str
    is_gpu: bool
    free_bytes: int
    handle: int


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    base = _ctypes_extensions.load_shared_library("ggml-base", _ggml.libggml_base_path)
    registry = _ggml.libggml
    registry.ggml_backend_dev_count.restype = ctypes.c_size_t
    registry.ggml_backend_dev_get.restype = ctypes.c_void_p
    registry.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    base.ggml_backend_dev_name.restype = ctypes.c_char_p
    base.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    base.ggml_backend_dev_memory.restype = None
    return registry, base


def all_devices() -> list[Device]:
    """Every device of this build, the CPU included, in llama.cpp's order."""
    registry, base = _libraries()
    devices = []
    for i in range(registry.ggml_backend_dev_count()):
        handle = registry.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                name=base.ggml_backend_dev_name(handle).decode(),
                is_gpu=base.ggml_backend_dev_type(handle) in _GPU_TYPES,
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
            f"There is no device {missing[0]!r}.",
            hint=f"This build and machine have: {', '.join(d.name for d in known.values())}.",
        )
    return [known[n.lower()] for n in names]


def built_for_gpu() -> bool:
    """Whether this llama.cpp was compiled with any GPU backend."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def add_rpc_server(endpoint: str) -> None:
    """Make the devices of an RPC server (`host:port`) usable here. Raises ModelError, UsageError."""
    registry, _ = _libraries()
    try:
        rpc = _ctypes_extensions.load_shared_library("ggml-rpc", _ggml.libggml_base_path)
    except (FileNotFoundError, RuntimeError) as error:
        raise ModelError(
            "This llama.cpp was built without RPC.",
            hint='Reinstall it: CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-cache-dir '
            "--no-binary llama-cpp-python llama-cpp-python",
        ) from error
    _check_it_answers(endpoint)
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
    registry.ggml_backend_register.argtypes = [ctypes.c_void_p]
    server = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    if not server:
        raise ModelError(f"The RPC server at {endpoint} has no devices.", hint="Start it with a device.")
    registry.ggml_backend_register(server)


def _check_it_answers(endpoint: str) -> None:
    """llama.cpp ends the process when nobody answers."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--rpc cannot be {endpoint!r}.", hint="Give host:port, such as 192.168.0.2:50052.")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"No RPC server answers at {endpoint}: {reason}.", hint="Start it there and check host and port."
        ) from error
