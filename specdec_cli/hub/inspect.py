"""Reads a model's headers and tokenizer from disk, or by ranges from the Hub, before any weights are downloaded."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.errors import HubError
from specdec_cli.hub.choose_file import HubSpec, ModelFiles, pick
from specdec_cli.hub.client import Hub, RemoteFile, RepoInfo
from specdec_cli.llama.tokenizer_process import read_vocabulary_apart
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import GgufHeader, parse_gguf, read_model
from specdec_cli.models.heads import needs_tokenizer
from specdec_cli.models.memory import ModelFacts
from specdec_cli.models.vocabulary import Vocabulary
from specdec_cli.presets.schema import HubFile

_N_TENSORS = slice(8, 16)
"""Where a GGUF file counts its tensors."""
_SPLIT_COUNT = re.compile(rb"(\x0b\0{7}split\.count\x02\0{3})..", re.DOTALL)
"""The key of 11 letters, the type (2: 16 bits), the number."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of a repository at one commit. `revision` is what was asked for: a branch, a tag, the commit."""

    info: RepoInfo
    files: ModelFiles
    revision: str

    @property
    def hub_file(self) -> HubFile:
        """As a preset would name it: pinned to this commit."""
        parts = self.files.parts
        sha256 = parts[0].etag if len(parts) == 1 and len(parts[0].etag) == 64 else None
        info = self.info
        return HubFile(info.repo, self.files.path, info.commit, self.files.size, sha256, info.is_gated)


@dataclass(frozen=True, slots=True)
class Examined:
    """What a model's headers tell. `name` is its file's; `vocabulary` is None for a head without a tokenizer."""

    name: str
    facts: ModelFacts
    vocabulary: Vocabulary | None
    headers: tuple[GgufHeader, ...]
    file: Path | None = None


def find_remote(hub: Hub, spec: HubSpec) -> RemoteModel:
    """The model that `spec` means, and that we may read it. Raises HubError."""
    info = hub.info(spec.repo, spec.revision)
    files = pick(spec.repo, hub.files(spec.repo, info.commit), spec.choice)
    hub.place(spec.repo, info.commit, files.path)  # a gated repository shows itself here, before anything is fetched
    return RemoteModel(info, files, spec.revision)


def examine_local(path: Path) -> Examined:
    """Raises ModelError."""
    headers = read_model(path)
    vocabulary = read_vocabulary_apart(path) if needs_tokenizer(headers) else None
    return Examined(path.name, model_facts(headers), vocabulary, headers, path)


def examine_remote(hub: Hub, model: RemoteModel) -> Examined:
    """Fetches the headers of all parts, some megabytes. Raises HubError, and ModelError for what is no model."""
    headers, first = read_headers(hub, model.info, model.files)
    name = Path(model.files.path).name
    vocabulary = _vocabulary(first, headers[0], name) if needs_tokenizer(headers) else None
    return Examined(name, model_facts(headers), vocabulary, headers)


def read_headers(hub: Hub, info: RepoInfo, files: ModelFiles) -> tuple[tuple[GgufHeader, ...], bytes]:
    """Of all parts of a model at one commit, and the bytes of the first. Raises HubError, ModelError."""
    headers, first = [], b""
    for part in files.parts:
        header, data = _header(hub, info, part)
        headers.append(header)
        first = first or data
    return tuple(headers), first


def _header(hub: Hub, info: RepoInfo, file: RemoteFile) -> tuple[GgufHeader, bytes]:
    """One part's header, and its bytes."""
    place = hub.place(info.repo, info.commit, file.path)
    data = bytearray()

    def read(start: int, stop: int) -> bytes:
        piece = hub.read(place, start, stop)
        data[start:] = piece
        return piece

    header = parse_gguf(read, file.size, file.path)
    return header, bytes(data[: header.n_bytes])


def _vocabulary(data: bytes, header: GgufHeader, name: str) -> Vocabulary:
    """llama.cpp reads files only: the metadata becomes one that lists no tensors, and claims no further parts."""
    without_tensors = bytearray(_SPLIT_COUNT.sub(rb"\1\0\0", data[: header.n_metadata_bytes]))
    without_tensors[_N_TENSORS] = bytes(8)
    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        path = Path(folder) / name
        path.write_bytes(without_tensors)
        return read_vocabulary_apart(path)


def check_is_same(model: RemoteModel, wanted: HubFile) -> None:
    """Whether the Hub has the file that a preset was written for. Raises HubError."""
    found = model.hub_file
    if (wanted.bytes or found.bytes) != found.bytes or (wanted.sha256 or found.sha256) != found.sha256:
        raise HubError(
            f"{wanted.file} in {wanted.repo} is not the file this preset was written for.",
            hint="It was replaced on the Hub. Pull it with --target and --draft, and --save it as your own preset.",
        )
