"""Whether llama.cpp's AMX kernels crash on this machine, which is found out once for each build.

Compiled by GCC before 11.5, 12.4 and 13.3 they load their tiles wrongly (GCC bug 114098), and some systems do not let
every thread use tiles (llama.cpp's pull request 26954): the first wide pass of quantized weights then ends the process.
Weights that stay as they lie in the file are computed without AMX.
"""

import hashlib
import json
from pathlib import Path

import llama_cpp

from specdec_cli.llama.versions import versions
from specdec_cli.marks import is_marked, mark

CRASHES = (
    "llama.cpp was built with AMX kernels that crash on this machine. They stay off, which is slower; "
    "docs/install.md says how to rebuild it without them."
)
_MARKS = "amx-crashes"
_MAX_REMEMBERED = 20


def has_amx() -> bool:
    """Whether this build has the kernels and this processor the instructions."""
    return "AMX_INT8 = 1" in versions()["llama_cpp_features"]


def crashes() -> bool:
    """Whether they crashed here before."""
    return has_amx() and is_marked(_MARKS, _key())


def remember_crash() -> None:
    """From now on weights are not reordered for them, by this build of llama.cpp."""
    mark(_MARKS, [_key()], most=_MAX_REMEMBERED)


def _key() -> str:
    """Of this build: a new one by another compiler may call itself the same."""
    facts = [versions(), Path(llama_cpp.__file__).stat().st_mtime_ns]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
