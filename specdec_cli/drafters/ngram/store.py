"""Texts of earlier runs, kept in a file so that later ones may copy from them.

The file is JSON lines: a header with the tokenizer's fingerprint and a checksum of the rest, then one list of token
ids for each text, oldest first. It is written as a whole, so whoever reads it sees all of it or none.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_cli.drafters.ngram.odds import Agreement
from specdec_cli.errors import UsageError
from specdec_cli.models.vocabulary import PROBE_TEXT
from specdec_cli.paths import write_whole
from specdec_cli.untrusted_files import open_regular, parse_json

MOST_TOKENS = 2**18
"""Kept in a file; the oldest texts go first."""
SHORTEST_MATCH = 3
"""Tokens that must agree with an earlier text."""
LONGEST_MATCH = 41
"""Longer matches are not told apart."""

_FORMAT = "specdec n-grams 1"
_LARGEST_FILE = 16 * MOST_TOKENS
_LOOKED_AT = 32
"""Of the places where a passage stood, the most recent so many."""
_BITS = 21
"""Of a token id, so that three fit into one integer."""
_BETWEEN_TEXTS = 2**_BITS - 1
_SAMPLED = 4096

Text = tuple[int, ...]


class Tokenizer(Protocol):
    """What a fingerprint is taken of."""

    @property
    def n_vocab(self) -> int: ...

    def token_bytes(self, token: int) -> bytes: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class Damaged(Exception):
    """The file is no store, or no longer what was written."""


class NgramStore:
    """Earlier texts to copy from, and this run's to be kept.

    The texts stand one after another in `_tokens`; `_keys` are their passages of three tokens, sorted, and `_places`
    where each of them ends, ascending for equal ones.
    """

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        self.new: list[Text] = []
        joined = [token for text in texts for token in (*text, _BETWEEN_TEXTS)]
        self._tokens = joined
        keys = _keys(np.array(joined, np.int64))
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._places = order + SHORTEST_MATCH

    def continuation(self, tokens: Sequence[int]) -> Iterator[tuple[int, int, Agreement]]:
        """What followed the longest match of the end of `tokens` with an earlier text, to that text's end.

        Each token comes with the length of the match before it, and whether all matches of that length agreed on the
        first token.
        """
        places = self._matches(tokens)
        if not places:
            return
        lengths = {place: self._match_length(tokens, place) for place in places}
        length = max(lengths.values())
        longest = [place for place in places if lengths[place] == length]
        firsts = {self._tokens[place] for place in longest} - {_BETWEEN_TEXTS}
        agreement: Agreement = "differ" if len(firsts) > 1 else "agree" if len(longest) > 1 else "once"
        for i, token in enumerate(self._tokens[longest[-1] : longest[-1] + LONGEST_MATCH]):
            if token == _BETWEEN_TEXTS:
                return
            yield token, length + i, agreement

    def keep(self, tokens: Sequence[int]) -> None:
        """This text is to be saved; in the place of the last one if it goes on with that."""
        text = tuple(tokens)
        if self.new and text[: len(self.new[-1])] == self.new[-1]:
            self.new.pop()
        self.new.append(text)

    def _matches(self, tokens: Sequence[int]) -> list[int]:
        """The most recent places after the last three of `tokens`, ascending."""
        if len(tokens) < SHORTEST_MATCH:
            return []
        key = _keys(np.array(tokens[-SHORTEST_MATCH:], np.int64))[0]
        first, end = np.searchsorted(self._keys, key, "left"), np.searchsorted(self._keys, key, "right")
        found: list[int] = self._places[max(first, end - _LOOKED_AT) : end].tolist()
        return found

    def _match_length(self, tokens: Sequence[int], place: int) -> int:
        length, longest = SHORTEST_MATCH, min(LONGEST_MATCH, place, len(tokens))
        while length < longest and self._tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        return length


def _keys(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """One integer for each three tokens in a row, shape [max(n - 2, 0)]."""
    return (tokens[:-2] << 2 * _BITS) | (tokens[1:-1] << _BITS) | tokens[2:]


def fingerprint(tokenizer: Tokenizer) -> str:
    """The same for tokenizers that agree in size, in every so many tokens and in how they split a text."""
    digest = sha256(str(tokenizer.n_vocab).encode())
    for token in range(0, tokenizer.n_vocab, max(1, tokenizer.n_vocab // _SAMPLED)):
        piece = tokenizer.token_bytes(token)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    digest.update(json.dumps(tokenizer.tokenize(PROBE_TEXT, add_special=False, parse_special=False)).encode())
    return digest.hexdigest()[:16]


class StoreFile:
    """A store's place on disk: `path`, or a file of the tokenizer's own where that is a folder.

    A file that is damaged, or no store at all, is told to `say`, left out, and never written over.
    """

    def __init__(
        self, path: Path, tokenizer: str, say: Callable[[str], None], *, n_vocab: int = _BETWEEN_TEXTS
    ) -> None:
        path = path / f"specdec-ngrams-{tokenizer}.jsonl" if path.is_dir() else path
        self._path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._say = say

    def load(self) -> NgramStore:
        """Raises UsageError for the store of another tokenizer, and for a file that may not be read."""
        try:
            return NgramStore(self._read())
        except Damaged as damage:
            self._say(f"Ignoring {self._path}: {damage}. Give another file to start a new store.")
            return NgramStore()
        except OSError as error:
            raise UsageError(
                f"Cannot read {self._path}: {error.strerror}.", hint="Check the path of --ngram-store."
            ) from error

    def save(self, store: NgramStore) -> None:
        """Add the run's texts to what the file holds by now. What another run writes at the same moment may be lost."""
        if not store.new:
            return
        try:
            _write(self._path, self._tokenizer, _newest([*self._read(), *store.new]))
        except (Damaged, UsageError):
            return  # told when it was loaded, or not ours
        except OSError as error:
            self._say(f"Cannot save the n-gram store {self._path}: {error.strerror}.")

    def _read(self) -> list[Text]:
        """The texts, oldest first; none where there is no file. Raises Damaged, UsageError, OSError."""
        try:
            with open_regular(self._path) as file:
                data = file.read(_LARGEST_FILE + 1)
        except (FileNotFoundError, NotADirectoryError):
            return []
        first, _, rest = data.partition(b"\n")
        header = _header(first)
        if header["tokenizer"] != self._tokenizer:
            raise UsageError(
                f"{self._path} was made with a different tokenizer.",
                hint="Use one file per tokenizer, or give a folder.",
            )
        if len(data) > _LARGEST_FILE or header["crc32"] != zlib.crc32(rest):
            raise Damaged("it is damaged (its checksum is wrong)")
        return [_ids(line, self._n_vocab) for line in rest.split(b"\n") if line]


def _header(line: bytes) -> dict[str, object]:
    try:
        header = parse_json(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT or not {"tokenizer", "crc32"} <= header.keys():
        raise Damaged("it is not an n-gram store")
    return header


def _ids(line: bytes, n_vocab: int) -> Text:
    try:
        ids = parse_json(line, _LARGEST_FILE)
    except ValueError:
        ids = None
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < n_vocab for i in ids):
        raise Damaged("it is damaged (a line is not a list of tokens)")
    return tuple(ids)


def _newest(texts: Sequence[Text]) -> list[Text]:
    """The last texts that fit, each once, oldest first; of a text that alone does not fit, its end."""
    kept: dict[Text, None] = {}
    room = MOST_TOKENS
    for text in reversed(texts):
        if text in kept or not text:
            continue
        if len(text) > room:
            if not kept:
                kept[text[-room:]] = None
            break
        kept[text] = None
        room -= len(text)
    return list(reversed(kept))


def _write(path: Path, tokenizer: str, texts: Iterable[Text]) -> None:
    rest = "".join(json.dumps(text, separators=(",", ":")) + "\n" for text in texts)
    header = {"format": _FORMAT, "tokenizer": tokenizer, "crc32": zlib.crc32(rest.encode())}
    write_whole(path, f"{json.dumps(header)}\n{rest}", private=True)
