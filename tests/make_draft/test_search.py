"""Where the work on a draft lies: found again by whoever asks for the same figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.bench.prompt_set import BenchPrompt
from specdec_cli.make_draft.search import work_folder
from specdec_cli.planning.request import PairRequest, Placement

PROMPTS = [BenchPrompt("code", ("hi",))]


@pytest.fixture
def request_(tmp_path: Path) -> PairRequest:
    target = tmp_path / "t.gguf"
    target.write_bytes(b"GGUF")
    return PairRequest(target)


@pytest.mark.parametrize(
    ("placement", "same"),
    [
        ({"trust": True, "mlock": True, "require_gpu": True}, True),
        ({"threads": 1}, False),
        ({"cache_type_draft": "q8_0"}, False),
    ],
)
def test_only_what_moves_figures_has_a_folder_of_its_own(
    request_: PairRequest, placement: dict[str, Any], same: bool
) -> None:
    other = replace(request_, placement=Placement(**placement))
    assert (work_folder(other, "make", 8, PROMPTS) == work_folder(request_, "make", 8, PROMPTS)) == same
