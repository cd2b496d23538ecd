"""A race shows each answer at its own speed, at every size, and as a file."""

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pyte
import pytest
from PIL import Image

from specdec_cli.decode.text_stream import Moment, Span
from specdec_cli.ui.paint import Palette
from specdec_cli.ui.race import Lane, RaceView, frame, frame_times, length
from specdec_cli.ui.race_files import COLUMNS, ROWS, race_cast, race_svg
from specdec_cli.ui.race_gif import race_gif
from tests.ui_fakes import FakeTty

PALETTE = Palette.of(color=True, utf8=True)
VERDICT = "identical text, 2.00x plain decoding"


def lane(name: str, seconds_each: float, n: int = 10, each: int = 1) -> Lane:
    """An answer of `n` pieces of `each` words."""
    first = Moment(0.0, (Span("start", "target"),), 1)
    moments = [
        Moment(i * seconds_each, (Span("".join(f" w{i * each + j}" for j in range(each)), "draft"),), 1 + i * each)
        for i in range(1, n + 1)
    ]
    return Lane(name, (first, *moments))


LANES = (lane("plain", 0.4), lane("drafted", 0.2))


def text(lanes: Sequence[Lane], seconds: float, columns: int, rows: int = 24, verdict: str = "") -> list[str]:
    drawn = frame(lanes, seconds, PALETTE, columns, rows, verdict=verdict)
    assert len(drawn) <= rows
    rows_of_text = ["".join(part for part, _, _ in row).rstrip() for row in drawn]
    assert all(len(row) <= columns for row in rows_of_text)
    return rows_of_text


def test_each_has_written_what_it_had_written_by_then() -> None:
    rows = text(LANES, 1.0, 100)

    left, right = rows[1].split(" │ ")
    assert left.split() == ["start", "w1", "w2"]
    assert right.split() == ["start", "w1", "w2", "w3", "w4", "w5"]
    assert rows[0].split(" │ ")[0].rstrip() == "plain  2.0 tok/s · 3 tokens · 1.0 s"
    assert rows[0].split(" │ ")[1] == "drafted  5.0 tok/s · 6 tokens · 1.0 s"


def test_who_has_ended_stands_still() -> None:
    title = text(LANES, 3.0, 100)[0].split(" │ ")[1]
    assert title == text(LANES, 4.0, 100)[0].split(" │ ")[1] == "drafted  5.0 tok/s · 11 tokens · 2.0 s"


@pytest.mark.parametrize("columns", [79, 40, 20])
def test_narrow_windows_have_one_above_the_other(columns: int) -> None:
    rows = text(LANES, 4.0, columns, verdict=VERDICT)

    assert not [row for row in rows if "│" in row]
    (first,) = [i for i, row in enumerate(rows) if row.startswith("plain  ")]
    (second,) = [i for i, row in enumerate(rows) if row.startswith("drafted  ")]
    assert first < second
    assert " ".join(rows).endswith(VERDICT)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (120, 40), (20, 9)])
def test_long_answers_show_their_ends(columns: int, rows: int) -> None:
    lanes = (lane("plain", 0.01, 300), lane("drafted", 0.005, 300))
    seen = " ".join(text(lanes, 3.0, columns, rows, VERDICT))

    assert seen.count("w300") == 2
    assert "start" not in seen


def test_without_utf8_everything_is_ascii() -> None:
    lanes = (Lane("plain", (Moment(0.0, (Span("ü漢\x1b", "draft"),), 1),)), lane("drafted", 0.2))
    drawn = frame(lanes, 1.0, Palette.of(color=False, utf8=False), 100, 20)
    assert "".join(part for row in drawn for part, _, _ in row).isascii()


def test_text_of_a_model_is_data() -> None:
    lanes = (Lane("plain", (Moment(0.0, (Span("[bold]x\x1b[2J", "target"),), 1),)), lane("drafted", 0.2))
    assert text(lanes, 1.0, 100)[1].startswith("[bold]x␛[2J")


def test_frames_end_with_the_race() -> None:
    times = list(frame_times(LANES))
    assert times == sorted(times)
    assert times[-1] == length(LANES) == 4.0
    assert list(frame_times(())) == [0.0, 0.0]


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
def test_the_last_frame_stays_and_the_cursor_comes_back(size: tuple[int, int]) -> None:
    tty = FakeTty(*size)
    with RaceView(LANES, tty.terminal) as view:
        for seconds in frame_times(LANES):
            view.show(seconds)
            assert tty.screen.cursor.hidden
        view.finish(VERDICT)

    seen = " ".join(tty.everything())
    assert seen.count("w10") == 2
    assert seen.count("plain  ") == 1
    assert seen.endswith(VERDICT)
    assert not tty.screen.cursor.hidden


def test_interrupted_nothing_is_left() -> None:
    def interrupted(tty: FakeTty) -> None:
        with RaceView(LANES, tty.terminal) as view:
            view.show(1.0)
            raise KeyboardInterrupt

    tty = FakeTty()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tty)
    assert tty.everything() == []
    assert not tty.screen.cursor.hidden


def test_a_cast_plays_to_the_last_frame() -> None:
    header, *events = map(json.loads, race_cast(LANES, VERDICT, "a race").splitlines())

    assert (header["version"], header["width"], header["height"]) == (2, COLUMNS, ROWS)
    times = [seconds for seconds, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    for _, _, output in events:
        stream.feed(output)
    seen = " ".join(" ".join(screen.display).split())
    assert seen.count("w10") == 2
    assert VERDICT in seen
    assert seen.count("tok/s") == 2, "each frame is drawn over the one before"


def test_an_svg_shows_the_end() -> None:
    picture = race_svg(LANES, VERDICT, "a race")
    seen = " ".join("".join(ET.fromstring(picture).itertext()).replace("\xa0", " ").split())
    assert VERDICT in seen
    assert "drafted" in seen


def test_a_gif_lasts_as_long_as_the_race() -> None:
    image = Image.open(io.BytesIO(race_gif(LANES, VERDICT)))
    assert image.format == "GIF"
    milliseconds = 0
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        milliseconds += image.info["duration"]
    assert milliseconds == pytest.approx(1000 * (length(LANES) + 3.0), rel=0.05)
