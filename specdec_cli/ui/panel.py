"""The figures under the answer: what the run is doing, in the rows that the window can spare."""

from itertools import chain, zip_longest

from specdec_cli.decode.stats import RunStats
from specdec_cli.ui import words
from specdec_cli.ui.paint import BOLD, DIM, Line, Palette, fit, line, pad
from specdec_cli.ui.view import Header, ModelLine
from specdec_cli.ui.wrap import wrapped

FULL_SIZE = (78, 16)
"""Columns and rows of a window from which on the full panel is shown."""
WIDE_COLUMNS = 120
TINY_ROWS = 8

LABEL_WIDTH = 13
FIGURES_WIDTH = 49
POSITIONS_WIDTH = 28
POSITION_ROWS = 5
MOST_POSITION_COLUMNS = 3
GAP = 2

Block = tuple[list[Line], int]
"""Lines, and the columns that they may take."""


def panel(header: Header, stats: RunStats, palette: Palette, columns: int, rows: int) -> list[Line]:
    """The panel for a window of that size: at most ten lines, at most `columns` cells each."""
    if columns < FULL_SIZE[0] or rows < FULL_SIZE[1]:
        lines = _small(header, stats, palette, columns)[: 2 if rows < TINY_ROWS else 3]
    else:
        lines = _full(header, stats, palette, columns)
    return [fit(palette.safe(content), columns) for content in lines]


def _full(header: Header, stats: RunStats, palette: Palette, columns: int) -> list[Line]:
    beside = columns - FIGURES_WIDTH
    blocks: list[Block] = [(_figures(stats, palette), FIGURES_WIDTH)]
    below = [_legend(palette)]
    if columns < WIDE_COLUMNS:
        blocks.append((_positions(stats, palette, min(beside, POSITIONS_WIDTH)), beside))
        below = [_memory(header), _placement(header, stats, palette, columns), *below]
    else:
        blocks.append((_positions(stats, palette, POSITIONS_WIDTH), POSITIONS_WIDTH + GAP))
        width = beside - POSITIONS_WIDTH - GAP
        blocks.append((_models(header, stats, palette, width), width))
    return [_rule(header, stats, palette, columns), *_side_by_side(blocks), *below]


def _side_by_side(blocks: list[Block]) -> list[Line]:
    """Lines of all blocks. They end where their text ends: a line that is short does not wrap in a narrower window."""
    *left, (last, _) = blocks
    rows = zip_longest(*(content for content, _ in left), last, fillvalue=line())
    widths = [width for _, width in left]
    return [[*chain(*map(pad, row[:-1], widths)), *row[-1]] for row in rows]


def _rule(header: Header, stats: RunStats, palette: Palette, columns: int) -> Line:
    """The line between answer and figures. Its right end says what is going on."""
    state, style = _state(header, stats), DIM
    if stats.off_reason is not None:
        state, style = words.off(stats.off_reason), palette.off
    dash = palette.rule
    room = columns - len("-  -  -")
    state = palette.crop(state, room)
    names = palette.crop(_names(header), room - len(state))
    gap = dash * (1 + room - len(names) - len(state))
    return line((f"{dash} ", DIM), (names, BOLD), (f" {gap} ", DIM), (state, style), (f" {dash}", DIM))


def _names(header: Header) -> str:
    if header.draft is not None:
        return f"{header.target.name} + {header.draft.name}"
    return f"{header.target.name} + {header.drafter}" if header.drafting else header.target.name


def _state(header: Header, stats: RunStats) -> str:
    if not stats.passes:
        return f"prompt: {words.count(header.prompt_tokens, 'token')}"
    finish = stats.recent[-1].finish
    return words.count(stats.tokens, "token") if finish is None else f"stopped: {words.REASONS[finish]}"


def _figures(stats: RunStats, palette: Palette) -> list[Line]:
    now, mean = stats.tokens_per_second_now, stats.tokens_per_second
    return [
        _row("speed", f"{words.decimal(now, 1)} tokens/s", f"mean {words.decimal(mean, 1)}"),
        _row("first token", words.duration(stats.ttft_seconds), f"k {_longest_draft(stats)}"),
        _acceptance(stats, palette),
        _row(
            "per pass",
            f"{words.decimal(stats.tokens_per_pass, 2)} tokens",
            f"{words.count(stats.passes, 'pass', 'passes')}",
        ),
        line((f" {'recent':<{LABEL_WIDTH}}", DIM), (_recent(stats, palette), palette.draft)),
        line((f" {'ms per round':<{LABEL_WIDTH}}", DIM), _split(stats)),
    ]


def _longest_draft(stats: RunStats) -> int:
    """Lately; where lengths are chosen, what may be drafted is never more than a bound. Before the first: what was
    asked for."""
    return max((len(r.drafted) for r in stats.recent), default=0) or stats.k


def _acceptance(stats: RunStats, palette: Palette) -> Line:
    """Of all drafts, and of each source where several take turns."""
    sources = stats.acceptance_by_source
    if len(sources) < 2:
        return _row("acceptance", words.percent(stats.acceptance), f"{stats.accepted} of {stats.drafted}")
    told = ", ".join(f"{source} {words.percent(share)}" for source, share in sources.items())
    share = f"{words.percent(stats.acceptance)}  "
    room = FIGURES_WIDTH - LABEL_WIDTH - len(share) - GAP
    return line((f" {'acceptance':<{LABEL_WIDTH}}", DIM), (share, BOLD), palette.crop(told, room))


def _row(label: str, value: str, more: str) -> Line:
    return line((f" {label:<{LABEL_WIDTH}}", DIM), (f"{value:<16}", BOLD), more)


def _recent(stats: RunStats, palette: Palette) -> str:
    width = FIGURES_WIDTH - LABEL_WIDTH - 3
    shares = [r.n_accepted / len(r.drafted) if r.drafted else None for r in stats.recent]
    return palette.sparkline(shares[-width:])


def _split(stats: RunStats) -> str:
    """Mean milliseconds of a round; the prompt's round is not one of them."""
    rounds = stats.passes - 1
    if rounds < 1:
        return words.UNKNOWN
    draft, verify, other = (
        words.milliseconds(seconds / rounds)
        for seconds in (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)
    )
    return f"draft {draft}  verify {verify}  other {other}"


def _positions(stats: RunStats, palette: Palette, width: int) -> list[Line]:
    """How often the first, second, ... draft token was kept. More than five stand in narrower columns."""
    all_shares = stats.acceptance_per_position
    shares = all_shares[: MOST_POSITION_COLUMNS * POSITION_ROWS]
    whole = len(shares) == len(all_shares)
    title = line(("accepted by draft position" if whole else f"accepted, positions 1 to {len(shares)}", DIM))
    if not shares:
        return [title, line((words.UNKNOWN, DIM))]
    width //= -(-len(shares) // POSITION_ROWS)
    entries = [pad(_position(i, share, palette, width), width) for i, share in enumerate(shares, 1)]
    return [title, *([*chain(*entries[row::POSITION_ROWS])] for row in range(min(POSITION_ROWS, len(shares))))]


def _position(number: int, share: float, palette: Palette, width: int) -> Line:
    room = width - len("12  100% ")
    if room < len("#"):  # columns must not touch
        return line((f"{number:2d}", DIM), f" {100 * share:3.0f}%")
    bar = f"{palette.bar(share, room):<{room}}" if room > len("####") else palette.sparkline([share])
    return line((f"{number:2d} ", DIM), (bar, palette.draft), f" {100 * share:3.0f}%")


def _models(header: Header, stats: RunStats, palette: Palette, width: int) -> list[Line]:
    lines = [*_model("target", header.target, palette, width)]
    if header.draft is not None:
        lines += _model("draft", header.draft, palette, width)
    context = palette.crop(_context(header, stats), width)
    return [*lines, line(_layers(header)), line((context, DIM))]


def _model(role: str, model: ModelLine, palette: Palette, width: int) -> list[Line]:
    name = palette.crop_middle(model.name, width - 7)
    return [line((f"{role:<7}", DIM), name), line(f"{'':<7}{_bytes(model)}")]


def _memory(header: Header) -> Line:
    draft = "" if header.draft is None else f"   draft {_bytes(header.draft)}"
    return line((f" {'memory':<{LABEL_WIDTH}}", DIM), f"target {_bytes(header.target)}{draft}")


def _bytes(model: ModelLine) -> str:
    return f"{words.size(model.weights_bytes)} + {words.size(model.cache_bytes)} cache"


def _placement(header: Header, stats: RunStats, palette: Palette, columns: int) -> Line:
    layers = f" {_layers(header)}   "
    return line(layers, (palette.crop(_context(header, stats), columns - len(layers)), DIM))


def _layers(header: Header) -> str:
    target = "{}/{} target".format(*header.target.layers_on_gpu)
    draft = "" if header.draft is None else ", {}/{} draft".format(*header.draft.layers_on_gpu)
    return f"layers on GPU: {target}{draft}"


def _context(header: Header, stats: RunStats) -> str:
    return f"context {header.prompt_tokens + stats.tokens} of {header.n_ctx}, {header.sampling}"


def _legend(palette: Palette) -> Line:
    """Named in words, so that it is true without colours too."""
    return line(
        " ",
        (f"{palette.draft_name} text", palette.draft),
        (" was drafted and accepted, ", DIM),
        "plain text",
        (" is the target's own", DIM),
    )


def _small(header: Header, stats: RunStats, palette: Palette, columns: int) -> list[Line]:
    """For small windows: the most telling figures first. Being off displaces the legend, not them."""
    figures = line(
        (
            f"{words.decimal(stats.tokens_per_second_now, 1)} tok/s, "
            f"{words.percent(stats.acceptance)} accepted, {words.decimal(stats.tokens_per_pass, 1)}/pass",
            BOLD,
        ),
    )
    if not stats.passes:
        figures = line((_state(header, stats), BOLD))
    split = line(f"ms: {_split(stats)}")
    if stats.off_reason is not None:
        return [figures, *wrapped(words.off(stats.off_reason), palette.off, columns)[:2], split]
    legend = line((f"{palette.draft_name}: drafted", palette.draft), (", plain: target's own", DIM))
    return [figures, split, legend]
