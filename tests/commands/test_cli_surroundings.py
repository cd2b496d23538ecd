"""What the command line stands in: no home folder, streams that the caller closed."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli import COMMAND, Models, inside

WITHOUT_HOME = """
import os, pwd, sys

def nobody(_):
    raise KeyError("no entry")

pwd.getpwuid = nobody
from specdec_cli.app import main
sys.argv = ["specdec", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("command", ["list", "presets", "verify-files", "run", "run demo"])
def test_a_user_without_a_home_folder(models: Models, tmp_path: Path, command: str) -> None:
    """As in a container that runs under any number: nothing is kept, and nothing fails that needs no home."""
    own = ("HOME", "XDG_", "SPECDEC_", "HF_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    arguments = command.split()
    if command == "run":
        arguments += [str(models.words), "a b", "-n", "3", "--raw", "--plain", "--draft", "ngram"]
    elif command == "run demo":
        arguments += ["hello"]
    started = [COMMAND[0], "-c", WITHOUT_HOME, *arguments]
    done = subprocess.run(started, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == (3 if command == "run demo" else 0), done.stderr
    if command == "run demo":
        assert "Hint: Set SPECDEC_CACHE to a writable folder." in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("command", "code"), [("list", 0), ("presets", 0), ("run", 0), ("run nothing hello", 2)])
def test_a_stream_that_is_closed_is_nothing_to_fail_at(
    models: Models, tmp_path: Path, closed: str, command: str, code: int
) -> None:
    trace = tmp_path / "trace.jsonl"
    if command == "run":
        command = f"run {models.words} 'a b' -n 3 --raw --jsonl {trace}"
    line = f"{' '.join(COMMAND)} {command} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr
    if trace.exists():
        assert trace.read_text().startswith("{")


LONG, LARGE = "9" * 5000, "9" * 400
ODD_NUMBERS: list[tuple[object, ...]] = [
    *(("run", "MODEL", "a", "-n", 1, "-k", number) for number in (LONG, "²", "٣", 2**31)),
    *(("run", "MODEL", "a", "-n", 1, "--ngl", number) for number in (LONG, "²", 2**63)),
    *(("run", "MODEL", "a", "-n", 1, "--logit-bias", bias) for bias in (f"5+{LARGE}", f"{LONG}+1", "5-9e999", "²+1")),
    *(("bench", "MODEL", "-k", number) for number in (LONG, "²", 2**31)),
    *(("bench", "MODEL", "--temp", number) for number in ("nan", "0,inf", "1e999")),
    *(("bench", "MODEL", "--ctx-fill", number) for number in (LONG, "²", "-1")),
    *(("plan", "MODEL", "--ngl", number) for number in (LONG, "²")),
    *(("plan", "MODEL", option, size) for option in ("--ram", "--vram") for size in (f"{LARGE}G", f"{LONG}T", "٣G")),
    *(("pull", "demo", "--stall", seconds) for seconds in ("inf", "nan", "1e300", "100000")),
]


@pytest.mark.parametrize("line", ODD_NUMBERS, ids=lambda line: "-".join(str(part)[:9] for part in line))
def test_numbers_of_any_size_are_refused_in_a_sentence(models: Models, line: tuple[object, ...]) -> None:
    done = inside(*(models.words if part == "MODEL" else part for part in line))
    assert done.code == 2, done.err
    assert len(done.err) < 600
