"""Small files that somebody else may have written: read within bounds of size, depth and numbers.

Whoever can write into our folders, or hands over a trace or a benchmark, must not be able to hang a run, fill the
memory or pass on numbers that nothing measured.
"""

import errno
import json
import math
import os
import stat
import sys
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
DEEPEST = 20
LARGEST_INT = 2**63 - 1


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, through links. Raises OSError, also for a folder, a FIFO or a device.

    O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def is_own(file: BufferedReader) -> bool:
    """Whether the file belongs to this user or to root."""
    return sys.platform == "win32" or os.fstat(file.fileno()).st_uid in (os.geteuid(), 0)


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole of a regular file. Raises OSError, also for one of more than `most_bytes`."""
    with open_regular(path) as file:
        is_small = os.fstat(file.fileno()).st_size <= most_bytes
        data = file.read(most_bytes + 1) if is_small else b""
    if not is_small or len(data) > most_bytes:  # it may grow meanwhile
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return data


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The JSON value in a file. Raises OSError and ValueError, both with a reason in words."""
    return parse_json(read_file(path, most_bytes), most_bytes)


def parse_json(data: bytes | str, most_bytes: int = MOST_BYTES) -> Any:
    """A JSON value within the bounds of `check_bounds`. Raises ValueError with a reason in words."""
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes")
    try:
        value = json.loads(data.decode("utf-8") if isinstance(data, bytes) else data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} in line {error.lineno}, column {error.colno})") from None
    except ValueError:  # Python reads no integers of more than 4,300 digits
        raise ValueError("it has a number out of range") from None
    check_bounds(value)
    return value


def check_bounds(value: Any) -> None:
    """Raises ValueError for plain values nested deeper than DEEPEST, NaN, infinities and integers beyond 64 bits."""
    level = [value]
    for _ in range(DEEPEST + 1):
        if any(_is_out_of_bounds(one) for one in level):
            raise ValueError("it has a number out of range")
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _is_out_of_bounds(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and abs(value) > LARGEST_INT


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be read, for the end of a sentence: no path, no full stop."""
    return (error.strerror or str(error) if isinstance(error, OSError) else str(error)).rstrip(".")
