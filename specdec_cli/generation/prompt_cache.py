"""Prompt caches on disk: a later run with the same prompt prefix does not evaluate it again.

A file holds the state of one model after one list of tokens, with a key that says what it is good for and a
checksum, so that nothing is handed to llama.cpp but what was once taken from the same model under the same
settings. The state of the draft, or of a trained head, lies beside the target's, under the same name with `.draft`
behind it.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import shared_prefix
from specdec_cli.errors import UsageError
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair
from specdec_cli.llama.versions import versions
from specdec_cli.models.gguf import parts_of
from specdec_cli.paths import appearing
from specdec_cli.planning.plan import Say
from specdec_cli.settings import ModelSettings
from specdec_cli.untrusted_files import is_own, open_regular, parse_json

_DRAFT = ".draft"
_MAGIC = b"specdec prompt cache 1\n"
_LONGEST_HEADER = 2**16
_SAMPLES, _SAMPLE_BYTES = 256, 4096

Key = Mapping[str, str]


class Unusable(Exception):
    """Why a prompt cache is of no use here."""


def key_of(opened: OpenModel | OpenHead) -> dict[str, str]:
    """All that a state depends on beside the tokens: the weights, the numbers' types, who computes."""
    return {
        "model": opened.model.path.name,
        "weights": " + ".join([_fingerprint(opened.model.path), *_adapted(opened.model.settings)]),
        "cache type": opened.context.cache_type,
        "flash attention": opened.context.flash_attention,
        "layers on the GPU": str(opened.model.layers_on_gpu[0]),
        "llama.cpp": " ".join(versions().values()),
    }


def _adapted(settings: ModelSettings) -> list[str]:
    return [str(one) for one in (*settings.adapters, *settings.control)]


def _fingerprint(path: Path) -> str:
    """Size, beginning, end and evenly spread samples of all parts: two fine-tunes may have all but these in common."""
    digest = hashlib.sha256()
    for part in parts_of(path.name):
        with path.with_name(part).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(str(size).encode())
            for i in range(_SAMPLES + 1):
                file.seek(max(size - _SAMPLE_BYTES, 0) * i // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def store(path: Path, key: Key, tokens: list[int], state: NDArray[np.uint8]) -> int:
    """Write the `state` [bytes] after `tokens`, all or nothing; returns the file's bytes. Raises OSError."""
    ids = np.array(tokens, "<i4").view(np.uint8)
    digest = hashlib.sha256(ids.data)
    digest.update(state.data)
    header = {"key": dict(key), "tokens": len(tokens), "bytes": len(state), "sha256": digest.hexdigest()}
    line = json.dumps(header).encode() + b"\n"
    with appearing(path, private=True) as file:
        for part in (_MAGIC, line, ids.data, state.data):
            file.write(part)
    return len(_MAGIC) + len(line) + len(ids) + len(state)


def fetch(path: Path, key: Key, n_ctx: int) -> tuple[list[int], NDArray[np.uint8]]:
    """The tokens and the state in a file. Raises Unusable, OSError."""
    with open_regular(path) as file:
        if not is_own(file):  # its state would be taken for what these models made of the text
            raise Unusable("belongs to another user")
        header = _header(file)
        stored = header.get("key")
        if not isinstance(stored, dict) or stored.keys() != key.keys():
            raise Unusable("was written by another version of specdec")
        differing = [name for name, value in key.items() if stored[name] != value]
        if differing:
            raise Unusable(f"was made with a different {differing[0]}")
        n, n_bytes = header.get("tokens"), header.get("bytes")
        rest = os.fstat(file.fileno()).st_size - file.tell()
        if not isinstance(n, int) or not isinstance(n_bytes, int) or n < 0 or rest != 4 * n + n_bytes:
            raise Unusable("is truncated")
        if n > n_ctx:
            raise Unusable(f"holds {n} tokens, which do not fit this context of {n_ctx}")
        data = np.empty(rest, np.uint8)
        n_read = file.readinto(data.data)
    if n_read != rest or hashlib.sha256(data.data).hexdigest() != header.get("sha256"):
        raise Unusable("is damaged")
    return data[: 4 * n].view("<i4").tolist(), data[4 * n :]


def _header(file: BinaryIO) -> dict[str, object]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise Unusable("was written by another version of specdec")
    try:
        header = parse_json(file.readline(_LONGEST_HEADER))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise Unusable("is damaged")
    return header


def check_file(path: Path, *, writes: bool) -> None:
    """Refuse a place where no cache can be, or what is no cache and must not be overwritten. Raises UsageError."""
    for file in (path, draft_file(path)):
        try:
            is_ours = not file.exists() or _is_ours(file)
        except OSError as error:
            raise UsageError(f"Cannot read {file}: {error.strerror}.", hint="Check its permissions.") from error
        if not is_ours:
            raise UsageError(f"{file} is not a prompt cache.", hint="Give another file for --prompt-cache.")
    if not writes and not path.exists():
        raise UsageError(f"The prompt cache {path} does not exist.", hint="Create it first, without --prompt-cache-ro.")
    if writes and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UsageError(f"Cannot write to {path}.", hint="Check the folder, or use --prompt-cache-ro.")


def draft_file(path: Path) -> Path:
    """Where the draft's state lies."""
    return path.with_name(path.name + _DRAFT)


def _is_ours(path: Path) -> bool:
    """Whether it is a cache of any version, or empty."""
    start = _MAGIC.rpartition(b" ")[0]
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) in (start, b"")


class PromptCache:
    """The prompt cache of a pair in `file` and beside it. `say` takes notes; without `writes` nothing is written."""

    def __init__(self, file: Path, pair: Pair, *, writes: bool, say: Say) -> None:
        # A link stays a link: what it points to is replaced.
        self._file = Path(os.path.realpath(file))
        self._models, self._keys = self._parts(pair)
        self._held: dict[Path, list[int]] = {}
        self._writes = writes
        self._say = say

    def _parts(self, pair: Pair) -> tuple[dict[Path, OpenModel | OpenHead], dict[Path, dict[str, str]]]:
        """What is kept of a pair, and the keys, by file."""
        file, draft = self._file, draft_file(self._file)
        models: dict[Path, OpenModel | OpenHead] = {file: pair.target}
        if pair.draft is not None:
            models[draft] = pair.draft
        keys = {path: key_of(opened) for path, opened in models.items()}
        if isinstance(pair.draft, OpenHead):  # what it has read are the target's states
            keys[draft] = {name: f"{own}, target: {keys[file][name]}" for name, own in keys[draft].items()}
        return models, keys

    def load(self) -> None:
        """Give both sessions what is there for them."""
        began = time.perf_counter()
        n_bytes = 0
        for path, opened in self._models.items():
            if not opened.session.can_crop:
                self._say(
                    f"--prompt-cache has no effect for {opened.model.path.name}: recurrent and hybrid models "
                    "cannot return to the end of a prompt."
                )
            elif path.is_file() and path.stat().st_size > 0:
                n_bytes += self._load(path, opened)
            if self._is_new_head(path, opened):
                self._say(
                    "The head has not read the cached prompt, so its acceptance may be lower. A new cache file "
                    "will include the head."
                )
        if self._held:
            n = max(map(len, self._held.values()))
            took = time.perf_counter() - began
            self._say(f"Prompt cache: {n:,} tokens ({n_bytes / 1e6:,.1f} MB) loaded in {took:.2f} s.")

    @property
    def n_draft_tokens(self) -> int:
        """Tokens that the draft model or head was given."""
        return max((len(tokens) for path, tokens in self._held.items() if path.name.endswith(_DRAFT)), default=0)

    def _is_new_head(self, path: Path, opened: OpenModel | OpenHead) -> bool:
        """Whether it will not read the beginning of the text, which the target knows already."""
        return isinstance(opened, OpenHead) and bool(self._held) and path not in self._held

    def _load(self, path: Path, opened: OpenModel | OpenHead) -> int:
        try:
            tokens, state = fetch(path, self._keys[path], opened.session.n_ctx)
            if not opened.session.restore(tokens, state):
                raise Unusable("was rejected by llama.cpp")
        except (Unusable, OSError) as error:
            reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
            then = " and will be replaced" if self._writes and not self._is_new_head(path, opened) else ""
            self._say(f"{path.name} {reason}: not used{then}.")
            return 0
        self._held[path] = tokens
        return path.stat().st_size

    def save(self, n: int, pair: Pair) -> None:
        """Keep the first `n` tokens of what was evaluated last, where that is more than what is there. Of the `pair` as
        it is now: a chat may have opened other contexts, and a draft that the file is not for."""
        began = time.perf_counter()
        n_bytes = n_kept = 0
        models, keys = self._parts(pair)
        for path, opened in models.items() if self._writes else ():
            held = self._held.get(path, [])
            if not opened.session.can_crop or keys[path] != self._keys.get(path):
                continue
            tokens, state = opened.session.snapshot(n)
            if len(tokens) <= len(held):
                if shared_prefix(held, tokens) < len(tokens):
                    self._say(f"{path.name} holds another prompt of at least this length and is left unchanged.")
                continue
            try:
                n_bytes += store(path, self._keys[path], tokens, state)
            except OSError as error:
                self._say(f"Cannot write {path.name}: {error.strerror}. The prompt is not saved.")
                break
            n_kept = max(n_kept, len(tokens))
        if n_kept:
            took = time.perf_counter() - began
            self._say(f"Prompt cache: {n_kept:,} tokens ({n_bytes / 1e6:,.1f} MB) written in {took:.2f} s.")
