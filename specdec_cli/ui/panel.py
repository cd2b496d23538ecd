"""The figures under the answer: what drafting brings, and how, in the rows that the window can spare."""

from itertools import chain

from rich.segment import Segment

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.ui import words
from specdec_cli.ui.paint import BOLD, DIM, PLAIN, Line, Palette, fit, line
from specdec_cli.ui.view import Header
from specdec_cli.ui.wrap import wrapped

FULL_SIZE = (56, 14)
"""Columns and rows of a window from which on the full panel is shown."""
TINY_ROWS = 8

_LABEL, _ROOM = 12, 27
"""Columns of a label and of what stands beside it. In a window made narrower, rows that were longer take more than one,
and some terminals then push the first of them out of reach: of the full panel only the headline is longer than this."""
_POSITIONS, _FIRST_POSITIONS = 12, 3
"""Draft positions with a bar, and with a figure."""


def panel(header: Header, stats: RunStats, palette: Palette, columns: int, rows: int) -> list[Line]:
    """The panel for a window of that size: at most eight lines, at most `columns` cells each."""
    if columns < FULL_SIZE[0] or rows < FULL_SIZE[1]:
        lines = _small(header, stats, palette, columns)[: 2 if rows < TINY_ROWS else 3]
    else:
        lines = [_headline(header, stats, palette, columns), *_figures(stats, palette)]
    return [fit(palette.safe(content), columns) for content in lines]


def _headline(header: Header, stats: RunStats, palette: Palette, columns: int) -> Line:
    """The line between answer and figures: what drafting brings, and what is going on."""
    state, style = _state(header, stats), DIM
    if stats.off_reason is not None:
        state, style = words.off(stats.off_reason), palette.off
    dash = palette.rule
    room = columns - len("-  -  -")
    state = palette.crop(state, room)
    glance = palette.crop(_glance(header, stats, palette), room - len(state))
    return line((f"{dash} ", DIM), (glance, BOLD), (f" {dash} ", DIM), (state, style), (f" {dash}", DIM))


def _glance(header: Header, stats: RunStats, palette: Palette) -> str:
    """Speed, acceptance and gain; the models before there are figures."""
    if not stats.passes:
        return _names(header)
    told = [words.speed(stats.tokens_per_second)]
    told += [f"{words.percent(stats.acceptance)} accepted"] if stats.acceptance is not None else []
    told += [words.gain(stats.gain)] if stats.gain is not None else []
    return words.listed(told, utf8=palette.utf8)


def _names(header: Header) -> str:
    if header.draft is not None:
        return f"{header.target.name} + {header.draft.name}"
    return f"{header.target.name} + {header.drafter}" if header.drafting else header.target.name


def _state(header: Header, stats: RunStats) -> str:
    if not stats.passes:
        return f"prompt: {words.count(header.prompt_tokens, 'token')}"
    finish = stats.recent[-1].finish
    return words.count(stats.tokens, "token") if finish is None else words.REASONS[finish]


def _figures(stats: RunStats, palette: Palette) -> list[Line]:
    return [
        [*_label("passes"), *_pictures(stats, palette, _ROOM)],
        [*_label("last pass"), *line(_last_pass(stats))],
        [*_label("per pass"), *line((f"{words.decimal(stats.tokens_per_pass, 2)} tokens", BOLD), _counted(stats))],
        [*_label("accepted"), *_accepted(stats, palette)],
        [*_label("position"), *_positions(stats, palette)],
        [*_label("ms per pass"), *line(_split(stats))],
        [*_label("time"), *line(_times(stats, palette))],
    ]


def _label(text: str) -> Line:
    return line((f" {text:<{_LABEL}}", DIM))


def _pictures(stats: RunStats, palette: Palette, room: int) -> Line:
    """The last passes, newest last, as many as there is room for: each token a sign, each pass a word."""
    shown: list[Line] = []
    for round_ in reversed(stats.recent):
        picture = _picture(round_, palette)
        room -= sum(len(text) for text, _, _ in picture)
        if room < 0:
            break
        shown.append(picture)
    return [*chain(*reversed(shown))]


def _picture(round_: Round, palette: Palette) -> Line:
    """Draft tokens that were accepted, those that were not, and the target's own."""
    accepted, rejected, own = palette.pass_signs
    return line(
        (accepted * round_.n_accepted, palette.draft),
        (rejected * (len(round_.drafted) - round_.n_accepted), DIM),
        own if round_.own is not None else "",
        " ",
    )


def _last_pass(stats: RunStats) -> str:
    if not stats.recent:
        return words.UNKNOWN
    last = stats.recent[-1]
    if not last.drafted:
        return "no draft"
    told = f"{last.n_accepted} of {len(last.drafted)} drafted"
    if last.own is None:
        return told
    return f"{told}, {'bonus' if last.n_accepted == len(last.drafted) else 'corrected'}"


def _counted(stats: RunStats) -> str:
    return f" in {words.count(stats.passes, 'pass', 'passes')}"


def _accepted(stats: RunStats, palette: Palette) -> Line:
    """Along the answer; of each source where several take turns."""
    sources = stats.acceptance_by_source
    if len(sources) < 2:
        return line((palette.sparkline(stats.trend.shares), palette.draft))
    return line(", ".join(f"{source} {words.percent(share)}" for source, share in sources.items()))


def _positions(stats: RunStats, palette: Palette) -> Line:
    """How often the first, second, ... draft token was kept."""
    shares = stats.acceptance_per_position[:_POSITIONS]
    if not shares:
        return line(words.UNKNOWN)
    first = " ".join(f"{100 * share:.0f}" for share in shares[:_FIRST_POSITIONS])
    return line((palette.sparkline(shares), palette.draft), f"  {first}%")


def _split(stats: RunStats) -> str:
    """Mean milliseconds of a round; the prompt's round is not one of them."""
    rounds = stats.passes - 1
    if rounds < 1:
        return words.UNKNOWN
    draft, verify = (words.milliseconds(seconds / rounds) for seconds in (stats.draft_seconds, stats.verify_seconds))
    return f"draft {draft}, verify {verify}"


def _times(stats: RunStats, palette: Palette) -> str:
    gain = stats.gain
    if gain is None:
        return words.seconds(stats.decode_seconds) if stats.decode_seconds else words.UNKNOWN
    return f"{words.times(gain.seconds, gain.plain_seconds)} ({words.spread(gain, utf8=palette.utf8)})"


def _small(header: Header, stats: RunStats, palette: Palette, columns: int) -> list[Line]:
    """For small windows: the most telling figures first. Being off displaces the picture, not them."""
    glance = _state(header, stats)
    if stats.passes:
        told = [words.speed(stats.tokens_per_second)]
        told += [words.gain(stats.gain)] if stats.gain is not None else []
        told += [f"{words.percent(stats.acceptance)} accepted"] if stats.acceptance is not None else []
        glance = words.listed(told, utf8=palette.utf8)
    figures = line((glance, BOLD))
    split = line(f"ms: {_split(stats)}")
    if stats.off_reason is not None:
        return [figures, *wrapped(words.off(stats.off_reason), palette.off, columns)[:2], split]
    return [figures, _pictures(stats, palette, columns) or [Segment("", PLAIN)], split]
