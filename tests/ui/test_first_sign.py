"""Something is on the screen at once, and gone when there is something to read. How soon: scripts.checks.first_sign."""

import subprocess
import sys

import pytest

from tests.cli import Models
from tests.terminals import Terminal


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("line", "sign", "result"),
    [
        ("check RING DRAFT", "Reading the tokenizers of ", "tokenizers match"),
        ("plan RING --ram 8G", "Reading the headers of ", "It fits."),
        ("pull llama-3.1-8b", "Looking for llama-3.1-8b ...", "HF_HUB_OFFLINE is set"),
        ("audit /nowhere.gguf --draft ngram", "Loading /nowhere.gguf ...", "Error: File not found: /nowhere.gguf."),
        ("draft make /nowhere.gguf", "Reading /nowhere.gguf ...", "Error: File not found: /nowhere.gguf."),
        ("list", "Looking for models ...", "No models on this machine yet."),
    ],
    ids=lambda one: one.split()[0],
)
def test_the_first_sign_comes_before_the_result_and_goes(models: Models, line: str, sign: str, result: str) -> None:
    files = {"RING": models.ring, "DRAFT": models.ring_draft}
    arguments = [files.get(word, word) for word in line.split()]
    with Terminal(*arguments, columns=200, env={"HF_HUB_OFFLINE": "1"}) as terminal:
        terminal.end()
        assert terminal.raw.startswith(sign.encode()), terminal.raw
        assert result in terminal.text, terminal.text
        assert sign not in terminal.text
        assert "Traceback" not in terminal.text


def test_no_command_is_imported_but_the_one_that_is_asked_for() -> None:
    code = """
import sys
from specdec_cli.app import main
for arguments in (["--version"], ["check", "--help"]):
    sys.argv = ["specdec", *arguments]
    try:
        main()
    except SystemExit:
        pass
    names = ("run", "bench", "check", "pull", "draft")
    print([name for name in names if f"specdec_cli.commands.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[1], lines[-1]) == ("[]", "['check']")
