"""What is known of a pair on this machine: costs of passes, and chances of drafts. Kept from one run to the next."""

import hashlib
import json
from collections.abc import Callable, ItemsView, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_cli.decode.types import Target
from specdec_cli.lengths.acceptance import Chances
from specdec_cli.lengths.calibrate import calibrated
from specdec_cli.lengths.pass_costs import PassCosts
from specdec_cli.lengths.speedup_model import LEAST_PASS_SECONDS, MOST_SECONDS
from specdec_cli.paths import cache_folder, write_whole
from specdec_cli.planning.profile import ProfileKey
from specdec_cli.settings import ContextSettings, ModelSettings
from specdec_cli.untrusted_files import read_json

_WIDEST = 1024
_LARGEST_FILE = 1 << 18
_MOST_SOURCES = 16
_CALIBRATION_SECONDS = 0.25
"""Time that may go into measuring passes before the first answer of a pair."""


class Learned:
    """Costs, and chances by source. Outlives an answer."""

    def __init__(self, costs: PassCosts, chances: Mapping[str, Chances] | None = None) -> None:
        self.costs = costs
        self.chances = dict(chances or {})

    def of(self, source: str) -> Chances:
        if source not in self.chances:
            self.chances[source] = Chances()
        return self.chances[source]


@dataclass(frozen=True, slots=True)
class LearnedKey:
    """What costs and chances depend on: files (`heads` by name and size), devices and build, and how both models are
    opened."""

    pair: ProfileKey
    heads: tuple[str, int] | None
    models: tuple[ModelSettings, ModelSettings | None]
    contexts: tuple[ContextSettings, ContextSettings]

    @property
    def file(self) -> Path:
        """Where it is kept. The longest draft and the context's size change no cost."""
        settings = [asdict(one) for one in (*self.models, *self.contexts) if one is not None]
        for one in settings:
            for name in ("path", "max_rows", "max_back", "n_ctx"):
                one.pop(name, None)
        depends = json.dumps([asdict(self.pair), self.heads, settings], sort_keys=True)
        digest = hashlib.sha256(depends.encode()).hexdigest()[:20]
        return cache_folder() / "learned" / f"{digest}.json"


@contextmanager
def learning(
    key: LearnedKey,
    target: Target,
    draft: Target | None,
    *,
    draft_name: str,
    longest: int,
    clock: Callable[[], float],
) -> Iterator[Learned]:
    """What earlier runs learned, else what a few passes tell; with what is learned meanwhile it is kept afterwards."""
    learned = load_learned(key, longest=longest)
    if learned is None:
        costs = calibrated(target, draft, draft_name, longest=longest, clock=clock, budget=_CALIBRATION_SECONDS)
        learned = Learned(costs)
    try:
        yield learned
    finally:
        with suppress(OSError):  # a folder that cannot be written costs the next run a calibration
            save_learned(key, learned)


def save_learned(key: LearnedKey, learned: Learned) -> None:
    """Raises OSError."""
    costs = learned.costs
    document = {
        "passes": {str(width): seconds for width, seconds in costs.known().items()},
        "back_each": costs.back_each,
        "drafting": {name: [costs.draft_token(name), costs.token_behind(name)] for name in costs.sources},
        "chances": {name: chances.state() for name, chances in learned.chances.items()},
    }
    write_whole(key.file, json.dumps(document) + "\n")


def load_learned(key: LearnedKey, *, longest: int) -> Learned | None:
    """None if nothing is kept, or what is kept is damaged."""
    try:
        data = read_json(key.file, _LARGEST_FILE)
        costs = PassCosts(dict(_pass(*item) for item in data["passes"].items()), longest=longest)
        costs.set_back_each(_seconds(data["back_each"]))
        for name, (draft_token, token_behind) in _sources(data["drafting"]):
            costs.set_drafting(name, _seconds(draft_token), _seconds(token_behind))
        chances = {name: Chances.from_state(state) for name, state in _sources(data["chances"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Learned(costs, chances) if costs.plain else None


def _pass(width: str, value: Any) -> tuple[int, float]:
    """Raises ValueError for what no pass can be."""
    if not (1 <= int(width) <= _WIDEST and _seconds(value) >= LEAST_PASS_SECONDS):
        raise ValueError(width)
    return int(width), float(value)


def _seconds(value: Any) -> float:
    """Raises ValueError for what no time can be."""
    if not isinstance(value, (int, float)) or not 0 <= value <= MOST_SECONDS:
        raise ValueError(value)
    return float(value)


def _sources(data: Mapping[str, Any]) -> ItemsView[str, Any]:
    """By source. Raises ValueError for more of them than there are drafters."""
    if len(data) > _MOST_SOURCES:
        raise ValueError(len(data))
    return data.items()
