"""`--speed`: what a pair would do on this machine, in each format that its target is offered in."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_cli.commands.options import find, quantize, say, waiting
from specdec_cli.errors import HubError, ModelError, NotHere, SpecdecError

if TYPE_CHECKING:
    from specdec_cli.forecast.costs import Costs
    from specdec_cli.forecast.speed import Forecast
    from specdec_cli.hub.pull import Located
    from specdec_cli.models.gguf import GgufHeader
    from specdec_cli.models.memory import ModelFacts
    from specdec_cli.planning.placement import Fit, Machine
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.schema import Preset

SECONDS = 50.0
"""For all that is measured in one command; what begins before ends later."""

PlaceLayers = Callable[["Sequence[GgufHeader]"], "Fit"]
"""Where the layers of a target of these headers go, beside the draft."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A target in one format; its headers are read when they are needed."""

    quant: str
    file: str
    n_bytes: int
    headers: "Callable[[], Sequence[GgufHeader]]"


@dataclass(frozen=True, slots=True)
class Row:
    """What was forecast of an offer with the draft, one for each chance of acceptance."""

    offer: Offer
    draft_file: str | None
    forecasts: "Sequence[Forecast]"


def chances_of(preset: "Preset | None") -> tuple[float, ...]:
    """How likely a draft token is accepted, given all before it: as reported of the preset, or the usual ones.

    A report tells accepted of drafted tokens. Where drafts always had k tokens, the chance of each is higher.
    """
    from specdec_cli.forecast.speed import USUAL_ACCEPTANCE, chance_of_each

    reports = preset.reports if preset is not None else ()
    found = set()
    for report in reports:
        if report.acceptance is not None:
            is_plain = report.k and not (preset and preset.p_min)
            found.add(round(chance_of_each(report.acceptance, report.k or 1) if is_plain else report.acceptance, 3))
    return tuple(sorted(found)) or USUAL_ACCEPTANCE


def placing(
    request: "PairRequest", draft: "ModelFacts | None", machine: "Machine", asked: tuple[str, str] = ("auto", "auto")
) -> PlaceLayers:
    """Places layers as a run with this request would."""
    from specdec_cli.models.facts import model_facts
    from specdec_cli.planning.placement import place
    from specdec_cli.planning.plan import size_up

    def fit(headers: "Sequence[GgufHeader]") -> "Fit":
        return place(*size_up(request, model_facts(headers), draft, lambda _: None), machine, *asked)

    return fit


def speed_here(preset: "Preset", machine: "Machine", costs: "Costs") -> "Forecast | None":
    """Of a preset whose files are on this machine, at the middle of its chances; None if it cannot be measured now."""
    from specdec_cli.forecast.costs import OutOfTime
    from specdec_cli.forecast.speed import forecasts
    from specdec_cli.models.facts import model_facts
    from specdec_cli.models.gguf import read_model
    from specdec_cli.models.heads import read_head
    from specdec_cli.planning.request import Drafting, PairRequest
    from specdec_cli.presets.resolve import resolve
    from specdec_cli.settings import LONGEST_AUTO

    try:
        files = resolve(preset.name, preset, None, quantize, find, lambda _: None)
        headers = read_model(files.target)
        draft = read_model(files.draft) if files.draft is not None else None
        if draft is not None and read_head(draft, headers, str(files.draft), files.draft) is not None:
            draft = None
        request = PairRequest(files.target, Drafting("model", LONGEST_AUTO, auto=True))
        fit = placing(request, model_facts(draft) if draft is not None else None, machine)(headers)
        draft_passes = costs.passes(draft, fit.draft_layers) if draft is not None else None
        found = forecasts(costs.passes(headers, fit.layers), draft_passes, chances_of(preset))
    except (OutOfTime, SpecdecError):
        return None
    return found[len(found) // 2]


def offers_of(target: "Located") -> list[Offer]:
    """The target as it is, and in the other formats of its repository, as far as the Hub can be asked."""
    from specdec_cli.hub.choose_file import quant_of
    from specdec_cli.hub.client import open_hub
    from specdec_cli.hub.offered import headers_of, offered

    examined = target.examined
    formats = examined.facts.format_bytes
    main = max(formats, key=lambda name: formats[name]) if formats else "?"
    name = examined.name
    own = Offer(quant_of(name) or main, name, examined.facts.weights_bytes, lambda: examined.headers)
    chosen = target.hub
    if chosen is None:
        return [own]
    hub = open_hub()
    try:
        others = [model for model in offered(hub, chosen) if model.path != chosen.file]
    except (HubError, NotHere) as error:
        say(f"{error} Only {own.file} is looked at.")
        return [own]
    return [
        own,
        *(Offer(_quant(m.path), Path(m.path).name, m.size, partial(headers_of, hub, chosen, m)) for m in others),
    ]


def _quant(path: str) -> str:
    from specdec_cli.hub.choose_file import quant_of

    return quant_of(path) or "?"


def forecast_rows(
    offers: Sequence[Offer],
    draft: "Located | None",
    place: PlaceLayers,
    costs: "Costs",
    chances: Sequence[float],
    free_bytes: int | None,
) -> list[Row]:
    """Rows in the order of the offers. What cannot be measured is told on stderr, and left out."""
    rows, late, too_large = [], [], []
    with waiting() as line:
        for i, offer in enumerate(offers):
            if free_bytes is not None and offer.n_bytes > free_bytes:
                too_large.append(offer.quant)
                continue
            line.show(f"Measuring {offer.quant} ({i + 1} of {len(offers)}) ...")
            row = _row(offer, draft, place, costs, chances, line.say)
            if row is None:
                late.append(offer.quant)
            elif row.forecasts:
                rows.append(row)
    if too_large:
        say(f"Too large for this machine: {', '.join(too_large)}.")
    if late:
        say(f"Not measured for want of time: {', '.join(late)}. The same command goes on with them.")
    return rows


def _row(
    offer: Offer,
    draft: "Located | None",
    place: PlaceLayers,
    costs: "Costs",
    chances: Sequence[float],
    tell: Callable[[str], None],
) -> Row | None:
    """None if there was no time; without forecasts where none can be made."""
    from specdec_cli.forecast.costs import OutOfTime
    from specdec_cli.forecast.speed import forecasts

    name = draft.examined.name if draft is not None else None
    try:
        headers = offer.headers()
        fit = place(headers)
        draft_passes = costs.passes(draft.examined.headers, fit.draft_layers) if draft is not None else None
        target_passes = costs.passes(headers, fit.layers)
    except OutOfTime:
        return None
    except (ModelError, HubError) as error:
        tell(f"{offer.file}: {error}")
        return Row(offer, name, ())
    return Row(offer, name, forecasts(target_passes, draft_passes, chances))


def documents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """As `--json` has them."""
    return [
        {
            "quant": row.offer.quant,
            "target_file": row.offer.file,
            "draft_file": row.draft_file,
            "plain_tokens_per_second": round(one.plain, 3),
            "k": one.k,
            "tokens_per_second": round(one.tokens_per_second, 3),
            "speedup": round(one.speedup, 4),
            "acceptance": one.acceptance,
        }
        for row in rows
        for one in row.forecasts
    ]


def write_speed(rows: Sequence[Row]) -> None:
    """A table on stdout."""
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    print("\nTokens/s on this machine, forecast from passes of made-up weights of these shapes and formats:\n")
    if not rows:
        print("Nothing could be measured.")
        return
    chances = [one.acceptance for one in rows[0].forecasts if one.acceptance is not None]
    headers = ("FORMAT", "SIZE", "PLAIN", *(f"{chance:g} ACCEPTED" for chance in chances))
    write_table(headers, list(_cells(rows)), Terminal(sys.stdout, os.environ), right="SIZE PLAIN")
    if chances:
        draft = rows[0].draft_file
        print(f"\nACCEPTED is the share of the tokens of {draft} that the target accepts, given all before them.")


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    from specdec_cli.ui import words

    for row in rows:
        drafted = [one for one in row.forecasts if one.acceptance is not None]
        cells = [
            f"{one.tokens_per_second:.1f} ({one.speedup:.2f}x, k {one.k})" if one.k else "drafts do not pay"
            for one in drafted
        ]
        yield row.offer.quant, words.download(row.offer.n_bytes), f"{row.forecasts[0].plain:.1f}", *cells
