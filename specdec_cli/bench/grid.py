"""Which settings a benchmark measures: every combination that makes sense for a pair."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.bench.measure import Setting
from specdec_cli.drafters import DRAFTERS, NAMED, with_lookup
from specdec_cli.presets.resolve import Resolved
from specdec_cli.settings import AUTO, Length

USUAL_LENGTHS = (1, 2, 4, 8)
TUNED_P_MINS = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user asks to be measured; what is empty is chosen. With `tune`, for the fastest setting of one task."""

    drafters: Sequence[str] = ()
    lengths: Sequence[Length] = ()
    temperatures: Sequence[float] = ()
    p_mins: Sequence[float] = ()
    tune: bool = False


def settings_for(files: Resolved, wanted: Wanted, temperature: float) -> list[Setting]:
    """Every combination; `temperature` is the one that runs would have.

    A drafter without a draft model has no use for --p-min, and is, unless asked for, measured only with the longest
    drafts, which cost it nothing. Where lengths are chosen, n-gram lookup runs before a draft model, as in `run`.
    """
    preset_k = files.preset.k if files.preset is not None else None
    ks = wanted.lengths or [*sorted({*USUAL_LENGTHS, preset_k or USUAL_LENGTHS[0]}), AUTO]
    names = wanted.drafters or [*([files.drafter] if files.drafter != "none" else []), "ngram"]
    p_mins = wanted.p_mins or _usual_p_mins(files, tune=wanted.tune)
    found: list[Setting] = []
    for at in wanted.temperatures or sorted({temperature} | (set() if wanted.tune else {0.0})):
        for name in names:
            if name == "none":
                found.append(Setting(name, 0, at))
            elif name in NAMED:
                found += [Setting(name, k, at) for k in (ks if wanted.drafters else _longest(ks))]
            else:
                # What decides on lengths by itself needs no second threshold.
                own_p_mins = p_mins if name in DRAFTERS and DRAFTERS[name].heeds_p_min else [0.0]
                found += [Setting(name, k, at, p) for p in own_p_mins for k in ks if k != AUTO]
                if AUTO in ks:
                    found.append(Setting(name if wanted.drafters else with_lookup(name), AUTO, at, own_p_mins[0]))
    return list(dict.fromkeys(found))


def _usual_p_mins(files: Resolved, *, tune: bool) -> list[float]:
    own = files.preset.p_min or 0.0 if files.preset is not None else 0.0
    return sorted({own, *TUNED_P_MINS}) if tune else [own]


def _longest(ks: Sequence[Length]) -> list[Length]:
    numbers = [k for k in ks if isinstance(k, int)]
    return [*([max(numbers)] if numbers else []), *(k for k in ks if k == AUTO)]
