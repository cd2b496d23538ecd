"""Every script can be imported and says how it is used: what it imports of the package is still there."""

import importlib
import sys
from pathlib import Path

import pytest

from scripts.checks.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("scripts/*/*.py"))
    if not path.name.startswith("peer_")  # these run in environments of their own, without the package
]


def needs_torch(error: ModuleNotFoundError) -> bool:
    """Whether it is what only training needs, and the tests do without."""
    return error.name in ("torch", "safetensors")


def test_every_planted_bug_has_its_place() -> None:
    for one in MUTATIONS:
        code = (ROOT / "specdec_cli" / f"{one.file}.py").read_text(encoding="utf-8")
        assert code.count(one.old) == 1, one.name


def test_every_script_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = []
    for name in SCRIPTS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if needs_torch(error):
                continue
            raise
        if hasattr(module, "main"):
            monkeypatch.setattr(sys, "argv", [name, "--help"])
            with pytest.raises(SystemExit) as end:
                module.main()
            assert not end.value.code, name
            assert "usage: " in capsys.readouterr().out, name
            started.append(name)
    assert len(started) > 12
