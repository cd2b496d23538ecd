"""Files that a command writes where its user said: what may be written over, and how.

Nothing that is read is written over, and no model ever is. A file that lies there already is replaced by renaming a
new one to its name, so that it is never found empty; links are followed, and stay links. FIFOs, devices and
/dev/stdout are streams.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from specdec_cli.errors import UsageError
from specdec_cli.paths import appearing, create_beside

ByOption = Mapping[str, Path | None]
"""Files as they were named, by option or argument; None where it was not given."""

_STANDARD_STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS}
"""Why a file may not be renamed although it can be written: its folder is another user's, or it is mounted itself."""
_LARGEST_HEADER = 100_000_000


def check_outputs(outputs: ByOption, inputs: ByOption) -> None:
    """Before anything is loaded. Raises UsageError for what cannot be written, a model, an input, and a file that two
    options name."""
    taken: dict[object, str] = {}
    read = [(option, _status(path)) for option, path in inputs.items() if path is not None]
    for option, path in outputs.items():
        if path is None:
            continue
        _check_standard(option, path)
        if _is_stream(path):
            continue
        status = _status(path)
        for other, theirs in read:
            if status is not None and theirs is not None and os.path.samestat(status, theirs):
                raise UsageError(f"{option} would overwrite {path}, which {other} reads.", hint="Give another file.")
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{option}: {path} is not a writable file.", hint="Give another path.")
        if status is not None and _is_model(path):
            raise UsageError(f"{option} would overwrite the model file {path}.", hint="Give another file.")
        place = (status.st_dev, status.st_ino) if status is not None else os.path.realpath(path)
        if place in taken:
            raise UsageError(
                f"{taken[place]} and {option} name the same file, {path}.", hint="Give two different files."
            )
        taken[place] = option
        folder = Path(os.path.realpath(path)).parent
        if not (os.access(path, os.W_OK) if status is not None else folder.is_dir() and os.access(folder, os.W_OK)):
            raise UsageError(f"Cannot write to {path}.", hint="Check the folder.")


def _check_standard(option: str, path: Path) -> None:
    """`> FILE --log FILE` would lose one of the two, `< FILE --log FILE` what is read; /dev/stdout goes on where the
    text is. Raises UsageError."""
    status = _status(path)
    if _descriptor(path) is not None or status is None or not stat.S_ISREG(status.st_mode):
        return
    for descriptor, name in enumerate(("input", "output", "error")):
        try:
            own = os.fstat(descriptor)
        except OSError:  # it is closed
            continue
        if os.path.samestat(status, own):
            raise UsageError(f"{option} would overwrite standard {name}, {path}.", hint="Give another file.")


def _is_stream(path: Path) -> bool:
    """Whether it is written as it is: a FIFO, a terminal, a device, or what another program has open for us."""
    status = _status(path)
    if _descriptor(path) is not None or status is None:
        return _descriptor(path) is not None
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISBLK(status.st_mode))


def _is_model(path: Path) -> bool:
    """Whether a regular file begins as GGUF and safetensors files do. Raises UsageError for one that cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise _cannot_write(path, error) from error
    length = int.from_bytes(start[:8], "little")
    return start.startswith(b"GGUF") or (start[8:] == b"{" and 2 <= length <= _LARGEST_HEADER)


def open_output(path: Path) -> TextIO:
    """A new, empty file under this name, which others can read while it is written. Raises UsageError.

    What lay there is no longer found by its name, but whoever has it open, or a hard link to it, keeps it.
    """
    try:
        # In JSON, what backslashreplace writes for half a character is that half again.
        return os.fdopen(_handle(path), "w", encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_output(path: Path, data: str | bytes) -> None:
    """All of it, or what lay there stays. Raises UsageError; OSError where the disk is full."""
    data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    try:
        if _is_stream(path):
            with os.fdopen(_handle(path), "wb") as file:
                file.write(data)
        else:
            _replace(path, data)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"Cannot write to {path}: {error.strerror}.", hint="Check the folder.")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def _descriptor(path: Path) -> int | None:
    """Which of our own open files is meant. Opening /dev/stdout anew would begin at the start of a file."""
    if found := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(path)):
        return int(found[1])
    return _STANDARD_STREAMS.get(str(path))


def _handle(path: Path) -> int:
    descriptor = _descriptor(path)
    if descriptor is not None:
        return os.dup(descriptor)
    flags = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
    if _is_stream(path):
        return os.open(path, flags)
    if sys.platform == "win32":  # which renames no open file
        return os.open(path, flags | os.O_CREAT | os.O_TRUNC | os.O_BINARY, 0o666)
    try:
        return _renamed_at_once(Path(os.path.realpath(path)))
    except OSError as error:
        if not _can_be_emptied(path, error):
            raise
        return os.open(path, flags | os.O_TRUNC)


def _renamed_at_once(path: Path) -> int:
    handle, unfinished = create_beside(path)
    try:
        _keep_mode(path, handle)
        os.replace(unfinished, path)
    except OSError:
        os.close(handle)
        unfinished.unlink()
        raise
    return handle


def _can_be_emptied(path: Path, error: OSError) -> bool:
    """Whether a file that its folder does not let us replace can be written all the same."""
    return error.errno in _IN_PLACE and path.is_file()


def _replace(path: Path, data: bytes) -> None:
    path = Path(os.path.realpath(path))
    try:
        with appearing(path) as file:
            _keep_mode(path, file.fileno())
            file.write(data)
    except OSError as error:
        if not _can_be_emptied(path, error):
            raise
        path.write_bytes(data)


def _keep_mode(path: Path, handle: int) -> None:
    """A file that only its owner could read stays so."""
    status = _status(path)
    if status is not None:
        os.chmod(handle, stat.S_IMODE(status.st_mode))
