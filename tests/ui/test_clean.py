"""Model output is data: no terminal may obey it."""

import unicodedata

import pytest

from specdec_cli.ui.clean import Cleaner, printable

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_control_character_but_newline_and_tab_comes_through(ascii_only: bool) -> None:
    everything = "".join(map(chr, range(0x300))) + "\u2028\u2029" + BIDI

    clean = printable(everything, ascii_only)

    assert {c for c in clean if unicodedata.category(c) in ("Cc", "Zl", "Zp")} == {"\n", "\t"}
    assert not set(BIDI) & set(clean)
    assert len(clean) == len(everything), "each control has its visible stand-in"


def test_stand_ins_name_the_control() -> None:
    assert printable("\x1b[2J\x07\x7f") == "␛[2J␇␡"
    assert printable("\x1b[2J\x07\x7f", ascii_only=True) == "?[2J??"
    assert printable("a\x9bb\u202ec") == "a\ufffdb\ufffdc"


def test_ordinary_text_is_left_alone() -> None:
    text = "Grüße,\t日本語 👩‍🚀\n[bold]x[/foo] العربية"

    assert printable(text) == text
    assert printable("Grüße [b]", ascii_only=True) == "Gr??e [b]"


def test_lone_surrogates_can_be_written() -> None:
    assert printable("a\ud800b").encode() == "a\ufffdb".encode()


def test_windows_line_ends_become_newlines_and_a_lone_return_is_shown() -> None:
    assert printable("a\r\nb\rc") == "a\nb␍c"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a\r", "\nb"], ["a", "\nb", ""]),
        (["a\r", "b"], ["a", "␍b", ""]),
        (["a\r", "", "\n"], ["a", "", "\n", ""]),
        (["a\r\r", "\n"], ["a␍", "\n", ""]),
        (["a\r"], ["a", "␍"]),
    ],
)
def test_a_line_end_cut_in_two_is_still_one(pieces: list[str], expected: list[str]) -> None:
    cleaner = Cleaner()

    assert [*map(cleaner.push, pieces), cleaner.close()] == expected
