"""Where drafts are made: candidates and what was measured of them, in a folder that outlives an interruption.

A file appears under its name only when it is whole and llama.cpp can open it. Of the candidates only the best so far
is kept; the figures of all are in a journal, so that nothing is made or measured twice.
"""

import glob
import json
import math
import os
import secrets
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.errors import DiskFull, ModelError, UsageError
from specdec_cli.lengths.speedup_model import (
    LEAST_PASS_SECONDS,
    MOST_SECONDS,
    CostCurve,
    expected_tokens,
    predicted_speedup,
)
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.quantize import Changes, change_apart
from specdec_cli.make_draft.layer_choice import Angles
from specdec_cli.make_draft.recipes import Recipe
from specdec_cli.models.gguf import TensorInfo
from specdec_cli.paths import write_whole
from specdec_cli.untrusted_files import read_json

SPARE_BYTES = 64 << 20
"""Left free on the disk."""
_JOURNAL = "journal.json"
_LARGEST_JOURNAL = 64 << 20


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of a candidate: seconds of a draft token and of target passes of 1, 2, ... tokens side by
    side, the share of tokens it would have drafted right, and for drafts of 1, 2, ... tokens the chances by position.
    """

    n_bytes: int
    agreement: float
    chances: tuple[tuple[float, ...], ...]
    draft_seconds: float
    target_seconds: tuple[float, ...]

    @property
    def cost(self) -> float:
        """A draft token's time as a share of a target pass of one token."""
        return self.draft_seconds / self.target_seconds[0]

    def acceptance(self, k: int) -> float:
        """Accepted / drafted tokens, to be expected of drafts of `k`."""
        return (expected_tokens(self.chances[k - 1], k) - 1) / k


@dataclass(frozen=True, slots=True)
class Worth:
    """The best draft length of a candidate, and the speed over plain decoding to be expected with it."""

    k: int
    speed: float


Judge = Callable[[Figures, Sequence[float]], Worth]
"""From figures, and what target passes of 1, 2, ... tokens cost as multiples of the first, to what they are worth."""


def expected(found: Figures, shape: Sequence[float]) -> Worth:
    """What costs and chances say about drafting for the target."""
    curve = CostCurve(0, dict(enumerate(shape, 1)), found.cost)
    speeds = {k: predicted_speedup(curve, found.chances[k - 1], k) for k in range(1, len(shape))}
    k = max(speeds, key=lambda k: speeds[k])
    return Worth(k, speeds[k])


def beside_itself(found: Figures, _shape: Sequence[float]) -> Worth:
    """For a trimmed draft that was measured against the draft it was made from, which nobody has given a target.

    Worth is then agreement / cost: trimming pays while less of the choices changes than of the time is saved.
    """
    return Worth(0, found.agreement / found.cost)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the model's own answer to it, as ids."""

    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass
class Journal:
    """What is done: `candidates` has figures by the recipe's key. What could not be made may be another time."""

    texts: list[Text] = field(default_factory=list)
    angles: Angles | None = None
    candidates: dict[str, Figures] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        data = {
            "texts": [asdict(text) for text in self.texts],
            "angles": _with(self.angles, lambda angle: None if math.isnan(angle) else angle),  # NaN is no JSON
            "candidates": {key: asdict(figures) for key, figures in self.candidates.items()},
        }
        write_whole(folder / _JOURNAL, json.dumps(data))

    @classmethod
    def read(cls, folder: Path) -> "Journal":
        """What is in the folder; an empty one where there is none, or none that can be read."""
        try:
            data = read_json(folder / _JOURNAL, _LARGEST_JOURNAL)
            texts = [Text(str(t["kind"]), _ids(t["prompt"]), _ids(t["answer"])) for t in data["texts"]]
            found = {key: _figures(figures) for key, figures in data["candidates"].items()}
            angles = _with(data["angles"], lambda angle: math.nan if angle is None else float(angle))
            return cls(texts, angles, found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


def _with(angles: Any, changed: Callable[[Any], Any]) -> Any:
    return None if angles is None else [[changed(angle) for angle in row] for row in angles]


def _ids(data: Any) -> tuple[int, ...]:
    """Raises ValueError for what is no list of tokens."""
    if not isinstance(data, list) or not all(type(i) is int and 0 <= i < 2**31 for i in data):
        raise ValueError(data)
    return tuple(data)


def _figures(data: Mapping[str, Any]) -> Figures:
    """Raises ValueError for what nothing can have measured, also KeyError and TypeError for other data."""
    chances = tuple(tuple(map(float, row)) for row in data["chances"])
    seconds = tuple(map(float, data["target_seconds"]))
    found = Figures(int(data["n_bytes"]), float(data["agreement"]), chances, float(data["draft_seconds"]), seconds)
    is_right = (
        found.n_bytes > 0
        and all(0 <= chance <= 1 for row in (*chances, (found.agreement,)) for chance in row)
        and all(LEAST_PASS_SECONDS <= one <= MOST_SECONDS for one in seconds)
        and 0 <= found.draft_seconds <= MOST_SECONDS
        and len(chances) == len(seconds) - 1 >= 1
        and all(len(row) == k for k, row in enumerate(chances, 1))
    )
    if not is_right:
        raise ValueError(data)
    return found


class Workshop:
    """Candidates of the model `source`, whose parts hold `tensors`, in a folder of their own.

    `measure` gives the figures of a candidate's file, `judge` what they are worth. What is half made when `abort` is
    set is deleted.
    """

    def __init__(
        self,
        source: Path,
        tensors: Sequence[TensorInfo],
        folder: Path,
        measure: Callable[[Path], Figures],
        judge: Judge,
        *,
        threads: int,
        abort: AbortFlag,
    ) -> None:
        self.tensors = tensors
        self.folder = folder
        self.journal = Journal.read(folder)
        self._tried: dict[Recipe, Figures] = {}
        self.source = source
        self._measure = measure
        self._judge = judge
        self._threads = threads
        self._abort = abort
        for half in folder.glob(".*.half*"):  # of a process that was killed
            half.unlink(missing_ok=True)

    @property
    def n_bytes(self) -> int:
        """Of the source's weights."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    def save(self) -> None:
        """Write the journal. Raises UsageError where that cannot be."""
        try:
            self.journal.write(self.folder)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def try_out(self, recipe: Recipe) -> Figures | str:
        """The recipe's figures, or why it has none. What is in the journal is not made again. Raises SpecdecError."""
        found = self.journal.candidates.get(recipe.key)
        if found is None:
            try:
                path = self.make(recipe)
            except ModelError as error:
                return str(error)
            found = self.journal.candidates[recipe.key] = self._measure(path)
            self.save()
        self._tried[recipe] = found
        best = self.best
        for path in self.folder.glob("*.gguf"):
            if best is None or path != self.place(best):
                path.unlink()
        return found

    @property
    def best(self) -> Recipe | None:
        """Of those tried, the one that is worth most."""
        return max(self._tried, key=lambda recipe: self.worth(recipe).speed, default=None)

    def worth(self, recipe: Recipe) -> Worth:
        """Of a recipe that was tried.

        What wide passes of the target cost beside narrow ones does not depend on the candidate, so the measurements
        beside all of them are put together: single ones differ by more than candidates do.
        """
        rows = [found.target_seconds for found in self.journal.candidates.values()]
        shape = [statistics.median(row[i] / row[0] for row in rows) for i in range(len(rows[0]))]
        return self._judge(self._tried[recipe], shape)

    def figures(self, recipe: Recipe) -> Figures:
        """Of a recipe that was tried."""
        return self._tried[recipe]

    def place(self, recipe: Recipe) -> Path:
        """Where the candidate lies while it is the best; the source itself is a candidate too."""
        return self.source if recipe == Recipe() else self.folder / f"{recipe.key}.gguf"

    def make(self, recipe: Recipe) -> Path:
        """The candidate's file, made now if it is not there. Raises ModelError, DiskFull, Interrupted."""
        path = self.place(recipe)
        if not path.exists():
            changes = recipe.changes(self.tensors)
            write_changed(self.source, path, changes, threads=self._threads, abort=self._abort)
        return path

    def clear(self) -> None:
        """Delete the folder: nothing is in it that this program did not make."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_changed(source: Path, path: Path, changes: Changes, *, threads: int, abort: AbortFlag) -> None:
    """A changed copy of `source` under `path`, where it appears only when it is whole and llama.cpp can open it.

    Raises ModelError, DiskFull, UsageError, Interrupted.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(8)}.half")  # nobody can put a link there before
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        change_apart(source, half, changes, threads=threads, abort=abort)
        _rename_new(half, path)
    except ModelError as error:
        if shutil.disk_usage(path.parent).free < SPARE_BYTES:
            raise DiskFull(f"The disk of {path.parent} is full.", hint="Free some space.") from error
        raise
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    finally:
        with suppress(OSError):
            for left in half.parent.glob(f"{glob.escape(half.name)}*"):
                left.unlink(missing_ok=True)


def _rename_new(half: Path, path: Path) -> None:
    """Nothing that has appeared under the name meanwhile is replaced. Raises UsageError, OSError."""
    try:
        os.link(half, path)  # which, unlike a rename, fails where something is
    except OSError as error:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} already exists.", hint="Give another file with --out, or delete this one."
            ) from error
        os.rename(half, path)  # a file system without hard links


def check_room(needed: Sequence[tuple[Path, int]]) -> None:
    """Raises DiskFull if the disk of one of the folders has no room for so many bytes more."""
    by_disk: dict[int, tuple[Path, int]] = {}
    for folder, n_bytes in needed:
        there = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
        disk = there.stat().st_dev
        by_disk[disk] = there, by_disk.get(disk, (there, 0))[1] + n_bytes
    for there, n_bytes in by_disk.values():
        free = shutil.disk_usage(there).free
        if n_bytes + SPARE_BYTES > free:
            raise DiskFull(
                f"Making a draft needs {n_bytes / 1e9:.2f} GB, but the disk of {there} has {free / 1e9:.2f} GB free.",
                hint="Free some space, or put SPECDEC_CACHE (work files) and --out on another disk.",
            )


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Cannot write to {folder}: {error.strerror}.",
        hint="Give another --out, or set SPECDEC_CACHE to a writable folder.",
    )
