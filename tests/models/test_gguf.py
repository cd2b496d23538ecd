"""The header of a GGUF file: read as the `gguf` package reads it, and never believed."""

import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.errors import ModelError
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import (
    MAX_LAYERS,
    MAX_LISTED,
    MAX_LISTED_IN_ALL,
    MAX_TEXT_BYTES,
    TENSOR_TYPES,
    ArrayInfo,
    GgufHeader,
    parse_gguf,
    parts_of,
    read_gguf,
    read_model,
)
from tests import real_models
from tests.planted import PlantedPair, Vocab, make_vocab, random_chain, write_planted, write_split, write_vocab_only

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True))


# --- what the gguf package reads ---


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba", "lfm2", "float16", "gpt2", "none"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, kind = tmp_path_factory.mktemp("made") / f"{request.param}.gguf", request.param
    if kind == "gpt2":
        return write_vocab_only(path, replace(make_vocab(320, "gpt2"), chat_template="{{ messages }} ✓"))
    if kind == "float16":
        return write_planted(path, random_chain(320, 0), dtype="float16", n_layers=3)
    if kind == "none":
        gguf_writer = gguf.GGUFWriter(path, "llama")
        _add_one_of_each_kind(gguf_writer)
        gguf_writer.write_header_to_file()
        gguf_writer.write_kv_data_to_file()
        gguf_writer.write_ti_data_to_file()
        gguf_writer.close()
        return path
    return write_planted(path, random_chain(320, 0), arch=kind)


def _add_one_of_each_kind(writer: gguf.GGUFWriter) -> None:
    for kind in gguf.GGUFValueType:
        if kind is not gguf.GGUFValueType.ARRAY:
            value = {"STRING": "Grüße", "BOOL": True, "FLOAT32": 0.5, "FLOAT64": 1e300}.get(kind.name, 7)
            writer.add_key_value(f"one.{kind.name}", value, kind)
            writer.add_key_value(f"many.{kind.name}", [value] * 3, gguf.GGUFValueType.ARRAY, sub_type=kind)


def test_a_header_is_read_as_the_gguf_package_reads_it(made: Path) -> None:
    assert_same_as_package(made)


def test_a_real_header_is_read_as_the_gguf_package_reads_it() -> None:
    assert_same_as_package(real_models.need(real_models.smollm2, "Q4_1"))


def test_a_real_tokenizer_is_read_as_the_gguf_package_reads_it(vocab_path: Callable[[str], Path]) -> None:
    assert_same_as_package(vocab_path("phi-3"))


def test_the_largest_known_vocabulary_is_read_in_no_time(vocab_path: Callable[[str], Path]) -> None:
    path = vocab_path("gemma-4")
    seconds = [timed(lambda: read_gguf(path)) for _ in range(3)]
    assert min(seconds) < 1
    assert read_gguf(path).metadata["tokenizer.ggml.tokens"] == ArrayInfo(STRING, 262_144)


def assert_same_as_package(path: Path) -> None:
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        assert ours.metadata[name] == as_we_have_it(field), name
    assert [(t.name, t.shape, t.type, t.offset, t.n_bytes) for t in ours.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    assert (ours.version, ours.size) == (3, path.stat().st_size)
    if ours.tensors:
        assert ours.n_metadata_bytes < ours.n_bytes <= min(t.offset for t in ours.tensors) < ours.n_bytes + 32


def as_we_have_it(field: gguf.ReaderField) -> object:
    kinds = [int(kind) for kind in field.types]
    if kinds[0] != ARRAY:
        return field.contents()
    if kinds[-1] == STRING or len(field.data) > MAX_LISTED:
        return ArrayInfo(kinds[-1], len(field.data))
    return tuple(field.contents())


def test_the_formats_of_tensors_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: TENSOR_TYPES[kind] for kind in theirs} == theirs


# --- files made by hand ---


def text(words: str | bytes) -> bytes:
    data = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(data)) + data


def one(name: str | bytes, kind: int, value: object) -> bytes:
    """A key with a single value."""
    packed = text(value) if isinstance(value, (str, bytes)) else struct.pack(f"<{_FORMATS[kind]}", value)
    return text(name) + struct.pack("<I", kind) + packed


def array(name: str, kind: int, data: bytes, length: int) -> bytes:
    return text(name) + struct.pack("<IIQ", ARRAY, kind, length) + data


def strings(name: str, *texts: str | bytes) -> bytes:
    return array(name, STRING, b"".join(map(text, texts)), len(texts))


def numbers(name: str, kind: int, *values: float) -> bytes:
    return array(name, kind, struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values), len(values))


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    n = len(shape) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", n, *shape, kind, offset)


ARCHITECTURE = one("general.architecture", STRING, "llama")


def header(
    *keys: bytes,
    tensors: tuple[bytes, ...] = (),
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    tail: int = 0,
) -> bytes:
    """A header whose first key is the architecture, and `tail` bytes after it."""
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) + 1 if n_keys is None else n_keys,
    )
    return b"".join((b"GGUF", struct.pack("<IQQ", version, *counts), ARCHITECTURE, *keys, *tensors, bytes(tail)))


def parse(data: bytes, size: int | None = None) -> GgufHeader:
    return parse_gguf(lambda start, stop: data[start:stop], len(data) if size is None else size, "made.gguf")


@dataclass(frozen=True, slots=True)
class Invented:
    """A file that begins with `begin` and repeats `then` to its end, without holding it anywhere."""

    begin: bytes
    then: bytes
    size: int

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.size)
        begin = self.begin[start:stop]
        rest = stop - start - len(begin)
        phase = (max(start, len(self.begin)) - len(self.begin)) % len(self.then)
        return begin + (self.then * (-(-(rest + phase) // len(self.then))))[phase : phase + rest]


def timed(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def refuse(read: Callable[[int, int], bytes], size: int, words: str, *, megabytes: float = 8) -> None:
    """A ModelError with these words, within a second, and with this much memory at most."""

    def attempt() -> None:
        with pytest.raises(ModelError, match=words) as caught:
            parse_gguf(read, size, "made.gguf")
        assert str(caught.value).startswith("made.gguf ")
        assert caught.value.hint

    # Once more if it was slow: other work on the machine is no fault of the reader's.
    assert timed(attempt) < 1 or timed(attempt) < 1
    tracemalloc.start()
    try:
        attempt()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 1e6


def refuse_bytes(data: bytes, words: str, *, size: int | None = None, megabytes: float = 8) -> None:
    refuse(lambda start, stop: data[start:stop], len(data) if size is None else size, words, megabytes=megabytes)


def test_a_header_made_by_hand_is_whole() -> None:
    made = parse(header(one("llama.block_count", U32, 2), tensors=(tensor("a", (32, 2), 8),), tail=32 + 68))
    assert made.metadata == {"general.architecture": "llama", "llama.block_count": 2}
    assert [(t.name, t.shape, t.type, t.n_bytes) for t in made.tensors] == [("a", (32, 2), "Q8_0", 68)]


def test_version_2_is_read_too() -> None:
    assert parse(header(version=2)).version == 2


MANY = 2**63
BEGIN = header(n_keys=2)
HOSTILE = {
    "an empty file": (b"", "ends inside its header"),
    "a web page": (b"<!DOCTYPE html><html>", r"is not a GGUF file \(it begins with '<!DO'\)"),
    "the magic alone": (b"GGUF", "ends inside its header"),
    "version 1": (header(version=1), "has GGUF version 1"),
    "a version of the future": (header(version=4), "has GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + ARCHITECTURE, "big-endian"),
    "2^63 keys": (header(n_keys=MANY), "claims 9,223,372,036,854,775,808 keys"),
    "2^63 tensors": (header(n_tensors=MANY), "claims 9,223,372,036,854,775,808 tensors"),
    "a million keys": (header(n_keys=10**6, tail=2**24), "claims 1,000,000 keys"),
    "a million tensors": (header(n_tensors=10**6, tail=2**25), "claims 1,000,000 tensors"),
    "more keys than the file has room for": (header(n_keys=1000), "claims 1,000 keys"),
    "a key longer than the file": (BEGIN + struct.pack("<Q", 60_000), "ends inside its header"),
    "a key of 2^63 bytes": (BEGIN + struct.pack("<Q", MANY), "has a string of 9,223"),
    "a text of 2^63 bytes": (BEGIN + text("a") + struct.pack("<IQ", STRING, MANY), "has a string of 9,223"),
    "a text longer than the file": (BEGIN + text("a") + struct.pack("<IQ", STRING, 99), "ends inside its header"),
    "a key with a zero byte": (header(one("a\0b", U8, 1)), r"holds the key 'a\\x00b'"),
    "a key twice": (header(one("a", U8, 1), one("a", U8, 1)), "has the key 'a' twice"),
    "a value of type 13": (BEGIN + text("a") + struct.pack("<I", 13), "a value of unknown type 13"),
    "a value of type 2^32 - 1": (BEGIN + text("a") + struct.pack("<I", 2**32 - 1), "a value of unknown type"),
    "an array of type 13": (header(array("a", 13, b"", 1)), "an array of unknown type 13"),
    "an array of arrays": (header(array("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 999, 1)), "array of unknown type 9"),
    "2^63 numbers": (header(array("a", F64, b"", MANY)), "ends inside its header"),
    "2^64 - 1 bytes": (header(array("a", U8, b"", 2**64 - 1)), "ends inside its header"),
    "2^63 texts": (header(array("a", STRING, b"", MANY)), "claims 9,223,372,036,854,775,808 strings"),
    "more texts than there is room for": (header(array("a", STRING, bytes(79), 10)), "claims 10 strings"),
    "a text in an array past the end": (header(array("a", STRING, text("x") + struct.pack("<Q", 9), 2)), "ends inside"),
    "a text of 2^64 - 1 bytes in an array": (
        header(array("a", STRING, struct.pack("<Q", 2**64 - 1), 1)),
        "ends inside its header",
    ),
    "no architecture": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + one("a", U8, 1), "no architecture key"),
    "an architecture that is a number": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + one("general.architecture", U64, 1),
        "no architecture key",
    ),
    "no layers": (header(one("llama.block_count", U32, 0)), "claims 0 layers"),
    "2^32 - 1 layers": (header(one("llama.block_count", U32, 2**32 - 1)), "claims 4294967295 layers"),
    "layers in a fraction": (header(one("llama.block_count", F64, 1e12)), "claims 1000000000000.0 layers"),
    "layers in a list": (header(numbers("llama.block_count", U32, 10**9)), "claims .1000000000,. layers"),
    "-1 layers": (header(one("llama.block_count", I32, -1)), "claims -1 layers"),
    "a tensor past the end": (header(tensors=(tensor("a", (64,)),), tail=200), "ends before the end of its tensor 'a'"),
    "a tensor far past the end": (
        header(tensors=(tensor("a", (1,), offset=2**64 - 32),), tail=64),
        "ends before the end of its tensor 'a'",
    ),
    "a tensor with 2^32 - 1 dimensions": (
        header(tensors=(tensor("a", (1,), n_dims=2**32 - 1),), tail=64),
        "a tensor 'a' with 4294967295 dimensions",
    ),
    "a tensor with 5 dimensions": (header(tensors=(tensor("a", (1,) * 5),), tail=64), "5 dimensions"),
    "2^64 elements": (header(tensors=(tensor("a", (2**32, 2**32)),), tail=64), "ends before the end of its tensor 'a'"),
    "2^256 elements": (
        header(tensors=(tensor("a", (2**64 - 1,) * 4),), tail=64),
        "ends before the end of its tensor 'a'",
    ),
    "no elements": (header(tensors=(tensor("a", (0, 4)),), tail=64), "an impossible shape"),
    "half a block": (header(tensors=(tensor("a", (33,), 8),), tail=99), "an impossible shape"),
    "a crooked place": (header(tensors=(tensor("a", (1,), offset=4),), tail=99), "an impossible shape or offset"),
    "a duplicate tensor name": (
        header(tensors=(tensor("a", (1,)), tensor("a", (1,))), tail=99),
        "has a duplicate tensor name",
    ),
    "a tensor with a long name": (header(tensors=(tensor("a" * 64, (1,)),), tail=99), "has a string of 64 bytes"),
    **{
        f"weights aligned to {n}": (header(one("general.alignment", U32, n)), f"has an invalid weight alignment .{n}")
        for n in (0, 1, 3, 2**31, 2**32 - 1)
    },
    "weights aligned to a text": (header(one("general.alignment", STRING, "32")), "alignment .'32'"),
    "weights aligned to half": (header(one("general.alignment", F32, 32.5)), "alignment .32.5"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_a_model_error_at_once(name: str) -> None:
    data, words = HOSTILE[name]
    refuse_bytes(data, words)


def test_a_cut_header_is_a_model_error_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = write_planted(tmp_path / "a.gguf", random_chain(320, 0)).read_bytes()
    for n in (*range(0, parse(whole).n_bytes, 7), len(whole) - 1):
        with pytest.raises(ModelError, match=r"ends inside its header|ends before the end of its tensor|claims"):
            parse(whole[:n])


FAR = 2**40


@pytest.mark.parametrize(
    ("file", "words", "megabytes"),
    [
        # A server can claim any size and send bytes for ever.
        (Invented(header(array("a", U8, b"", FAR)), b"\0", 2 * FAR), "header of more than 128 MB", 8),
        (Invented(header(array("a", STRING, b"", 2**20)), text("x" * 256), FAR), "header of more than 128 MB", 300),
        (Invented(header(array("a", STRING, b"", 2**20)), text("x" * 2**20), FAR), "header of more than 128 MB", 300),
        (Invented(header(array("a", STRING, b"", 2**20 + 1)), text(""), FAR), "claims 1,048,577 strings", 8),
        (Invented(header(strings("b", "x"), array("a", STRING, b"", 2**20)), text(""), FAR), "claims 1,048,576", 8),
        (Invented(header(array("a", STRING, b"", 10)), struct.pack("<Q", 2**27), FAR), "more than 128 MB", 8),
        (Invented(BEGIN + text("a") + struct.pack("<IQ", STRING, MAX_TEXT_BYTES), b"\0", FAR), "has a string of", 8),
        (Invented(header(n_keys=2**16), one("a", U8, 1), FAR), "has the key 'a' twice", 8),
    ],
    ids=["numbers", "texts", "long texts", "too many texts", "too many in two arrays", "one text", "a text", "keys"],
)
def test_an_endless_file_is_a_model_error_soon(file: Invented, words: str, megabytes: float) -> None:
    refuse(file.read, file.size, words, megabytes=megabytes)


def test_many_keys_with_many_numbers_take_no_more_memory_than_a_few() -> None:
    """Each number would take over thirty bytes of Python's for one byte of the file."""
    keys = [array(f"k{i}", I16, b"\x7f\x01" * MAX_LISTED, MAX_LISTED) for i in range(200)]
    made = parse(header(*keys))
    listed = [value for value in made.metadata.values() if isinstance(value, tuple)]
    assert sum(map(len, listed)) == MAX_LISTED_IN_ALL
    assert made.metadata["k199"] == ArrayInfo(I16, MAX_LISTED)


def test_texts_are_limited_all_together() -> None:
    keys = [one(f"k{i}", STRING, "😀" * 2**18) for i in range(20)]
    refuse_bytes(header(*keys), "has a string of", megabytes=2.5 * MAX_TEXT_BYTES / 1e6 + 64)


def test_a_file_that_gives_less_than_its_size_is_a_model_error() -> None:
    whole = header(one("a", U64, 1), strings("b", "x" * 100, "y"))
    assert parse(whole, 10**9).size == 10**9
    for n in range(len(whole)):
        refuse_short(whole[:n], 10**9)


def refuse_short(data: bytes, size: int) -> None:
    with pytest.raises(ModelError, match=r"ends inside its header \([\d,]+ bytes received\)"):
        parse(data, size)


# --- what llama.cpp takes for granted of a tokenizer ---

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def tokenizer(*keys: bytes, tokens: tuple[str | bytes, ...] = (*BYTES, "a"), model: str = "llama") -> bytes:
    return header(one("tokenizer.ggml.model", STRING, model), strings("tokenizer.ggml.tokens", *tokens), *keys)


def numbered(name: str, kind: int, n: int) -> bytes:
    return numbers(f"tokenizer.ggml.{name}", kind, *[1] * n)


def test_a_whole_tokenizer_is_read() -> None:
    made = parse(tokenizer(numbered("token_type", I32, 257), numbered("scores", F32, 257)))
    assert made.metadata["tokenizer.ggml.tokens"] == ArrayInfo(STRING, 257)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(numbers("tokenizer.ggml.tokens", I32, 1, 2)), "tokens are not text"),
        (header(one("tokenizer.ggml.tokens", STRING, "a b")), "tokens are not text"),
        (header(one("tokenizer.ggml.merges", U8, 1)), "merges are not text"),
        (header(numbers("tokenizer.ggml.merges", U8, 1)), "merges are not text"),
        (header(numbered("scores", F32, 3)), "scores do not match its tokens"),
        (tokenizer(numbered("token_type", I32, 256)), "token_type do not match its tokens"),
        (tokenizer(numbered("token_type", I32, 258)), "token_type do not match its tokens"),
        (tokenizer(numbered("token_type", U8, 257)), "token_type do not match its tokens"),
        (tokenizer(numbered("token_type", F32, 257)), "token_type do not match its tokens"),
        (tokenizer(one("tokenizer.ggml.token_type", I32, 1)), "token_type do not match its tokens"),
        (tokenizer(strings("tokenizer.ggml.token_type", *"a" * 257)), "token_type do not match its tokens"),
        (tokenizer(numbered("scores", F32, 0)), "scores do not match its tokens"),
        (tokenizer(numbered("scores", F64, 257)), "scores do not match its tokens"),
        (tokenizer(tokens=(*BYTES, "a", "a")), "the same token twice"),
        (tokenizer(tokens=(*BYTES, "a", b"a\0b")), "the same token twice"),
        (tokenizer(tokens=(*BYTES, "", "[EMPTY_256]")), "the same token twice"),
        (tokenizer(tokens=BYTES[:-1]), "without 1 of its byte tokens"),
        (tokenizer(tokens=("a", "b")), "without 254 of its byte tokens"),
    ],
)
def test_a_tokenizer_that_would_end_the_process_is_a_model_error(data: bytes, words: str) -> None:
    refuse_bytes(data, words)


def test_other_tokenizers_need_no_byte_tokens() -> None:
    assert parse(tokenizer(tokens=("a", "", ""), model="gpt2"))


def test_a_byte_may_be_its_own_token() -> None:
    assert parse(tokenizer(tokens=(*(b for b in BYTES if b != "<0x41>"), "A")))


def test_a_real_tokenizer_with_one_byte_token_less_is_refused(tmp_path: Path) -> None:
    vocab: Vocab = make_vocab(320)
    broken = write_vocab_only(tmp_path / "broken.gguf", vocab.renamed({200: "no byte"}))
    with pytest.raises(ModelError, match="without 1 of its byte tokens"):
        read_gguf(broken)


# --- what is asked of a header ---


@pytest.mark.parametrize(
    ("key", "number", "numbers_"),
    [
        (one("llama.n", U32, 3), 3, (3, 3)),
        (one("llama.n", I64, -3), 7, (-3, -3)),
        (one("llama.n", F32, 2.5), 2, None),
        (one("llama.n", F64, float("nan")), 7, None),
        (one("llama.n", F64, float("inf")), 7, None),
        (one("llama.n", F64, 1e308), 7, None),
        (one("llama.n", U64, 2**63 - 1), 2**63 - 1, (2**63 - 1,) * 2),
        (one("llama.n", STRING, "3"), 7, None),
        (numbers("llama.n", U32, 4, 5, 1), 5, (4, 5)),
        (numbers("llama.n", U32, 4), 4, None),
        (numbers("llama.n", U32), 7, None),
        (numbers("llama.n", F32, float("nan"), float("inf")), 7, None),
        (numbers("llama.n", U8, *[1] * (MAX_LISTED + 1)), 7, None),
        (strings("llama.n", "1", "2"), 7, None),
    ],
)
def test_numbers_are_numbers_or_the_default(key: bytes, number: int, numbers_: tuple[int, ...] | None) -> None:
    made = parse(header(key))
    assert made.number("n", 7) == number
    assert made.numbers("n", 2) == numbers_


def test_a_layer_more_than_llama_cpp_knows_is_refused() -> None:
    assert parse(header(one("llama.block_count", U32, MAX_LAYERS))).number("block_count") == MAX_LAYERS
    refuse_bytes(header(one("llama.block_count", U32, MAX_LAYERS + 1)), "claims 513 layers")


def test_a_name_of_no_parts_is_a_file_like_others() -> None:
    assert parts_of("a-00001-of-00000.gguf") == ("a-00001-of-00000.gguf",)
    assert parts_of("a-00001-of-00002.gguf") == ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")


# --- any damage ---


def valid() -> bytes:
    return header(
        one("llama.block_count", U32, 2),
        numbers("llama.attention.head_count_kv", I32, 1, 2),
        one("tokenizer.ggml.model", STRING, "gpt2"),
        strings("tokenizer.ggml.tokens", "a", "b", "c"),
        numbered("token_type", I32, 3),
        strings("tokenizer.ggml.merges", "a b"),
        tensors=(tensor("blk.0.a", (32, 2), 8), tensor("blk.1.a", (4,), 0, 96)),
        tail=512,
    )


VALID = valid()
EXTREMES = st.sampled_from((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)).map(lambda n: struct.pack("<Q", n))
PIECES = st.tuples(st.integers(0, len(VALID)), st.one_of(st.binary(max_size=12), EXTREMES), st.integers(0, 12))


def test_the_valid_header_is_valid() -> None:
    assert len(parse(VALID).tensors) == 2


@settings(max_examples=300, deadline=1000)
@given(damage=st.lists(PIECES, min_size=1, max_size=4), cut=st.integers(0, len(VALID)), is_cut=st.booleans())
def test_no_damage_is_more_than_a_model_error(damage: list[tuple[int, bytes, int]], cut: int, is_cut: bool) -> None:
    data = VALID
    for at, put, n in damage:
        data = data[:at] + put + data[at + n :]
    with suppress(ModelError):
        parse(data[:cut] if is_cut else data)


def test_a_format_of_a_newer_llama_cpp_is_let_through() -> None:
    made = parse(header(tensors=(tensor("a", (1,), 4),), tail=64))
    assert (made.tensors[0].type, made.tensors[0].n_bytes) == ("format 4", 0)


def test_only_the_first_part_of_a_split_model_says_what_it_is(tmp_path: Path, planted_pair: PlantedPair) -> None:
    first, second = write_split(planted_pair.target, tmp_path, "m")
    whole = read_gguf(planted_pair.target)
    assert read_gguf(second).architecture == ""
    assert {t.name for path in (first, second) for t in read_gguf(path).tensors} == {t.name for t in whole.tensors}
    facts = [model_facts(read_model(path)) for path in (first, planted_pair.target)]
    assert facts[0] == facts[1]
