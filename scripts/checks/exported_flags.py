"""Checks every flag that `specdec export` writes for llama-server against llama.cpp's own table of options.

    python -m scripts.checks.exported_flags LLAMA_CPP/common/arg.cpp

Reads the C++ source (in llama-cpp-python's source distribution it is under vendor/llama.cpp). A flag counts as known if
an option lists it and was not removed, which llama.cpp says with an error. Exit code 1 for an unknown one.
"""

import argparse
import re
import sys
from pathlib import Path

from specdec_cli.export.llama_server import server_flags
from specdec_cli.export.pair import ExportedPair

_DRAFTERS = ("none", "model", "ngram", "ngram+model", "mtp", "eagle3", "dflash", "dspark")
_OPTION = re.compile(r"add_opt\(common_arg\(\s*\{([^}]*)\}(.*?)(?=add_opt\(|\Z)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arg_cpp", type=Path)
    source = parser.parse_args().arg_cpp.read_text(encoding="utf-8")
    known, removed = _flags(source)
    types = set(re.findall(r'"((?:draft|ngram)-[\w-]+)"', _all_sources(parser.parse_args().arg_cpp)))
    wrong = 0
    for drafter in _DRAFTERS:
        flags = server_flags(_pair(drafter))
        bad = [name for name in flags if f"--{name}" not in known or f"--{name}" in removed]
        bad += [kind for kind in flags.get("spec-type", "").split(",") if kind and kind not in types]
        print(f"{drafter}: {len(flags)} flags" + (f", unknown: {', '.join(bad)}" if bad else ", all known"))
        wrong += len(bad)
    sys.exit(wrong > 0)


def _flags(source: str) -> tuple[set[str], set[str]]:
    """All flags, and those whose handler throws at once."""
    known, removed = set[str](), set[str]()
    for names, rest in _OPTION.findall(source):
        flags = set(re.findall(r'"(--[\w-]+)"', names))
        known |= flags
        if "argument has been removed" in rest:
            removed |= flags
    return known, removed


def _all_sources(arg_cpp: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(arg_cpp.parent.glob("*.cpp")))


def _pair(drafter: str) -> ExportedPair:
    draft = None if drafter in ("none", "ngram", "mtp") else Path("d.gguf")
    sampling = {"temp": 0.5, "top-k": 40, "top-p": 0.9, "min-p": 0.1}
    memory = {"cache_type": "q8_0", "cache_type_draft": "q8_0", "flash_attention": "on"}
    return ExportedPair("x", Path("t.gguf"), drafter, draft, 5, 0.5, 4096, 4, 2, sampling=sampling, **memory)


if __name__ == "__main__":
    main()
