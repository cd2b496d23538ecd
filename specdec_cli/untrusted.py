"""What names from outside may look like: of repositories, revisions, files, and in the middle of a sentence."""

import os
import re

_REPO = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = re.compile(r"[\w-][\w./-]*", re.ASCII)
_FORBIDDEN = re.compile(r'[\\:*?"<>|\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]')
"""In the name of a file: what some system takes for something else, and what a terminal obeys."""
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE)
"""What Windows takes for a device, with any ending."""
_USERINFO = re.compile(r"([a-z][a-z0-9+.-]+:/+)[^\s'\"<>]*@", re.IGNORECASE)
"""Up to the last @ of a word, and after one slash as well, which is what a path makes of two."""
_LONGEST_PATH = 1024
_LONGEST_NAME = 255
"""Bytes of one name in a path, on every usual file system."""
_LONGEST_REPO = 200
_LONGEST_QUOTE = 200


def is_repo(text: str) -> bool:
    """OWNER/NAME, both together short enough for the name of a folder."""
    return _REPO.fullmatch(text) is not None and len(text) <= _LONGEST_REPO


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_revision(text: str) -> bool:
    """A commit, a branch or a tag, which can be the name of a file below a folder."""
    return _REVISION.fullmatch(text) is not None and ".." not in text and len(text) <= _LONGEST_NAME


def is_etag(text: str) -> bool:
    """Whether this is a hash (sha256, or git's sha1), and so can be a file's name."""
    return _ETAG.fullmatch(text) is not None


def stays_inside(path: str) -> bool:
    """Whether a path with slashes is one below its folder, and can be there: in Unicode, no name above 255 bytes."""
    parts = path.split("/")
    return (
        0 < len(path) < _LONGEST_PATH
        and not any(part in ("", ".", "..") for part in parts)
        and _FORBIDDEN.search(path) is None
        and is_unicode(path)
        and all(len(part.encode()) <= _LONGEST_NAME for part in parts)
    )


def is_portable(path: str) -> bool:
    """Whether every name in a path means the same on Windows: no device's, no dot or space at its end."""
    return not any(part[-1:] in (".", " ") or _DEVICE.fullmatch(part) for part in path.split("/"))


def is_unicode(text: str) -> bool:
    """Whether there are no halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_path(text: str) -> bool:
    """Whether this system could have a file of this name: no NUL, and bytes for every character."""
    try:
        return "\0" not in text and bool(os.fsencode(text))
    except UnicodeEncodeError:
        return False


def one_line(text: str | None) -> str:
    """Words from outside, fit for the middle of a sentence."""
    words = " ".join((text or "no reason given").split()).rstrip(".")[:_LONGEST_QUOTE]
    return words.encode("utf-8", "replace").decode()


def without_userinfo(text: str) -> str:
    """Words without the user and password of any address in them."""
    return _USERINFO.sub(r"\1", text)
