"""What passes of a model cost here: measured on a few of its layers, scaled to all of them, and remembered."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import OutOfMemory
from specdec_cli.forecast.layers import Cut, Layers, cut, layers_of
from specdec_cli.forecast.made_up import MadeUp, made_up
from specdec_cli.forecast.passes import WIDTHS, Seconds, Way, time_passes
from specdec_cli.lengths.speedup_model import LEAST_PASS_SECONDS, MOST_SECONDS
from specdec_cli.llama import amx
from specdec_cli.llama.devices import gpu_devices
from specdec_cli.llama.versions import versions
from specdec_cli.models.gguf import GgufHeader
from specdec_cli.paths import cache_folder, write_whole
from specdec_cli.planning.machine import available_memory, processor, usable_cores
from specdec_cli.untrusted_files import read_json

MeasurePasses = Callable[[Sequence[MadeUp], Way, float], Sequence[Seconds]]
"""`time_passes`, or what a test has in its place."""

MEASURE_SECONDS = 4.0
"""Of passes of one model; loading comes on top."""
_LARGEST_FILE = 1 << 16
_COPIES = 2
"""In memory of what is tried: kernels may keep weights in another order, beside the file."""
_METHOD = 1
"""Counts up whenever figures of before mean something else."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of passes by width: of all layers together, and of everything else, the output matrix most of all."""

    layers: Seconds
    rest: Seconds


class OutOfTime(Exception):
    """Something would have to be measured, and there is no time left for it."""


class Costs:
    """Measures what is not remembered yet, as long as there are `seconds` left; `again` forgets first.

    `measure`, `memory` and `clock` are arguments for tests.
    """

    def __init__(
        self,
        threads: int,
        *,
        seconds: float,
        again: bool = False,
        measure: MeasurePasses | None = None,
        memory: Callable[[], int | None] = available_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._again, self._memory, self._clock = threads, again, memory, clock
        self._measure = measure or time_passes
        self._deadline = clock() + seconds

    def passes(self, headers: Sequence[GgufHeader], n_gpu: int) -> Seconds:
        """Seconds of a pass by width, with `n_gpu` layers on the GPUs as llama.cpp counts them: the output layer first.

        Raises what `time_passes` does, OutOfMemory, and OutOfTime.
        """
        model = layers_of(headers)
        n_layers = len(model.layers)
        on_gpu = max(min(n_gpu - 1, n_layers), 0)
        is_split = 0 < on_gpu < n_layers or (n_gpu > 0 and on_gpu == 0)
        shares = [(Way(self._threads, on_gpu=gpu), n) for gpu, n in ((True, on_gpu), (False, n_layers - on_gpu))]
        total = dict.fromkeys(WIDTHS, 0.0)
        for way, n in shares:
            has_rest = way.on_gpu == (n_gpu > 0)
            if not n and not has_rest:
                continue
            parts = self._parts(headers[0], model, way, whole=not is_split)
            for width in WIDTHS:
                total[width] += parts.layers[width] * n / n_layers + (parts.rest[width] if has_rest else 0.0)
        return total

    def _parts(self, header: GgufHeader, model: Layers, way: Way, *, whole: bool) -> Parts:
        chosen = cut(model, room=(self._memory() or 0) // _COPIES // 2, whole=whole)
        models = [made_up(header, model.outer, layers) for layers in (chosen.many, chosen.few) if layers]
        seconds: Sequence[Seconds] | None = None if self._again else _remembered(_file(models, way), len(models))
        if seconds is None:
            if self._clock() >= self._deadline:
                raise OutOfTime
            self._check_room(models)
            seconds = self._measure(models, way, MEASURE_SECONDS)
            with suppress(OSError):  # a folder that cannot be written costs the next run the same time
                document = [{str(width): one[width] for width in WIDTHS} for one in seconds]
                write_whole(_file(models, way), json.dumps({"passes": document}) + "\n", private=True)
        return _scaled(chosen, seconds)

    def _check_room(self, models: Sequence[MadeUp]) -> None:
        needed, free = _COPIES * sum(model.n_bytes for model in models), self._memory()
        if free is not None and needed > free:
            raise OutOfMemory(
                f"Measuring needs {needed / 1e9:.1f} GB of memory; {free / 1e9:.1f} GB are free.",
                hint="Close other programs.",
            )


def _scaled(chosen: Cut, seconds: Sequence[Seconds]) -> Parts:
    many = seconds[0]
    if len(seconds) == 1:
        return Parts(many, dict.fromkeys(WIDTHS, 0.0))
    # A disturbed pass must not make layers that cost nothing, or a rest that costs less.
    each = {w: max(many[w] - seconds[1][w], LEAST_PASS_SECONDS) for w in WIDTHS}
    share = len(chosen.few) / max(len(chosen.many) - len(chosen.few), 1)
    rest = {w: max(seconds[1][w] - share * each[w], 0.0) for w in WIDTHS}
    return Parts({w: many[w] + chosen.scale * each[w] - rest[w] for w in WIDTHS}, rest)


def _file(models: Sequence[MadeUp], way: Way) -> Path:
    """Where it is kept what these cost: by all that a pass depends on."""
    shapes = [
        [dict(model.metadata), [[name, *asdict(matrix).values()] for name, matrix in model.tensors.items()]]
        for model in models
    ]
    machine = [processor(), usable_cores(), [device.name for device in gpu_devices()] if way.on_gpu else []]
    depends = json.dumps([_METHOD, shapes, asdict(way), machine, versions(), amx.crashes()], sort_keys=True)
    return cache_folder() / "speed" / f"{hashlib.sha256(depends.encode()).hexdigest()[:20]}.json"


def _remembered(file: Path, n_models: int) -> list[Seconds] | None:
    """None if nothing is kept, or what is kept is damaged."""
    try:
        found = [_seconds(one) for one in read_json(file, _LARGEST_FILE)["passes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if len(found) == n_models else None


def _seconds(data: Mapping[str, Any]) -> Seconds:
    """Raises ValueError, KeyError and TypeError for what no passes can take."""
    found = {width: data[str(width)] for width in WIDTHS}
    for value in found.values():
        if not isinstance(value, (int, float)) or not LEAST_PASS_SECONDS <= value <= MOST_SECONDS:
            raise ValueError(value)
    return {width: float(value) for width, value in found.items()}
