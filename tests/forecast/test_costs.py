"""What passes cost: scaled from few layers, remembered, and never asked for when there is no time or no memory."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec_cli.errors import OutOfMemory
from specdec_cli.forecast.costs import Costs, OutOfTime
from specdec_cli.forecast.made_up import MadeUp
from specdec_cli.forecast.passes import WIDTHS, Seconds, Way
from specdec_cli.models.gguf import GgufHeader, TensorInfo
from specdec_cli.paths import cache_folder

N_LAYERS = 40
REST, LAYER = 0.010, 0.002
FASTER = 4


def header(n_layers: int = N_LAYERS, kind: str = "Q8_0", n_bytes: int = 10**8) -> GgufHeader:
    """Of a model too large to be tried as a whole, unless it has few layers."""
    layers = [TensorInfo(f"blk.{i}.ffn_up.weight", (64, 64), kind, 0, n_bytes) for i in range(n_layers)]
    outer = [TensorInfo(name, (64, 320), kind, 0, 10**8) for name in ("token_embd.weight", "output.weight")]
    return GgufHeader(3, {"general.architecture": "x", "x.block_count": n_layers}, (*outer, *layers), 0, 0, 0)


class Machine:
    """Takes the same for every layer, and for everything else; a GPU takes less."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, models: Sequence[MadeUp], way: Way, _seconds: float) -> Sequence[Seconds]:
        counts = [sum(name.startswith("blk") for name in model.tensors) for model in models]
        self.asked.append(counts)
        speed = FASTER if way.on_gpu else 1
        return [{w: w * (REST + n * LAYER) / speed for w in WIDTHS} for n in counts]


def costs(machine: Machine, *, seconds: float = 60.0, again: bool = False, threads: int = 2) -> Costs:
    return Costs(
        threads, seconds=seconds, again=again, measure=machine, memory=lambda: 10**11, clock=iter(range(1000)).__next__
    )


def test_few_layers_tell_what_all_of_them_cost() -> None:
    machine = Machine()
    found = costs(machine).passes([header()], 0)
    assert found == pytest.approx({w: w * (REST + N_LAYERS * LAYER) for w in WIDTHS})
    assert machine.asked == [[10, 1]]


def test_a_small_model_is_measured_as_it_is() -> None:
    machine = Machine()
    assert costs(machine).passes([header(5)], 0)[1] == pytest.approx(REST + 5 * LAYER)
    assert machine.asked == [[5]]


@pytest.mark.parametrize(
    ("n_gpu", "expected"),
    [
        (0, REST + N_LAYERS * LAYER),
        (1, REST / FASTER + N_LAYERS * LAYER),
        (11, REST / FASTER + (10 / FASTER + N_LAYERS - 10) * LAYER),
        (N_LAYERS + 1, (REST + N_LAYERS * LAYER) / FASTER),
    ],
)
def test_layers_cost_what_they_cost_where_they_lie(n_gpu: int, expected: float) -> None:
    """The output layer is the first that moves to a GPU."""
    assert costs(Machine()).passes([header()], n_gpu)[1] == pytest.approx(expected)


def test_what_was_measured_is_remembered_for_this_shape_and_these_threads() -> None:
    machine = Machine()
    first = costs(machine).passes([header()], 0)
    assert costs(machine).passes([header()], 0) == first
    assert len(machine.asked) == 1
    costs(machine).passes([header(kind="Q4_0")], 0)
    costs(machine, threads=1).passes([header()], 0)
    costs(machine, again=True).passes([header()], 0)
    assert len(machine.asked) == 4


def remembered() -> Path:
    (file,) = (cache_folder() / "speed").glob("*.json")
    return file


def test_only_its_owner_can_read_it() -> None:
    costs(Machine()).passes([header()], 0)
    assert remembered().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "[]", '{"passes": [{"1": 0.1}]}', '{"passes": [{"1": -1}, {"1": "x"}]}'])
def test_a_damaged_memory_is_measured_anew(text: str) -> None:
    machine = Machine()
    first = costs(machine).passes([header()], 0)
    remembered().write_text(text)
    assert costs(machine).passes([header()], 0) == first
    assert len(machine.asked) == 2


def test_noise_makes_no_layer_free() -> None:
    def noisy(_models: Sequence[MadeUp], _way: Way, _seconds: float) -> Sequence[Seconds]:
        return [dict.fromkeys(WIDTHS, 0.010), dict.fromkeys(WIDTHS, 0.012)]

    found = Costs(2, seconds=60, measure=noisy, memory=lambda: None).passes([header()], 0)
    assert all(0.010 <= seconds < 0.011 for seconds in found.values())


def test_what_is_remembered_needs_no_time() -> None:
    costs(Machine()).passes([header()], 0)
    late = costs(Machine(), seconds=0.5)
    late.passes([header()], 0)
    with pytest.raises(OutOfTime):
        late.passes([header(kind="Q4_0")], 0)


def test_nothing_is_measured_that_does_not_fit_into_memory() -> None:
    machine = Machine()
    with pytest.raises(OutOfMemory, match=r"Measuring needs 3\.0 GB of memory; 1\.0 GB are free"):
        Costs(2, seconds=60, measure=machine, memory=lambda: 10**9).passes([header()], 0)
    assert machine.asked == []
