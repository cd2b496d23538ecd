"""Where the work on a draft lies: found again by whoever asks for the same figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.bench.prompt_set import BenchPrompt
from specdec_cli.make_draft.candidates import Journal, Worth
from specdec_cli.make_draft.layer_choice import angles
from specdec_cli.make_draft.recipes import Recipe
from specdec_cli.make_draft.search import search, work_folder
from specdec_cli.models.gguf import GgufHeader, TensorInfo
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


class Shop:
    """Candidates whose worth is known before; each takes `seconds`."""

    n_bytes, tensors = 100, (TensorInfo("output.weight", (64, 64), "F16", 0, 50),)

    def __init__(self, speed: float, clock: "Clock") -> None:
        self.journal, self.best = Journal(angles=angles({}, 8)), Recipe("Q8_0")
        self._speed, self._clock = speed, clock

    def try_out(self, _recipe: Recipe) -> str:
        self._clock.now += self._clock.seconds
        return "-"

    def worth(self, _recipe: Recipe) -> Worth:
        return Worth(1, self._speed)


class Clock:
    now = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("speed", "seconds", "n"),
    [
        (0.5, 20.0, 3),  # nothing comes near: the third candidate is the last
        (0.5, 7.0, 5),  # and there is time for more of them where they take less
        (0.95, 20.0, 6),  # what may still pay is looked for to the end
        (0.5, 0.1, 6),
    ],
)
def test_a_search_that_finds_nothing_ends_soon(
    monkeypatch: pytest.MonkeyPatch, speed: float, seconds: float, n: int
) -> None:
    clock = Clock(seconds)
    monkeypatch.setattr("specdec_cli.make_draft.search.time", clock)
    header = GgufHeader(3, {"general.architecture": "x", "x.block_count": 8}, (), 0, 0, 0)
    shop = Shop(speed, clock)
    found = list(search(shop, header, {"Q8_0": 50, "Q4_0": 25}))  # type: ignore[arg-type]
    assert len(found) == n
