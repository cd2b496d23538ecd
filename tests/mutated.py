"""Copies of tiny models whose headers say something else: what llama.cpp believes until an assertion fails."""

from collections.abc import Mapping
from pathlib import Path

import gguf

Number = int | float


def with_numbers(source: Path, path: Path, numbers: Mapping[str, Number]) -> Path:
    """A copy of `source` in which these keys have these values: whole numbers as uint32, others as float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", *numbers):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
            writer.kv_data[0][field.name].sub_type = field.types[-1]
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for key, value in numbers.items():
        kind = gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
        writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def with_format(source: Path, path: Path, tensor: str, number: int) -> Path:
    """A copy of `source` that says this tensor has ggml's format `number`; the bytes stay."""
    data = bytearray(source.read_bytes())
    name = len(tensor).to_bytes(8, "little") + tensor.encode()
    at = data.index(name) + len(name)
    n_dimensions = int.from_bytes(data[at : at + 4], "little")
    at += 4 + 8 * n_dimensions
    data[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(data)
    return path
