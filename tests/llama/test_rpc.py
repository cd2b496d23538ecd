"""Layer offload for real on any machine: the "GPUs" are two devices of an RPC server in a second process.

Needs a llama.cpp that was built with -DGGML_RPC=ON; SPECDEC_REQUIRE_RPC=1 makes its absence a failure.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings
from tests import real_models
from tests.cli import Done, run_json, specdec
from tests.planted import disturbed, random_chain, write_planted

_IS_REQUIRED = os.environ.get("SPECDEC_REQUIRE_RPC") == "1"

SERVER = """
import ctypes, sys
from llama_cpp import _ctypes_extensions, _ggml

rpc = _ctypes_extensions.load_shared_library("ggml-rpc", _ggml.libggml_base_path)
by_type = _ggml.libggml.ggml_backend_dev_by_type
by_type.restype = ctypes.c_void_p
cpu = by_type(0)
devices = (ctypes.c_void_p * 2)(cpu, cpu)
start = rpc.ggml_backend_rpc_start_server
start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
start(sys.argv[1].encode(), None, 1, 2, devices)
"""


@pytest.fixture(scope="module", autouse=True)
def needs_rpc() -> None:
    import llama_cpp

    if llama_cpp.llama_supports_rpc():
        return
    reason = "this llama.cpp was built without RPC (CMAKE_ARGS=-DGGML_RPC=ON)"
    if _IS_REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def server(needs_rpc: None) -> Iterator[str]:  # noqa: ARG001  (it settles whether there can be one)
    """host:port of a server with the devices RPC0 and RPC1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, endpoint], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(200):
        assert process.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of 6 layers (7 with the output, as llama.cpp counts) and a draft of 3 (4)."""
    folder = tmp_path_factory.mktemp("rpc")
    chain = random_chain(320, 1)
    target = write_planted(folder / "target.gguf", chain, n_layers=6)
    return target, write_planted(folder / "draft.gguf", disturbed(chain, 0.5, 2), n_layers=3)


@pytest.fixture(scope="module")
def on_cpu(pair: tuple[Path, Path]) -> list[int]:
    ids: list[int] = run(pair).document["token_ids"]
    return ids


def run(pair: tuple[Path, Path], *arguments: object, prompt: str = "a b", n: int = 32, **kwargs: Any) -> Done:
    target, draft = pair
    sampling = ("--temp", 1, "--top-k", 0, "--top-p", 1, "--min-p", 0, "--seed", 3)
    return run_json(target, prompt, "-n", n, "-k", 4, "--draft", draft, *sampling, *arguments, **kwargs)


def layers(done: Done) -> list[tuple[int, int]]:
    """(on the GPU, all) of target and draft."""
    models = done.document["models"]
    return [(models[which]["layers_on_gpu"], models[which]["layers"]) for which in ("target", "draft")]


def buffers(log: Path) -> set[str]:
    """The RPC devices that weights lie on, as llama.cpp's log has it."""
    lines = [line for line in log.read_text().splitlines() if "model buffer size" in line]
    assert len(lines) >= 2
    return {name for name in ("RPC0", "RPC1") if any(name in line for line in lines)}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--ngl", "all", "--ngl-draft", "all"), [(7, 7), (4, 4)]),
        (("--ngl", 5, "--ngl-draft", 0), [(5, 7), (0, 4)]),
        (("--ngl", 0, "--ngl-draft", 2), [(0, 7), (2, 4)]),
        (("--ngl", 0, "--ngl-draft", 0), [(0, 7), (0, 4)]),
        ((), [(7, 7), (4, 4)]),
        (("--device", "RPC1", "--ngl", "all"), [(7, 7), (4, 4)]),
        (("--device", "rpc0", "--ngl", 3, "--ngl-draft", 1), [(3, 7), (1, 4)]),
        (("--device", "cpu", "--ngl", "all", "--ngl-draft", "all"), [(0, 7), (0, 4)]),
        (("--tensor-split", "3,1", "--main-gpu", 1), [(7, 7), (4, 4)]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_layers_lie_where_they_were_asked_to(
    server: str, pair: tuple[Path, Path], on_cpu: list[int], flags: tuple[object, ...], expected: list[tuple[int, int]]
) -> None:
    done = run(pair, "--rpc", server, *flags)
    assert layers(done) == expected
    assert done.document["token_ids"] == on_cpu
    assert "GPU" not in done.err


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        (("--device", "RPC0"), {"RPC0"}),
        (("--device", "RPC1"), {"RPC1"}),
        ((), {"RPC0", "RPC1"}),
        (("--tensor-split", "1,0"), {"RPC0"}),
        (("--device", "cpu"), set()),
    ],
)
def test_devices_are_those_that_were_named(
    server: str, pair: tuple[Path, Path], tmp_path: Path, flags: tuple[object, ...], devices: set[str]
) -> None:
    log = tmp_path / "llama.log"
    run(pair, "--rpc", server, *flags, "--log", log, n=1)
    assert buffers(log) == devices


def test_layers_without_a_device_are_not_counted(pair: tuple[Path, Path]) -> None:
    """llama.cpp's log says "offloaded 5/7 layers to GPU" even then."""
    with LlamaModel(ModelSettings(pair[0], gpu_layers=5)) as model:
        assert model.layers_on_gpu == (0, 7)


def test_a_real_pair_writes_the_same_on_both(server: str) -> None:
    pair = tuple(real_models.need(real_models.smollm2, quant) for quant in ("Q8_0", "Q4_0"))
    same = {"prompt": "Tell me a story about a lighthouse.", "n": 32}
    done = run(pair, "--rpc", server, "--ngl", "all", "--ngl-draft", "all", **same)
    assert layers(done) == [(31, 31), (31, 31)]
    assert done.document["token_ids"] == run(pair, "--threads", 1, **same).document["token_ids"]
    assert done.stats["accepted"] > 0


def test_views_are_told_what_was_done(server: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    run(pair, "--rpc", server, "--ngl", 5, "--ngl-draft", 0, "--jsonl", trace, n=1)
    header = json.loads(trace.read_text().splitlines()[0])["header"]
    assert [header[which]["layers_on_gpu"] for which in ("target", "draft")] == [[5, 7], [0, 4]]


# --- every command that opens a pair ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "devices"),
    [(("--device", "RPC1", "--ngl", "all", "--ngl-draft", "all"), {"RPC1"}), ((), {"RPC0", "RPC1"})],
)
@pytest.mark.parametrize("command", ["bench", "audit"])
def test_measuring_commands_offload_as_run_does(
    server: str, pair: tuple[Path, Path], tmp_path: Path, command: str, flags: tuple[str, ...], devices: set[str]
) -> None:
    log, json_file, prompts = tmp_path / "llama.log", tmp_path / "out.json", tmp_path / "prompts.txt"
    prompts.write_text("a b c")
    work = {"bench": ("-n", 8, "--repeats", 1, "-k", 2), "audit": ("--tokens", 16, "--rules", "coupled", "-k", 2)}
    target, draft = pair
    done = specdec(
        command,
        *(target, "--draft", draft, "--prompts", prompts, "--temp", 0, "--drafter", "model", *work[command]),
        *("--rpc", server, "--flash-attn", "off", "--batch", 64, "--log", log, "--json", json_file, *flags),
    )
    assert done.code == 0, done.err
    assert buffers(log) == devices
    settings = json.loads(json_file.read_text())["settings"]
    assert (settings["rpc"], settings["n_batch"], settings["flash_attention"]) == ([server], 64, "off")
    assert settings["devices"] == (["RPC1"] if flags else [])


# --- a GPU is required ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--ngl", 1)])
def test_a_required_gpu_that_is_there(server: str, pair: tuple[Path, Path], flags: tuple[object, ...]) -> None:
    assert layers(run(pair, "--rpc", server, "--require-gpu", *flags, n=1))[0][0] > 0


@pytest.mark.parametrize("flags", [("--ngl", 0), ("--device", "cpu")])
def test_a_required_gpu_that_was_not_to_be_used(
    server: str, pair: tuple[Path, Path], flags: tuple[object, ...]
) -> None:
    done = run(pair, "--rpc", server, "--require-gpu", *flags)
    assert (done.code, done.out) == (6, "")


def test_a_required_gpu_that_is_not_there(pair: tuple[Path, Path]) -> None:
    """Without a server, a build for RPC is a build without a GPU."""
    done = run(pair, "--require-gpu")
    assert (done.code, done.out) == (6, "")
    assert "Error: This llama.cpp was built without GPU support.\nHint: Reinstall it for your GPU" in done.err


def test_layers_for_a_gpu_that_is_not_there_are_one_warning(pair: tuple[Path, Path]) -> None:
    done = run(pair, "--ngl", 5, n=1)
    assert layers(done) == [(0, 7), (0, 4)]
    (warning,) = [line for line in done.err.splitlines() if "GPU" in line]
    assert warning.startswith("This llama.cpp was built without GPU support. All layers stay on the CPU. Reinstall it")


# --- servers that do not answer -------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_an_error_in_words(pair: tuple[Path, Path]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        done = run(pair, "--rpc", endpoint)
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        f"Error: No RPC server answers at {endpoint}: Connection refused.\n"
        "Hint: Start one there, and check host and port.\n"
    )


@pytest.mark.parametrize("endpoint", ["localhost", ":50052", "localhost:", "localhost:rpc"])
def test_an_endpoint_is_host_and_port(pair: tuple[Path, Path], endpoint: str) -> None:
    done = specdec("run", pair[0], "a b", "--rpc", endpoint)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid --rpc: '{endpoint}'." in done.err


def test_an_unknown_device_is_told_the_known_ones(server: str, pair: tuple[Path, Path]) -> None:
    done = run(pair, "--rpc", server, "--device", "CUDA0")
    assert (done.code, done.out) == (2, "")
    assert "Unknown device: 'CUDA0'.\nHint: Available devices: CPU, RPC0, RPC1." in done.err
