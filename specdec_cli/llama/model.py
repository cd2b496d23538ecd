"""A loaded GGUF model: facts, tokenizer, and reasons for load failures."""

import ctypes
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import llama_cpp

from specdec_cli.errors import Interrupted, ModelError, OutOfMemory, UsageError
from specdec_cli.llama import amx
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.adapters import LoadedAdapters
from specdec_cli.llama.devices import devices_named
from specdec_cli.llama.log import capture_log, log
from specdec_cli.models.gguf import check_is_gguf
from specdec_cli.models.vocabulary import PROBE_TEXT, SAMPLES, SpecialToken, Vocabulary
from specdec_cli.settings import ModelSettings

_VOCABULARY_KINDS = {
    llama_cpp.LLAMA_VOCAB_TYPE_SPM: "SPM",
    llama_cpp.LLAMA_VOCAB_TYPE_BPE: "BPE",
    llama_cpp.LLAMA_VOCAB_TYPE_WPM: "WPM",
    llama_cpp.LLAMA_VOCAB_TYPE_UGM: "UGM",
    llama_cpp.LLAMA_VOCAB_TYPE_RWKV: "RWKV",
    llama_cpp.LLAMA_VOCAB_TYPE_PLAMO2: "PLAMO2",
}
_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_SPECIAL = _CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_token_to_piece = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool
)(("llama_token_to_piece", llama_cpp.llama_cpp._lib))  # with a buffer by its address: much quicker for all tokens
_USUAL_PIECE = 256
"""Bytes that nearly every token has room in."""
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


class LlamaModel:
    """Weights and tokenizer. Use as a context manager, or `close()` it after its sessions.

    With `vocab_only` no weights are read: only the tokenizer and the metadata can be asked for.
    Raises ModelError (missing, not a GGUF, truncated, unknown architecture), OutOfMemory, and
    Interrupted when `abort` is set while loading.
    """

    def __init__(self, settings: ModelSettings, *, vocab_only: bool = False, abort: AbortFlag | None = None) -> None:
        self.path, self.settings = settings.path, settings
        check_is_gguf(settings.path)
        capture_log()
        log.start_afresh()
        llama_cpp.llama_backend_init()
        self._pieces: dict[int, bytes] = {}
        self._model = self._load(settings, vocab_only, abort)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.layers_on_gpu = self._layers_on_gpu()
        if not settings.is_head:
            self._check_it_can_write(vocab_only)
        try:
            self.adapters = LoadedAdapters(
                self._model,
                self.path.name,
                () if vocab_only else settings.adapters,
                () if vocab_only else settings.control,
            )
        except ModelError:
            self.close()
            raise

    def _load(self, settings: ModelSettings, vocab_only: bool, abort: AbortFlag | None) -> Any:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = settings.gpu_layers
        params.main_gpu = settings.main_gpu
        params.load_mode = _load_mode(settings)
        params.load_mtp = settings.with_mtp
        params.use_extra_bufts = settings.repack and not amx.crashes()
        keep_alive = _set_devices(params, settings)
        keep_alive.append(_set_abort(params, abort))
        model = llama_cpp.llama_model_load_from_file(os.fsencode(settings.path), params)
        del keep_alive
        if model:
            return model
        if abort is not None and abort.is_set:
            raise Interrupted(abort.signal_number)
        raise _load_error(settings.path)

    def _layers_on_gpu(self) -> tuple[int, int]:
        """(offloaded, all) as llama.cpp's log tells; it says nothing when nothing can be offloaded.

        It counts layers as offloaded even if there is no device to take them.
        """
        has_device = any(": using device " in line for line in log.lines)
        for line in log.lines if has_device else ():
            if found := _OFFLOADED.search(line):
                return int(found[1]), int(found[2])
        return 0, self.n_layers + 1  # llama.cpp counts the output layer too

    def _check_it_can_write(self, vocab_only: bool) -> None:
        """Refuse what would end in a native abort: no tokenizer, or a model that does not generate."""
        model = self._model
        if llama_cpp.llama_vocab_type(self._vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            kind = "a file without a tokenizer"
        elif vocab_only:
            return
        elif llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
            kind = "an encoder-decoder or embedding model"
        elif llama_cpp.llama_model_is_diffusion(model):
            kind = "a diffusion model"
        elif self.n_layers == 0:
            kind = "a file without weights (only a tokenizer)"
        else:
            return
        self.close()
        raise ModelError(
            f"{self.path.name} is {kind}, which cannot generate text token by token.",
            hint="Use a decoder-only language model.",
        )

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer, for the session."""
        return self._model

    @property
    def vocab_handle(self) -> Any:
        """llama.cpp's pointer to the tokenizer, for grammars."""
        return self._vocab

    @property
    def architecture(self) -> str:
        """As the GGUF names it."""
        return self.metadata("general.architecture") or ""

    @property
    def has_states(self) -> bool:
        """Whether some layer is recurrent: it has a state where others have keys and values."""
        return bool(llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model))

    @property
    def n_layers(self) -> int:
        return int(llama_cpp.llama_model_n_layer(self._model))

    def metadata(self, key: str) -> str | None:
        """A scalar of the GGUF's metadata as text."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, size)
            if n < 0:
                return None
            if n < size:
                return buffer.value.decode("utf-8", "replace")
            size = n + 1

    @property
    def chat_template(self) -> str | None:
        """The Jinja chat template stored in the file."""
        text: bytes | None = llama_cpp.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special` adds BOS/EOS where the model wants them, `parse_special`
        reads markers such as <|im_end|> as the tokens they name."""
        data = text.encode()
        size = len(data) + 8
        while True:
            buffer = (llama_cpp.llama_token * size)()
            n = llama_cpp.llama_tokenize(self._vocab, data, len(data), buffer, size, add_special, parse_special)
            if n >= 0:
                return list(buffer[:n])
            size = -n

    def special_token(self, token: int) -> SpecialToken | None:
        """What llama.cpp looks for by name in a text; None for a token that only the tokenizer finds."""
        attr = llama_cpp.llama_vocab_get_attr(self._vocab, token)
        if not attr & _SPECIAL:
            return None
        text = llama_cpp.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")
        strips = (bool(attr & bit) for bit in (llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP, llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP))
        return SpecialToken(token, text, bool(attr & _CONTROL), *strips)

    def special_tokens(self) -> list[SpecialToken]:
        """All of them; 0.1 s for 262,144 tokens."""
        return [found for token in range(self.n_vocab) if (found := self.special_token(token)) is not None]

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer puts BOS before a text."""
        return bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text: b"" for markers."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token, special=False)
        return piece

    def all_bytes(self, *, marked: bool = False) -> list[bytes]:
        """Of every token, by id, its `token_bytes` or `marked_bytes`; 0.2 s for 262,144 tokens."""
        buffer = ctypes.create_string_buffer(_USUAL_PIECE)
        address, found = ctypes.addressof(buffer), []
        for token in range(self.n_vocab):
            n = _token_to_piece(self._vocab, token, address, _USUAL_PIECE, 0, marked)
            found.append(ctypes.string_at(address, n) if n >= 0 else self._read_piece(token, special=marked))
        return found

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    @property
    def bos_text(self) -> str:
        """The marker that begins a text, as a template writes it; empty without one."""
        return self._marker(llama_cpp.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        """The marker that ends a text, as a template writes it; empty without one."""
        return self._marker(llama_cpp.llama_vocab_eos(self._vocab))

    def _marker(self, token: int) -> str:
        return self._read_piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """All tokens that end a text (EOS, EOT and their kin); 0.1 s for 262,144 tokens, once."""
        return frozenset(t for t in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, t))

    @property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Tokens that the model's maker forbids (GGUF key tokenizer.ggml.suppress_tokens)."""
        n = ctypes.c_int32()
        tokens = llama_cpp.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(n))
        return tuple(tokens[: n.value]) if tokens else ()

    def marked_bytes(self, token: int) -> bytes:
        """The token as bytes, markers spelt out."""
        return self._read_piece(token, special=True)

    def vocabulary(self) -> Vocabulary:
        """The whole tokenizer as plain values; 0.25 s for 262,144 tokens. Raises ModelError."""
        vocab = self._vocab
        ids = range(self.n_vocab)
        kind = _VOCABULARY_KINDS.get(llama_cpp.llama_vocab_type(vocab), "none")
        attrs = tuple(llama_cpp.llama_vocab_get_attr(vocab, t) for t in ids)
        if kind == "SPM" and not any(attr & llama_cpp.LLAMA_TOKEN_ATTR_BYTE for attr in attrs):
            # llama.cpp ends the process when it meets a character that no token covers.
            raise ModelError(
                f"The tokenizer of {self.path.name} has no byte tokens, so llama.cpp cannot encode every text with it.",
                hint="Convert the model again with a current llama.cpp, or use another model.",
            )
        return Vocabulary(
            name=self.path.name,
            kind=kind,
            pre_tokenizer=self.metadata("tokenizer.ggml.pre"),
            texts=tuple(llama_cpp.llama_vocab_get_text(vocab, t) for t in ids),
            attrs=attrs,
            bos=_id_or_none(llama_cpp.llama_vocab_bos(vocab)),
            eos=_id_or_none(llama_cpp.llama_vocab_eos(vocab)),
            eot=_id_or_none(llama_cpp.llama_vocab_eot(vocab)),
            add_bos=self.adds_bos,
            add_eos=bool(llama_cpp.llama_vocab_get_add_eos(vocab)),
            end_tokens=self.end_tokens,
            probe_ids=tuple(self.tokenize(PROBE_TEXT, add_special=True, parse_special=False)),
            sample_ids=tuple(
                tuple(self.tokenize(text, add_special=False, parse_special=False)) for text in SAMPLES.values()
            ),
        )

    def close(self) -> None:
        """Free the weights; calling it again does nothing."""
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_vocabulary(path: Path) -> Vocabulary:
    """The tokenizer of a GGUF file, read from its header. Raises ModelError."""
    with LlamaModel(ModelSettings(path), vocab_only=True) as model:
        return model.vocabulary()


def _load_mode(settings: ModelSettings) -> int:
    if settings.mlock:
        return int(llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK if settings.mmap else llama_cpp.LLAMA_LOAD_MODE_MLOCK)
    return int(llama_cpp.LLAMA_LOAD_MODE_MMAP if settings.mmap else llama_cpp.LLAMA_LOAD_MODE_NONE)


def _set_devices(params: Any, settings: ModelSettings) -> list[object]:
    """Fill devices and split; returns what must live until the model is loaded."""
    alive: list[object] = []
    if settings.devices:
        chosen = [d for d in devices_named(settings.devices) if d.is_gpu]
        # An empty list (only "cpu" was named) still has to be a list: NULL means every device.
        handles = (ctypes.c_void_p * (len(chosen) + 1))(*(d.handle for d in chosen), None)
        params.devices = ctypes.cast(handles, ctypes.c_void_p)
        alive.append(handles)
    if settings.tensor_split:
        most = llama_cpp.llama_max_devices()
        if len(settings.tensor_split) > most:
            raise UsageError(
                f"--tensor-split has {len(settings.tensor_split)} values; llama.cpp supports at most {most} devices.",
                hint="Give one number per GPU.",
            )
        split = (ctypes.c_float * most)(*settings.tensor_split)
        params.tensor_split = split
        alive.append(split)
    return alive


def _set_abort(params: Any, abort: AbortFlag | None) -> object:
    if abort is None:
        return None

    def go_on(_progress: float, _data: object) -> bool:
        return not abort.is_set

    callback: object = llama_cpp.llama_progress_callback(go_on)
    params.progress_callback = callback
    return callback


def _load_error(path: Path) -> ModelError:
    reason = log.reason() or "llama.cpp gave no reason"
    if re.search(r"alloc|out of memory|mlock", reason, re.IGNORECASE):
        return OutOfMemory(
            f"{path.name} does not fit in memory: {reason}.",
            hint="Use a smaller quantization, offload fewer layers (--ngl), or close other programs.",
        )
    if "unknown model architecture" in reason:
        hint = "Update llama-cpp-python. If that does not help, llama.cpp does not support this model yet."
    elif re.search(r"tensor '.*' not found", reason):
        hint = "The file has no weights (only a tokenizer), or not all of them. Use the complete model."
    elif re.search(r"within the file|corrupt|truncat|failed to read|incomplete|remaining file size", reason):
        hint = "The file seems to be truncated or damaged. Download it again."
    else:
        hint = "Run again with --log FILE to see llama.cpp's messages."
    return ModelError(f"Cannot load {path.name}: {reason}.", hint=hint)


def _id_or_none(token: int) -> int | None:
    return token if token >= 0 else None
