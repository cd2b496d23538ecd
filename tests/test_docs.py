"""The documentation names tests and programs that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in (file.stem, *re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    }
    named = set(re.findall(r"`(test_\w+)", text))
    assert named - defined == set()
    assert [path for path in re.findall(r"`(tests/[\w/]+\.py)", text) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_every_program_that_is_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"scripts/(\w+/\w+\.py)|python -m scripts\.(\w+\.\w+)", text)
    files = [ROOT / "scripts" / (path or f"{module.replace('.', '/')}.py") for path, module in named]
    assert [file for file in files if file.stem != "NAME" and not file.is_file()] == []
