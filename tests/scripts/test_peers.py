"""What other programs print is read for what it says; who cannot run is told of, not an error."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from scripts.benchmarks import peers as bench_peers
from scripts.benchmarks.llama_programs import BENCH, LOOKUP, SPECULATIVE, Said, Way, bench, lookup, speculative
from scripts.benchmarks.peers import PROMPTS

ROOT = Path(__file__).parent.parent.parent
WAY = Way(n=16, k=3, temperature=0.5, threads=2)
DECODED = """
encoded    5 tokens in    0.020 seconds, speed:  250.000 t/s
decoded   17 tokens in    0.170 seconds, speed:  100.000 t/s
n_predict    = 17
n_drafted    = 20
n_accept     = 15
"""


def program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """A program that keeps what it was asked, and says this on stderr."""
    file = folder / name
    file.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(folder / 'asked')!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
    )
    with file.open("a") as rest:
        rest.write(f"print({says!r})\nsys.exit({code})\n")
    file.chmod(0o755)
    return folder


def asked(folder: Path) -> dict[str, str]:
    words = (folder / "asked").read_text().split("\n")
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_run_with_a_draft_model(tmp_path: Path) -> None:
    programs = program(tmp_path, SPECULATIVE, DECODED)
    assert speculative(programs, Path("t.gguf"), Path("d.gguf"), "a b", WAY) == Said(100.0, 0.75, 17)
    options = asked(tmp_path)
    assert (options["-m"], options["-md"], options["-p"], options["-n"]) == ("t.gguf", "d.gguf", "a b", "16")
    assert (options["--spec-draft-n-max"], options["--temp"], options["-t"], options["-td"]) == ("3", "0.5", "2", "2")


def test_a_run_with_lookup_drafts_with_no_model(tmp_path: Path) -> None:
    assert lookup(program(tmp_path, LOOKUP, DECODED), Path("t.gguf"), "a", WAY) == Said(100.0, 0.75, 17)
    assert "-md" not in asked(tmp_path)


def test_plain_decoding(tmp_path: Path) -> None:
    programs = program(tmp_path, BENCH, json.dumps([{"avg_ts": 61.5, "n_gen": 16}]))
    assert bench(programs, Path("t.gguf"), WAY) == Said(61.5)
    assert (asked(tmp_path)["-p"], asked(tmp_path)["-n"]) == ("0", "16")


@pytest.mark.parametrize(("says", "code"), [("", 0), (DECODED, 1), ("decoded all", 0)])
def test_a_program_that_fails_is_named(tmp_path: Path, says: str, code: int) -> None:
    with pytest.raises(SystemExit, match="llama-lookup failed"):
        lookup(program(tmp_path, LOOKUP, says, code), Path("t.gguf"), "a", WAY)
    with pytest.raises(SystemExit, match="llama-bench failed"):
        bench(program(tmp_path, BENCH, "no JSON"), Path("t.gguf"), WAY)


def options(**given: object) -> Namespace:
    usual = {"python": None, "vllm_python": None, "repeats": 1, "target": Path("t.gguf"), "draft": Path("d.gguf")}
    return Namespace(**{**usual, **given})


@pytest.mark.parametrize(("peer", "option"), [("transformers", "--python"), ("vllm", "--vllm-python")])
def test_an_environment_that_is_not_named(peer: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_peers._answers(peer, options(), [], WAY) is None
    assert (
        f"{peer} is left out: name the Python of an environment that has it with {option}." in capsys.readouterr().out
    )


def test_an_environment_that_lacks_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """This one has neither torch nor vLLM; where it does, there is no such file."""
    for peer, given in (("transformers", {"python": sys.executable}), ("vllm", {"vllm_python": sys.executable})):
        assert bench_peers._answers(peer, options(**given, target=tmp_path / "none.gguf"), [], WAY) is None
    out = capsys.readouterr().out
    assert "transformers cannot run here:" in out
    assert "vllm is left out: the weights are written by transformers" in out


def test_an_unknown_peer_is_refused() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks.peers", "t.gguf", "d.gguf", "--peers", "magic"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "There is no peer magic; there are speculative, lookup, bench, transformers, vllm." in done.stderr
    assert len(PROMPTS) > 1
