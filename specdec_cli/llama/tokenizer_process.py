"""A tokenizer read in a process of its own: llama.cpp ends the process over some files that were made to."""

import pickle
import subprocess
import sys
from pathlib import Path

from specdec_cli.errors import ModelError
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.models.vocabulary import Vocabulary

PATIENCE_SECONDS = 60.0


def read_vocabulary_apart(path: Path) -> Vocabulary:
    """What `read_vocabulary` gives, for a file that nobody has reason to trust. Raises ModelError."""
    command = [sys.executable, "-m", "specdec_cli.llama.tokenizer_process", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _bad(path, "does not end when its tokenizer is read") from error
    if done.returncode != 0:
        raise _bad(path, f"ends llama.cpp when its tokenizer is read (exit status {done.returncode})")
    found = pickle.loads(done.stdout)  # written by ourselves, below
    if isinstance(found, Vocabulary):
        return found
    message, hint = found
    raise ModelError(message, hint=hint)


def _bad(path: Path, what: str) -> ModelError:
    return ModelError(f"{path.name} {what}.", hint="The file is damaged or made up; use another.")


def main(path: Path) -> None:
    """The other side: a vocabulary, or the words of a ModelError, on stdout."""
    found: object
    try:
        found = read_vocabulary(path)
    except ModelError as error:
        found = (str(error), error.hint)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
