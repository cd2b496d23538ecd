"""Errors that a user can act on: what happened, what to do, and the exit code."""


class SpecdecError(Exception):
    """What happened in one sentence, what to do in another (`hint`)."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(SpecdecError):
    """Options or input that cannot be used as given."""

    exit_code = 2


class ModelError(SpecdecError):
    """A model file is missing, cannot be loaded, or cannot do what is asked."""

    exit_code = 3


class VocabularyMismatch(SpecdecError):
    """The draft's tokenizer is not the target's."""

    exit_code = 4


class OutOfMemory(ModelError):
    """A model or its cache does not fit."""

    exit_code = 5


class NoGpu(SpecdecError):
    """`--require-gpu` was given and layers stayed on the CPU."""

    exit_code = 6


class DecodeFailed(SpecdecError):
    """llama.cpp could not evaluate a batch, or its numbers are not numbers."""

    exit_code = 7


class Interrupted(SpecdecError):
    """The user, or the system, asked to stop; `exit_code` is 128 + the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("Stopped.")
        self.exit_code = 128 + signal_number
