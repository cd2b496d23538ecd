"""Reads GGUF headers (everything before the weights), from disk or by ranges over a network.

Nothing in a header is believed before it is checked: counts and lengths are held against the size of the
file and against limits far above any real model, so that a hostile file costs neither time nor memory.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import ModelError

Read = Callable[[int, int], bytes]
"""`read(start, stop)`: the bytes of the file from `start` up to `stop`; fewer only at its end."""

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 128 * 2**20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 20
"""In all arrays of a file together. The largest vocabulary known has 262,144 tokens and 514,906 merges."""
MAX_TEXT_BYTES = 16 * 2**20
"""Of keys, texts and tensor names together: as Python's text they can take four times as much."""
MAX_LISTED = 4096
"""Arrays of numbers up to this length are read (they tell things layer by layer), longer ones stepped over."""
MAX_LISTED_IN_ALL = 1 << 18
"""So many numbers are read from arrays: each takes over thirty bytes, though it may take one in the file."""
MAX_DIMENSIONS, MAX_NAME, MAX_LAYERS = 4, 63, 512
"""llama.cpp's own limits; more layers end its process."""

_SPLIT = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)
_FIRST_READ = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_INT32, _FLOAT32 = 5, 6
_TOKENS = "tokenizer.ggml.tokens"
_SENTENCEPIECE = "llama"
_ABSURD = 1 << 63

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
"""ggml's numbers for tensor types: name, elements in a block, bytes of a block."""
TYPE_NUMBERS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array that was stepped over: ggml's number of its element type, and how many there are."""

    type: int
    length: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape as ggml orders it (the row's length first), its place and size in bytes.

    `offset` counts from the beginning of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says of itself.

    `n_bytes` is the header's own length, `n_metadata_bytes` that of its part before the list of tensors,
    `size` the length of the whole file.
    """

    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    n_metadata_bytes: int
    n_bytes: int
    size: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def number(self, key: str, default: int = 0) -> int:
        """A whole number, 0 or more, under the architecture's name; of a list, its largest."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple):
            value = max(value, default=default)
        return int(value) if isinstance(value, (int, float)) and 0 <= value < _ABSURD else default

    def numbers(self, key: str, n: int) -> tuple[int, ...] | None:
        """`n` whole numbers, one for each layer, whether the file lists them or gives one for all."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple) and len(value) >= n:
            return tuple(int(v) for v in value[:n]) if all(isinstance(v, int) for v in value[:n]) else None
        return (int(value),) * n if isinstance(value, int) else None


def read_model(path: Path) -> tuple[GgufHeader, ...]:
    """The headers of all parts of the model that `path` is the first part of. Raises ModelError."""
    return tuple(read_gguf(path.with_name(part)) for part in parts_of(path.name))


def tensors_of(headers: Iterable[GgufHeader]) -> list[TensorInfo]:
    """Of all parts of a model."""
    return [tensor for header in headers for tensor in header.tensors]


def read_gguf(path: Path) -> GgufHeader:
    """The header of a file on disk. Raises ModelError for a file that is not whole or not GGUF."""
    check_is_gguf(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)

            def read(start: int, stop: int) -> bytes:
                file.seek(start)
                return file.read(stop - start)

            return parse_gguf(read, size, path.name)
    except OSError as error:
        raise ModelError(
            f"Cannot read {path}: {error.strerror}.", hint="Check the path and its permissions."
        ) from error


def check_is_gguf(path: Path) -> None:
    """Settle in words what cannot be a model at all. Raises ModelError."""
    if os.path.isdir(path):
        raise ModelError(f"{path} is not a file.", hint="Give the .gguf file itself.")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise ModelError(f"File not found: {path}.", hint="Check the path, or use a preset.") from error
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.", hint="Check its permissions.") from error
    if magic != MAGIC:
        raise _not_gguf(str(path), magic)


def first_part(path: str) -> str:
    """The part that a split model is called by, and that llama.cpp is given: `-00001-of-00003.gguf`."""
    found = _SPLIT.match(path)
    return f"{found[1]}-00001-of-{found[3]}{found[4]}" if found else path


def parts_of(path: str) -> tuple[str, ...]:
    """All files of the model that `path` is, or is a part of."""
    found = _SPLIT.match(path)
    if not found or not int(found[3]):
        return (path,)
    return tuple(f"{found[1]}-{i:05}-of-{found[3]}{found[4]}" for i in range(1, int(found[3]) + 1))


def parse_gguf(read: Read, size: int, name: str) -> GgufHeader:
    """The header of a file of `size` bytes that `read` gives pieces of; `name` is for the errors.

    At most MAX_HEADER_BYTES are asked for, in growing steps. Raises ModelError.
    """
    return _Parser(read, size, name).header()


class _Parser:
    """A position in the part of the header that has been read so far."""

    def __init__(self, read: Read, size: int, name: str) -> None:
        self._read = read
        self._size = size
        self._name = name
        self._data = b""
        self._at = 0
        self._n_strings = 0
        self._n_listed = 0
        self._n_text = 0
        self._arrays: dict[str, ArrayInfo] = {}  # all of them, read or stepped over
        self._tokens: set[int] = set()  # hashes of their bytes, which take half the memory

    def header(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            raise _not_gguf(self._name, self._data[:4])
        version = self._number(_U32)
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "is for big-endian machines" if swapped in (2, 3) else f"has GGUF version {version}"
            raise self._bad(f"{kind}, which specdec cannot read", damaged=False)
        n_tensors = self._count(MAX_TENSORS, "tensors", at_least=24)
        n_keys = self._count(MAX_KEYS, "keys", at_least=13)
        metadata = self._metadata(n_keys)
        n_metadata_bytes = self._at
        infos = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self._bad(f"has an invalid weight alignment ({alignment!r})")
        n_bytes = self._at
        begin = -(-n_bytes // alignment) * alignment
        tensors = tuple(self._placed(info, begin, alignment) for info in infos)
        if len({t.name for t in tensors}) != len(tensors):
            raise self._bad("has a duplicate tensor name")
        header = GgufHeader(version, metadata, tensors, n_metadata_bytes, n_bytes, self._size)
        self._check_tokenizer(metadata)
        return header

    def _metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._text(limit=65535)
            if key in metadata or "\0" in key:  # for llama.cpp a key ends there
                raise self._bad(f"has the key {key!r} twice" if key in metadata else f"holds the key {key!r}")
            metadata[key] = self._value(self._number(_U32), key)
        if _is_later_part(metadata):
            return metadata  # only the first part of a split model says what it is
        if not isinstance(metadata.get("general.architecture"), str):
            raise self._bad("has no architecture key")
        n_layers = metadata.get(f"{metadata['general.architecture']}.block_count", 1)
        if type(n_layers) is not int or not 0 < n_layers <= MAX_LAYERS:
            raise self._bad(f"claims {str(n_layers)[:20]} layers")
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(limit=MAX_TEXT_BYTES)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._bad(f"has a value of unknown type {kind} for {key!r}")
        return self._number(_SCALARS[kind])

    def _array(self, key: str) -> tuple[Any, ...] | ArrayInfo:
        kind, length = self._number(_U32), self._number(_U64)
        array = self._arrays[key] = ArrayInfo(kind, length)
        if kind == _STRING:
            self._strings(length, key)
            return array
        if kind not in _SCALARS:
            raise self._bad(f"has an array of unknown type {kind} for {key!r}")
        item, begin = _SCALARS[kind], self._at
        self._step(length * item.size)
        if length > MAX_LISTED or self._n_listed + length > MAX_LISTED_IN_ALL:
            return array
        self._n_listed += length
        return tuple(value for (value,) in item.iter_unpack(self._data[begin : self._at]))

    def _strings(self, length: int, key: str) -> None:
        """Step over strings: nobody here needs their text. Of tokens it has to be known that they differ."""
        self._n_strings += length
        if self._n_strings > MAX_STRINGS or length * 8 > self._size - self._at:
            raise self._bad(f"claims {length:,} strings in {key!r}")
        seen = self._tokens if key == _TOKENS else None
        unpack, at, data = _U64.unpack_from, self._at, self._data
        for i in range(length):
            if at + 8 > len(data):
                data = self._fetch(at + 8)
            begin = at + 8
            at = begin + unpack(data, at)[0]
            if at > len(data):
                data = self._fetch(at)
            if seen is not None:
                seen.add(hash(_as_llama_cpp_has_it(data[begin:at], i)))
        self._at = at
        if seen is not None and len(seen) != length:
            raise self._bad("has a tokenizer with the same token twice")

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text(limit=MAX_NAME)
        n_dimensions = self._number(_U32)
        if n_dimensions > MAX_DIMENSIONS:
            raise self._bad(f"has a tensor {name!r} with {n_dimensions} dimensions")
        shape = tuple(self._number(_U64) for _ in range(n_dimensions))
        return name, shape, self._number(_U32), self._number(_U64)

    def _placed(self, info: tuple[str, tuple[int, ...], int, int], begin: int, alignment: int) -> TensorInfo:
        name, shape, kind, offset = info
        # A format of a newer llama.cpp is its business: it is only not known how many bytes the tensor takes.
        type_name, block, block_bytes = TENSOR_TYPES.get(kind, (f"format {kind}", 1, 0))
        n_elements = math.prod(shape)
        if not n_elements or (shape and shape[0] % block) or offset % alignment:
            raise self._bad(f"has a tensor {name!r} with an impossible shape or offset")
        n_bytes = n_elements // block * block_bytes
        if begin + offset + n_bytes > self._size:
            raise self._bad(f"ends before the end of its tensor {name!r} ({self._size:,} bytes)")
        return TensorInfo(name, shape, type_name, begin + offset, n_bytes)

    def _check_tokenizer(self, metadata: Mapping[str, Any]) -> None:
        """llama.cpp takes these types and lengths for granted: wrong ones end the process, or are read beyond."""
        for key in (_TOKENS, "tokenizer.ggml.merges"):
            if key in metadata and self._length(key, (_STRING,)) is None:
                raise self._bad(f"has a tokenizer whose {key.rpartition('.')[2]} are not text")
        n = self._length(_TOKENS, (_STRING,))
        for name, kinds in (("token_type", (_INT32,)), ("scores", (_INT32, _FLOAT32))):
            key = f"tokenizer.ggml.{name}"
            if key in metadata and (n is None or self._length(key, kinds) != n):
                raise self._bad(f"has a tokenizer whose {name} do not match its tokens")
        if n is not None and metadata.get("tokenizer.ggml.model") == _SENTENCEPIECE:
            self._check_byte_tokens()

    def _check_byte_tokens(self) -> None:
        """SentencePiece falls back on them, each as <0x41> or as itself; a missing one ends llama.cpp's process."""
        n = sum(not self._tokens & {hash(b"<0x%02X>" % byte), hash(bytes([byte]))} for byte in range(256))
        if n:
            which = "byte tokens" if n == 256 else f"{n} of its byte tokens"
            raise self._bad(f"has a tokenizer without {which}, so llama.cpp cannot encode every text")

    def _length(self, key: str, kinds: tuple[int, ...]) -> int | None:
        """Length of the array, if there is one of these types under this key."""
        array = self._arrays.get(key)
        return array.length if array is not None and array.type in kinds else None

    def _text(self, *, limit: int) -> str:
        n = self._number(_U64)
        self._n_text += n
        if n > limit or self._n_text > MAX_TEXT_BYTES:
            raise self._bad(f"has a string of {n:,} bytes")
        return self._take(n).decode("utf-8", "replace")

    def _count(self, limit: int, what: str, *, at_least: int) -> int:
        """A count that the rest of the file has room for, each taking `at_least` bytes."""
        n: int = self._number(_U64)
        if n > min(limit, self._size // at_least):
            raise self._bad(f"claims {n:,} {what}")
        return n

    def _number(self, kind: struct.Struct) -> Any:
        at = self._at
        if at + kind.size > len(self._data):
            self._fetch(at + kind.size)
        self._at = at + kind.size
        return kind.unpack_from(self._data, at)[0]

    def _take(self, n: int) -> bytes:
        begin = self._at
        self._step(n)
        return self._data[begin : self._at]

    def _step(self, n: int) -> None:
        stop = self._at + n
        if stop > len(self._data):
            self._fetch(stop)
        self._at = stop

    def _fetch(self, stop: int) -> bytes:
        """Have at least `stop` bytes: more than asked for, since each fetch may be a journey over a network."""
        if stop > self._size:
            raise self._bad(f"ends inside its header ({self._size:,} bytes)")
        if stop > MAX_HEADER_BYTES:
            raise self._bad(f"has a header of more than {MAX_HEADER_BYTES >> 20} MB")
        have = len(self._data)
        target = min(max(stop, 2 * have, _FIRST_READ), self._size, MAX_HEADER_BYTES)
        self._data += self._read(have, target)
        if len(self._data) < stop:
            raise self._bad(f"ends inside its header ({len(self._data):,} bytes received)")
        return self._data

    def _bad(self, what: str, *, damaged: bool = True) -> ModelError:
        hint = "The file is damaged, truncated or invalid. Download it again." if damaged else "Use another file."
        return ModelError(f"{self._name} {what}.", hint=hint)


def _is_later_part(metadata: Mapping[str, Any]) -> bool:
    """Of a split model: gguf-split gives these nothing but their number."""
    number = metadata.get("split.no", 0)
    return type(number) is int and number > 0 and "general.architecture" not in metadata


def _not_gguf(name: str, magic: bytes) -> ModelError:
    return ModelError(
        f"{name} is not a GGUF file (it begins with {magic.decode('latin-1')!r}).",
        hint="A web page or a partial download may have been saved under this name. Download it again.",
    )


def _as_llama_cpp_has_it(token: bytes, i: int) -> bytes:
    """Up to a zero byte; an empty one gets a name."""
    if b"\0" in token:
        token = token.partition(b"\0")[0]
    return token or b"[EMPTY_%d]" % i
