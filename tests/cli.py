"""The command line as its users have it: a process of its own, real exit codes, real streams."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specdec_cli import app
from tests import secrets
from tests.planted import BYTES, UNK, Chain, Vocab, disturbed, make_vocab, random_chain, write_planted, write_tiny_mamba

COMMAND = (sys.executable, "-m", "specdec_cli")
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of llama.cpp that wait do not spin: on cores that others use too, a run is ten times as fast."""
PATIENCE = 60.0
"""Seconds after which a command counts as hanging. A busy machine needs a tenth."""

N_VOCAB = 320
HEADS = 5
"""Heads of 64, which quantized caches take in blocks of 32."""
VOCAB = make_vocab(N_VOCAB)

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined %}{{ '+' if enable_thinking else '-' }}{% endif %}{% endif %}"
)
"""A chat template that shows in the ids whether --think or --no-think was given."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        assert not secrets.are_in(self.out + self.err)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The one JSON document of a run that went well."""
        assert self.code == 0, self.err
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.document["stats"]
        return stats


def specdec(
    *arguments: object,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    memory: int | None = None,
) -> Done:
    """`specdec ARGUMENTS`. Without `stdin` there is nothing to read; `memory` limits the address space in bytes."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *map(_text, arguments)],
        input=data or b"",
        capture_output=True,
        env={**os.environ, **CALM, **(env or {})},
        timeout=PATIENCE,
        check=False,
        preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def _text(argument: object) -> str | bytes:
    return argument if isinstance(argument, bytes) else str(argument)


def inside(*arguments: object, stdin: str | bytes = b"") -> Done:
    """The same inside this process, many times as fast: for all but what only a process of its own can show."""
    argv, real_stdin, handler = sys.argv, sys.stdin, signal.getsignal(signal.SIGTERM)
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.argv = ["specdec", *map(os.fsdecode, map(_text, arguments))]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), "utf-8")
    code = None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv, sys.stdin = argv, real_stdin
        signal.signal(signal.SIGTERM, handler)
    assert code is not None, "main always ends with an exit code"
    return Done(code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def run_json(*arguments: object, **kwargs: Any) -> Done:
    """`specdec run ARGUMENTS --json`."""
    return specdec("run", *arguments, "--json", **kwargs)


def json_inside(*arguments: object, stdin: str | bytes = b"") -> Done:
    """`run_json` inside this process. One thread does not spin while others work."""
    return inside("run", "--threads", 1, *arguments, "--json", stdin=stdin)


def traced(trace: Path, *arguments: object, stdin: str | bytes = b"") -> tuple[Done, list[dict[str, Any]]]:
    """`json_inside` and the lines of its trace."""
    done = json_inside(*arguments, "--jsonl", trace, stdin=stdin)
    return done, [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]


def text_of(ids: Sequence[int]) -> str:
    """What ids of the planted vocabulary say, markers included."""
    data = b"".join(
        bytes([token - BYTES.start]) if token in BYTES else VOCAB.tokens[token].replace("▁", " ").encode()
        for token in ids
    )
    return data.decode()


def word(text: str) -> int:
    """The id of the word " text"."""
    return VOCAB.tokens.index(f"▁{text}")


def byte(text: str) -> int:
    """The id of a character that the vocabulary has as a byte."""
    return BYTES.start + ord(text)


def ring(*ids: int, also: Mapping[int, int] | None = None) -> Chain:
    """Every token of `ids` is followed by the next one, the last by the first, any other token by the first.

    `also` says otherwise for single tokens.
    """
    chain: Chain = np.zeros((N_VOCAB, N_VOCAB))
    follows = {**dict(zip(ids, (*ids[1:], ids[0]), strict=True)), **(also or {})}
    for token in range(N_VOCAB):
        chain[token, follows.get(token, ids[0])] = 1.0
    return chain


class Models:
    """Planted files of one vocabulary, each made when a test asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def words(self) -> Path:
        """Writes words at random, never an end. About seven times the size of `draft`."""
        return self._write("words", self._chain, n_layers=2)

    @cached_property
    def draft(self) -> Path:
        """Agrees with `words` more often than not."""
        chain = disturbed(self._chain, 0.7, seed=1)
        return self._write("draft", chain, n_layers=1, n_ff=32, dtype=np.float16)

    @cached_property
    def ring(self) -> Path:
        """Writes " a b c d e" round and round, whatever the seed. Trained for 512 tokens."""
        return self._write("ring", self._ring, n_ctx_train=512)

    @cached_property
    def ring_draft(self) -> Path:
        """Knows by heart what `ring` and `chat` write."""
        return self._write("ring-draft", self._ring, n_ff=32, dtype=np.float16)

    @cached_property
    def ends(self) -> Path:
        """Writes " a b c d e" and ends."""
        chain = ring(*self._letters, also={word("e"): VOCAB.eos})
        return self._write("ends", chain)

    @cached_property
    def chat(self) -> Path:
        """Like `ends`, with a chat template; after "+" it begins with " b", after "-" with " c"."""
        thinking = {byte("+"): word("b"), byte("-"): word("c"), word("e"): VOCAB.eos}
        return self._write("chat", ring(*self._letters, also=thinking), vocab=replace(VOCAB, chat_template=TEMPLATE))

    @cached_property
    def words_chat(self) -> Path:
        """`words` with a chat template."""
        return self._write("words-chat", self._chain, n_layers=2, vocab=replace(VOCAB, chat_template=TEMPLATE))

    @cached_property
    def endless_chat(self) -> Path:
        """`ring` with a chat template, and slow enough to be interrupted."""
        return self._write(
            "endless", self._ring, n_layers=8, n_ctx_train=65536, vocab=replace(VOCAB, chat_template=TEMPLATE)
        )

    @cached_property
    def endless(self) -> Path:
        """`ring`, slow enough to be interrupted."""
        return self._write("slow", self._ring, n_layers=8, n_ctx_train=65536)

    @cached_property
    def no_bos(self) -> Path:
        """Its tokenizer adds nothing: an empty prompt is empty, one word is one token."""
        return self._write("no-bos", self._ring, vocab=replace(VOCAB, add_bos=False))

    @cached_property
    def bytes(self) -> Path:
        """Writes what a terminal would obey, and markup: ESC c [red] CSI BEL, over and over."""
        characters = "\x1bc[red]\xc2\x9b\x07"  # the last but one is a control of two bytes in UTF-8
        return self._write("bytes", ring(*map(byte, characters)))

    @cached_property
    def wide(self) -> Path:
        """Writes "é漢😀" without end, a byte a token."""
        return self._write("wide", ring(*(BYTES.start + b for b in "é漢😀".encode())))

    @cached_property
    def mamba(self) -> Path:
        """Recurrent: its memory cannot be taken back."""
        return write_tiny_mamba(self.folder / "mamba.gguf", seed=5, n_vocab=N_VOCAB)

    @cached_property
    def padded(self) -> Path:
        """`ring_draft` with eight unused tokens more."""
        return self._write("padded", self._ring, n_ff=32, dtype=np.float16, n_vocab_pad=8)

    @cached_property
    def renamed_marker(self) -> Path:
        """`ring_draft` with another name for </s>."""
        vocab = VOCAB.renamed({VOCAB.eos: "<|end|>"})
        return self._write("renamed-marker", self._ring, n_ff=32, dtype=np.float16, vocab=vocab)

    @cached_property
    def other_words(self) -> Path:
        """`ring_draft` with thirty words that say something else: a draft that cannot work."""
        vocab = VOCAB.renamed({token: f"▁word{token}" for token in range(N_VOCAB - 30, N_VOCAB)})
        return self._write("other-words", self._ring, n_ff=32, dtype=np.float16, vocab=vocab)

    @cached_property
    def truncated(self) -> Path:
        path = self.folder / "truncated.gguf"
        path.write_bytes(self.ring.read_bytes()[:-100_000])
        return path

    @property
    def _letters(self) -> tuple[int, ...]:
        return tuple(map(word, "abcde"))

    @property
    def _ring(self) -> Chain:
        return ring(*self._letters)

    @cached_property
    def _chain(self) -> Chain:
        return random_chain(N_VOCAB, seed=0, never=(UNK, VOCAB.bos, *BYTES))

    def _write(self, name: str, chain: Chain, *, vocab: Vocab = VOCAB, **options: Any) -> Path:
        return write_planted(self.folder / f"{name}.gguf", chain, vocab=vocab, n_head=HEADS, **options)


def unknown_architecture(source: Path, path: Path) -> Path:
    """A copy of `source` that claims to be of a kind nobody knows."""
    path.write_bytes(source.read_bytes().replace(b"llama", b"lhama"))
    return path
