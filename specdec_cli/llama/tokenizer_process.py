"""Reads a tokenizer in a separate process, because some files crash llama.cpp."""

from pathlib import Path

from specdec_cli.child_process import PATIENCE_SECONDS
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.llama.native_process import DAMAGED, Apart
from specdec_cli.models.vocabulary import Vocabulary


def read_vocabulary_apart(path: Path) -> Vocabulary:
    """What `read_vocabulary` gives, for a file that nobody has reason to trust. Raises ModelError, OutOfMemory."""
    apart = Apart(f"reading the tokenizer of {path.name}", hint=DAMAGED, patience=PATIENCE_SECONDS)
    return apart.call(read_vocabulary, path)
