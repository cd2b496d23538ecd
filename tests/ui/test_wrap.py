"""Growing text in rows."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.style import Style

from specdec_cli.ui.paint import Line
from specdec_cli.ui.wrap import Wrapper, cells, wrapped

A, B = Style(color="green"), Style()
TEXTS = st.lists(st.text("ab  \n\t日👍🇩\ufe0f\u0301☀", max_size=12), max_size=12)


def plain(line: Line) -> str:
    return "".join(segment.text for segment in line)


def rows(text: str, columns: int) -> list[str]:
    return [plain(line) for line in wrapped(text, B, columns)]


def test_words_stay_whole_where_they_fit() -> None:
    assert rows("one two three", 7) == ["one two", "three"]
    assert rows("one two  three", 7) == ["one two", "three"]
    assert rows("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert rows("    indented_and_long", 12) == ["    indented", "_and_long"]


def test_a_space_after_a_full_row_makes_no_empty_row() -> None:
    assert rows("abcd \n\nefgh", 4) == ["abcd", "", "efgh"]


def test_wide_characters_take_two_cells_and_may_be_broken_anywhere() -> None:
    assert rows("日本語日本語", 5) == ["日本", "語日", "本語"]
    assert rows("ab日本語", 4) == ["ab日", "本語"]


def test_a_character_is_not_parted_from_its_accents_and_emoji_style() -> None:
    assert rows("日\u0301abc", 4) == ["日\u0301", "abc"]
    assert rows("abc☀\ufe0f", 4) == ["abc", "☀\ufe0f"]


def test_tabs_go_to_the_next_stop() -> None:
    assert rows("a\tb\n\tc", 20) == ["a   b", "    c"]


def test_styles_end_in_the_middle_of_a_word() -> None:
    wrapper = Wrapper(6)
    wrapper.push("ab cd", A)
    wrapper.push("efg\n", B)

    assert [[(s.text, s.style) for s in row] for row in wrapper.rows] == [
        [("ab", A)],
        [("cd", A), ("efg", B)],
    ]


def test_the_row_being_written_follows_a_new_width() -> None:
    wrapper = Wrapper(5)
    wrapper.push("one two", B)
    wrapper.resize(9)
    wrapper.push(" three four\n", B)
    assert [plain(row) for row in wrapper.rows] == ["one", "two three", "four"]

    wrapper = Wrapper(20)
    wrapper.push("one two three", B)
    wrapper.resize(6)
    assert [plain(row) for row in [*wrapper.rows, wrapper.tail]] == ["one", "two", "three"]


def test_a_space_that_hung_over_the_edge_is_there_again_in_a_wider_window() -> None:
    wrapper = Wrapper(4)
    wrapper.push("abcd ", B)
    wrapper.resize(20)
    wrapper.push("e\n", B)

    assert [plain(row) for row in wrapper.rows] == ["abcd e"]


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(2, 9))
def test_nothing_is_lost_and_nothing_is_too_wide(pieces: list[str], columns: int) -> None:
    wrapper = Wrapper(columns)
    seen: list[str] = []
    for piece in pieces:
        wrapper.push(piece, B)
        seen += [plain(row) for row in wrapper.rows[len(seen) :]]
        assert seen == [plain(row) for row in wrapper.rows], "a finished row never changes"
    whole = "".join(pieces)
    wrapper.push("\n", B)

    assert [plain(row) for row in wrapper.rows] == rows(whole, columns), "pieces do not matter"
    assert "".join(map(plain, wrapper.rows)).replace(" ", "") == "".join(whole.split())
    # In two columns, a wide character with an emoji style (which changes nothing) has no row that is wide enough.
    assert all(sum(map(cells, plain(row))) <= max(columns, 3) for row in wrapper.rows)
