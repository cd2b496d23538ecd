"""A recorded run becomes a picture."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.ui_fakes import HEADER, a_round

ROOT = Path(__file__).parent.parent.parent


def test_a_trace_becomes_an_svg(tmp_path: Path) -> None:
    spans = [[" drafted", "draft"], [" own<b>", "target"]]
    events = [
        {"type": "header", "header": asdict(HEADER)},
        {"type": "round", **asdict(a_round(0, drafted=0)), "spans": []},
        {"type": "round", **asdict(a_round(1)), "spans": spans},
        {"type": "end", "spans": []},
    ]
    trace, svg = tmp_path / "trace.jsonl", tmp_path / "run.svg"
    trace.write_text("".join(json.dumps(event) + "\n" for event in events))

    subprocess.run(
        [sys.executable, "-m", "scripts.checks.screenshot", str(trace), str(svg)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )

    picture = svg.read_text(encoding="utf-8").replace("&#160;", " ")
    assert picture.startswith("<svg")
    for words in ("drafted", "own&lt;b&gt;", "big-Q4_K_M + small-Q8_0", "33% accepted", "layers on GPU: 29/29 target"):
        assert words in picture
