"""Damaged GGUF headers by the thousand: the reader may refuse them, and nothing else.

    python -m scripts.checks.fuzz_gguf [-n 100000] [--seed 0] [--llama] [--whole] [--keep FOLDER]

Valid headers with tokenizers of several kinds are damaged (bits turned, numbers such as 2^63 put in, pieces cut
out, doubled or taken from another header, ends cut off) and read. Prints how many were read, refused, ended in
another exception or took longer than a second, and the memory at its highest; ends with 1 after a crash or a hang.

With --llama every header that was read is also opened by llama.cpp as `specdec check` does, many in one child
process, to see which of them end the process; --whole also loads the model, whose weights are zeros. Headers that end
the process are kept (--keep FOLDER).
"""

import argparse
import random
import resource
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from specdec_cli.errors import ModelError
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import GgufHeader, parse_gguf, read_gguf
from specdec_cli.models.memory import need
from specdec_cli.settings import ContextSettings
from tests.planted import Arch, make_vocab, random_chain, write_planted, write_vocab_only

TOO_SLOW = 1.0
PATIENCE = 20.0
"""Seconds for llama.cpp to open one small header."""

CHILD = """
import sys
from pathlib import Path
from specdec_cli.errors import SpecdecError
from specdec_cli.llama.model import LlamaModel, read_vocabulary
from specdec_cli.settings import ModelSettings
for line in sys.stdin:
    path, said = Path(line.strip()), "refused"
    try:
        read_vocabulary(path)
        said = "opened"
        if sys.argv[1:]:
            with LlamaModel(ModelSettings(path, gpu_layers=0)) as model:
                said = "loaded whole"
    except SpecdecError:
        pass
    print(said, flush=True)
"""

_ANSWERS = ("opened", "loaded whole", "refused")
_ARCHITECTURES: tuple[Arch, ...] = ("llama", "gemma3", "mamba", "lfm2")
_NUMBERS = (0, 1, 2, 3, 6, 8, 9, 12, 13, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_STRUCTS = (struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q"))


@dataclass(frozen=True, slots=True)
class Damaged:
    """A header and the size of the file that it begins: the rest of the file is zeros and costs no memory."""

    data: bytes
    size: int

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.size)
        return self.data[start:stop].ljust(stop - start, b"\0")

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(self.data[: self.size])
            file.truncate(self.size)


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid header, the size of its weights, and where its counts, lengths and types stand."""

    data: bytes
    tail: int
    marks: tuple[int, ...]


def seeds() -> list[Seed]:
    with tempfile.TemporaryDirectory() as folder:
        chain = random_chain(320, 0)
        paths = [write_planted(Path(folder, f"{arch}.gguf"), chain, arch=arch) for arch in _ARCHITECTURES]
        paths += [
            write_vocab_only(Path(folder, f"vocab-{kind}.gguf"), make_vocab(320, kind)) for kind in ("llama", "gpt2")
        ]
        paths.append(_every_type(Path(folder, "types.gguf")))
        return [seed_of(path) for path in paths]


def seed_of(path: Path) -> Seed:
    header = read_gguf(path)
    data = path.read_bytes()[: header.n_bytes + -header.n_bytes % 32]
    return Seed(data, header.size - len(data), tuple(_marks(data, header)))


def _marks(data: bytes, header: GgufHeader) -> Iterator[int]:
    yield from (4, 8, 16)
    for name in (*header.metadata, *(tensor.name for tensor in header.tensors)):
        text = name.encode()
        begin = data.index(struct.pack("<Q", len(text)) + text)
        # The name's length, then for a key its type, an array's type, length and first item; for a tensor its
        # dimensions, shape, type and place.
        yield from (begin, *(begin + 8 + len(text) + after for after in (0, 4, 8, 12, 16, 20, 24, 28)))


def _every_type(path: Path) -> Path:
    """All kinds of values and arrays, a tokenizer with added tokens, tensors of several formats."""
    writer = gguf.GGUFWriter(path, "llama")
    for kind in gguf.GGUFValueType:
        if kind is gguf.GGUFValueType.ARRAY:
            continue
        value = "text" if kind is gguf.GGUFValueType.STRING else kind is gguf.GGUFValueType.BOOL or 7
        writer.add_key_value(f"one.{kind.name}", value, kind)
        writer.add_key_value(f"many.{kind.name}", [value] * 5, gguf.GGUFValueType.ARRAY, sub_type=kind)
    vocab = make_vocab(320, "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list((*vocab.tokens[:-4], "<|im_start|>", "<|im_end|>", "<think>", "[PAD1]"))
    writer.add_token_types([*(int(t) for t in vocab.types[:-4]), 3, 3, 4, 5])
    writer.add_token_merges(vocab.merges[:-8])
    writer.add_eos_token_id(317)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("blk.0.weight", np.zeros((4, 32), np.float32))
    writer.add_tensor("blk.1.weight", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def damage(draw: random.Random, stock: list[Seed]) -> Damaged:
    seed = draw.choice(stock)
    data = bytearray(seed.data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        draw.choice(_WAYS)(draw, data, seed, stock)
    size = len(data) + seed.tail
    if draw.random() < 0.1:
        size = draw.randrange(size + 1)
    elif draw.random() < 0.05:
        size = draw.choice((2**31, 2**40, 2**62))  # as a server may claim; not opened by llama.cpp
    return Damaged(bytes(data), size)


def _place(draw: random.Random, data: bytearray, seed: Seed) -> int:
    """Mostly where the structure is: far more bytes are the text of tokens."""
    at = draw.choice(seed.marks) if draw.random() < 0.4 else draw.randrange(len(data) or 1)
    return min(at, max(len(data) - 8, 0))


def _turn_bits(draw: random.Random, data: bytearray, seed: Seed, _: list[Seed]) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = _place(draw, data, seed) + draw.randrange(8)
        if at < len(data):
            data[at] ^= 1 << draw.randrange(8)


def _put_number(draw: random.Random, data: bytearray, seed: Seed, _: list[Seed]) -> None:
    at, kind = _place(draw, data, seed), draw.choice(_STRUCTS)
    number = draw.choice((draw.choice(_NUMBERS), draw.randrange(64), draw.randrange(-9, 9)))
    data[at : at + kind.size] = kind.pack(number % (1 << 8 * kind.size))


def _insert(draw: random.Random, data: bytearray, seed: Seed, _: list[Seed]) -> None:
    at = _place(draw, data, seed)
    data[at:at] = draw.choice((draw.randbytes(draw.randrange(1, 64)), struct.pack("<Q", draw.choice(_NUMBERS))))


def _cut_out(draw: random.Random, data: bytearray, seed: Seed, _: list[Seed]) -> None:
    at = _place(draw, data, seed)
    del data[at : at + draw.choice((1, 4, 8, 12, draw.randrange(1, 4096)))]


def _double(draw: random.Random, data: bytearray, seed: Seed, _: list[Seed]) -> None:
    """Over what stands elsewhere: double tokens, keys and tensors come of it."""
    begin, at, n = _place(draw, data, seed), _place(draw, data, seed), draw.choice((1, 4, 8, 16, 64, 512))
    data[at : at + n] = data[begin : begin + n]


def _splice(draw: random.Random, data: bytearray, seed: Seed, stock: list[Seed]) -> None:
    other = draw.choice(stock)
    data[_place(draw, data, seed) :] = other.data[draw.choice(other.marks) :]


_WAYS: tuple[Callable[[random.Random, bytearray, Seed, list[Seed]], None], ...] = (
    _turn_bits, _turn_bits, _put_number, _put_number, _insert, _cut_out, _double, _splice,
)  # fmt: skip


class Llama:
    """Opens files in a child process, and in another one when that has died."""

    def __init__(self, folder: Path, keep: Path | None, *, whole: bool) -> None:
        self.said: Counter[str] = Counter()
        self._folder, self._keep = folder, keep
        self._command = [sys.executable, "-c", CHILD, *(["whole"] if whole else [])]
        self._child: subprocess.Popen[str] | None = None
        self._stderr = folder / "stderr"

    def open(self, header: Damaged) -> None:
        path = self._folder / f"{self.said.total()}.gguf"
        header.write(path)
        said = self._ask(path) or self._cause_of_death()
        self.said[said] += 1
        if self._keep is not None and said not in _ANSWERS:
            self._keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self._keep)
            print(path.name, said, flush=True)
        path.unlink()

    def _ask(self, path: Path) -> str:
        if self._child is None:
            with self._stderr.open("w") as stderr:
                self._child = subprocess.Popen(self._command, stdin=-1, stdout=-1, stderr=stderr, text=True, bufsize=1)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{path}\n")
        while select.select([self._child.stdout], [], [], PATIENCE)[0]:
            line = self._child.stdout.readline().strip()
            if line in (*_ANSWERS, ""):  # a native abort writes a backtrace, to stdout as well
                return line
        self._child.kill()
        return ""

    def _cause_of_death(self) -> str:
        assert self._child is not None
        code = self._child.wait()
        self._child = None
        lines = [line for line in self._stderr.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if "ASSERT" in line or "what()" in line or "fatal" in line]
        return f"died ({code}): {(told or lines[-1:] or ['no word'])[0].strip()[-160:]}"


def main() -> None:
    options = _options()
    draw, stock = random.Random(options.seed), seeds()
    said: Counter[str] = Counter()
    slowest, began = 0.0, time.perf_counter()
    before = _memory()
    with tempfile.TemporaryDirectory() as folder:
        llama = Llama(Path(folder), options.keep, whole=options.whole)
        for i in range(options.n):
            header = damage(draw, stock)
            started = time.perf_counter()
            outcome = _read(header, i)
            seconds = time.perf_counter() - started
            slowest = max(slowest, seconds)
            said[outcome] += 1
            said["slower than 1 s"] += seconds > TOO_SLOW
            if outcome == "read" and (options.llama or options.whole) and header.size < 1 << 30:
                llama.open(header)
    print(f"{options.n:,} headers from {len(stock)} seeds, random seed {options.seed}")
    for outcome in ("read", "refused", "crashed", "slower than 1 s"):
        print(f"{outcome}: {said[outcome]:,}")
    print(f"slowest: {slowest:.3f} s; peak memory: {_memory():.0f} MB, {before:.0f} MB before the first")
    print(f"{time.perf_counter() - began:.0f} s in all")
    for outcome, n in llama.said.most_common():
        print(f"llama.cpp {outcome}: {n:,} of {llama.said.total():,}")
    sys.exit(1 if said["crashed"] or said["slower than 1 s"] else 0)


def _read(header: Damaged, i: int) -> str:
    try:
        facts = model_facts([parse_gguf(header.read, header.size, "fuzz.gguf")])
        need(facts, ContextSettings())
    except ModelError:
        return "refused"
    except Exception as error:
        print(f"header {i}: {error!r}", flush=True)
        return "crashed"
    return "read"


def _memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--llama", action="store_true", help="open what was read with llama.cpp too")
    parser.add_argument("--whole", action="store_true", help="load the models too, not only their tokenizers")
    parser.add_argument("--keep", type=Path, help="folder for headers that end llama.cpp's process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
