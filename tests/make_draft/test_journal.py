"""What was measured of candidates comes back as it was; what nothing can have measured is not believed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.make_draft.candidates import Figures, Journal, Text

FIGURES = Figures(5, 0.5, ((0.5,), (0.5, 0.4)), 0.1, (1.0, 1.5, 2.0))


def journal() -> Journal:
    return Journal([Text("qa", (1, 2), (3,))], [[math.nan, math.nan], [math.nan, 0.25]], {"a": FIGURES})


def test_a_journal_comes_back_as_it_was(tmp_path: Path) -> None:
    journal().write(tmp_path)
    found = Journal.read(tmp_path)
    assert (found.texts, found.candidates) == (journal().texts, {"a": FIGURES})
    assert found.angles is not None
    assert math.isnan(found.angles[0][0])
    assert found.angles[1][1] == 0.25
    json.loads((tmp_path / "journal.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    "change",
    [
        {"n_bytes": 0},
        {"agreement": 2},
        {"draft_seconds": 1e30},
        {"target_seconds": [1e-30, 1.0, 1.0]},
        {"target_seconds": [1.0]},
        {"chances": [[0.5], [0.5]]},
        {"chances": [[1.5], [0.5, 0.5]]},
        {"chances": "ab"},
        {"agreement": None},
    ],
)
def test_figures_of_another_hand_are_measured_again(tmp_path: Path, change: dict[str, Any]) -> None:
    journal().write(tmp_path)
    file = tmp_path / "journal.json"
    data = json.loads(file.read_text())
    data["candidates"]["a"] |= change
    file.write_text(json.dumps(data))
    assert Journal.read(tmp_path).candidates == {}
