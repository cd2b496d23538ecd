"""Errors that a user can act on: what happened, what to do, and the exit code."""

from specdec_cli.untrusted import without_userinfo


class SpecdecError(Exception):
    """What happened in one sentence, what to do in another (`hint`). Users and passwords in addresses are left out."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(without_userinfo(message))
        self.hint = without_userinfo(hint) if hint is not None else None


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


class NothingAllowed(DecodeFailed):
    """No token may follow a text: a grammar or bans leave none, or the text cannot be followed any further.

    It is said of that text alone. A draft that runs into it ends there; the target's own text does not have to.
    """


class TextDiffers(SpecdecError):
    """A text that must be plain decoding's is not."""

    exit_code = 9


class DraftDoesNotPay(SpecdecError):
    """A draft was made and measured, and drafting with it is no faster."""

    exit_code = 10


class HubError(SpecdecError):
    """Something between here and the Hub. `is_transient` failures are worth another try, after `retry_after`
    seconds if the server named a time."""

    exit_code = 32
    is_transient = False

    def __init__(self, message: str, *, hint: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class NeedsToken(HubError):
    """The repository opens only to a token, and there is none, or the Hub refuses it."""

    exit_code = 20


class NoAccess(HubError):
    """The token's owner may not read the repository."""

    exit_code = 21


class NotOnHub(HubError):
    """No such repository, revision or file; or several files where one was meant."""

    exit_code = 22


class RateLimited(HubError):
    """The Hub asks for patience."""

    exit_code = 23
    is_transient = True


class DiskFull(SpecdecError):
    """What is to be fetched does not fit on the disk."""

    exit_code = 24


class NoNetwork(HubError):
    """The Hub cannot be reached."""

    exit_code = 25
    is_transient = True


class ProxyFailed(HubError):
    """The proxy does not let us through."""

    exit_code = 26


class CertificateFailed(HubError):
    """The other side's certificate is not trusted here."""

    exit_code = 27


class Stalled(HubError):
    """No byte came for too long."""

    exit_code = 28
    is_transient = True


class DamagedFile(SpecdecError):
    """A file that came, or lies here, is not the one that the Hub has."""

    exit_code = 29


class NotHere(SpecdecError):
    """A model file is not on this machine, and nothing may be fetched now."""

    exit_code = 30


class HeldByAnother(SpecdecError):
    """Another process holds the file's lock and does not go on."""

    exit_code = 31


class HubFailed(HubError):
    """The server, or the connection, failed in the middle; or it says what cannot be right."""

    is_transient = True


class Interrupted(SpecdecError):
    """The user, or the system, asked to stop; `exit_code` is 128 + the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("Stopped.")
        self.exit_code = 128 + signal_number
