"""A race as a GIF. Needs Pillow."""

import io
from collections.abc import Sequence
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len

from specdec_cli.ui.paint import Line
from specdec_cli.ui.race import FRAME_SECONDS, Lane
from specdec_cli.ui.race_files import COLUMNS, END_SECONDS, race_frames

_STEP = 2
_CELL = (9, 19)
_SIZE = 15
_MARGIN = 12
_BACKGROUND, _PLAIN, _DIM, _BOLD, _GREEN = (
    (12, 12, 12),
    (217, 217, 217),
    (130, 130, 130),
    (255, 255, 255),
    (152, 224, 36),
)
_FONTS = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf")
"""Looked for where the system has its fonts; Pillow's own is none of equal widths."""

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def race_gif(lanes: Sequence[Lane], verdict: str) -> bytes:
    """The race, over and over."""
    font = _font()
    frames = race_frames(lanes, verdict, step=_STEP)
    n_rows = max(len(lines) for _, lines in frames)
    images = [_image(lines, n_rows, font) for _, lines in frames]
    shown = [round(1000 * (b - a)) for (a, _), (b, _) in pairwise(frames)]
    out = io.BytesIO()
    images[0].save(
        out,
        "GIF",
        save_all=True,
        append_images=images[1:],
        # Players take less than two hundredths of a second for a tenth.
        duration=[max(ms, round(500 * FRAME_SECONDS)) for ms in [*shown, round(1000 * END_SECONDS)]],
        loop=0,
    )
    return out.getvalue()


def _font() -> _Font:
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, _SIZE)
        except OSError:
            continue
    return ImageFont.load_default(_SIZE)


def _image(lines: Sequence[Line], n_rows: int, font: _Font) -> Image.Image:
    wide, high = _CELL
    image = Image.new("RGB", (2 * _MARGIN + COLUMNS * wide, 2 * _MARGIN + n_rows * high), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    for row, content in enumerate(lines):
        column = 0
        for text, style, _ in content:
            color = _PLAIN
            if style is not None:
                color = _GREEN if style.color is not None else _DIM if style.dim else _BOLD if style.bold else _PLAIN
            for character in text:
                place = (_MARGIN + column * wide, _MARGIN + row * high)
                draw.text(place, character, fill=color, font=font)
                column += cell_len(character)
    return image.quantize(16)
