"""Tokens in, whole characters out, and nothing of a stop string."""

import codecs
import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decode.text_stream import Reply, Span, longest_open_stop
from specdec_cli.decode.types import Origin, Round

BAD = "\N{REPLACEMENT CHARACTER}"
END = 10_000

STRINGS = [
    "é",
    "你好，世界",
    "こんにちは",
    "🦙",
    "👩‍🚀 of 🇫🇷",
    "a🦙b",
    "Привет",
]
texts = st.text(max_size=12)
few_letters = st.text("ab🦙", max_size=12)


def reply_of(
    pieces: Sequence[bytes], *, stop_strings: Sequence[str] = (), end_tokens: Collection[int] = (END,)
) -> Reply:
    """A reply whose token i is pieces[i]. Tokens that end the text have no bytes."""
    table = dict(enumerate(pieces))
    return Reply(lambda token: table.get(token, b""), end_tokens=end_tokens, stop_strings=stop_strings)


def push(reply: Reply, token: int, origin: Origin = "target") -> tuple[bool, list[Span]]:
    """A round of one token: whether the text ends with it, and what has become certain."""
    round_ = Round((), 0, token) if origin == "target" else Round((token,), 1, None)
    round_, spans = reply.add(round_)
    assert round_.tokens == (token,)
    return round_.finish == "stop", spans


def push_all(reply: Reply, n: int, origins: Sequence[Origin] = ()) -> list[Span]:
    """Push tokens 0 .. n-1 up to the one that ends the text; all text as it came, round by round."""
    spans: list[Span] = []
    for token in range(n):
        ended, new = push(reply, token, origins[token] if origins else "target")
        spans += new
        if ended:
            break
    return spans + reply.close()


def of_target(*texts: str) -> list[Span]:
    return [Span(text, "target") for text in texts]


def cut(data: bytes, borders: Collection[int]) -> list[bytes]:
    edges = [0, *sorted(borders), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@st.composite
def cut_up(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes as tokens; some tokens are empty, as markers are."""
    return cut(data, draw(st.lists(st.integers(0, len(data)), max_size=8)))


# --- characters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", STRINGS)
def test_every_way_to_cut_a_text_in_three_gives_the_text(text: str) -> None:
    data = text.encode()
    for borders in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        pieces = push_all(reply_of(cut(data, borders)), 3)

        assert "".join(p.text for p in pieces) == text
        assert all(BAD not in p.text for p in pieces)


@pytest.mark.parametrize("text", STRINGS)
def test_one_byte_at_a_time(text: str) -> None:
    data = text.encode()
    spans = push_all(reply_of([bytes([b]) for b in data]), len(data))

    assert spans == of_target(*text), "each comes with the token that ends it"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\xffb"], f"a{BAD}b"),
        ([b"a\xff", b"b"], f"a{BAD}b"),
        # A character that is broken off by other text is bad, that text is not.
        ([b"\xf0\x9f", b"ok"], f"{BAD}ok"),
        ([b"\xf0\x9f", "é".encode()], f"{BAD}é"),
        ([b"\xc3", b"\xc3\xa9"], f"{BAD}é"),
        # One that the limit cuts off is not bad, only not whole: it is left out.
        ([b"a", b"\xf0\x9f\xa6"], "a"),
        # Surrogates and overlong forms are no UTF-8.
        ([b"\xed\xa0\x80"], BAD * 3),
        ([b"\xc0\xaf"], BAD * 2),
        ([b"", b""], ""),
    ],
)
def test_only_bytes_that_are_no_character_become_replacement_characters(pieces: list[bytes], expected: str) -> None:
    reply = reply_of(pieces)
    push_all(reply, len(pieces))

    assert reply.text == expected


@given(st.lists(st.binary(max_size=5), max_size=8))
def test_any_bytes_give_the_text_that_decoding_them_at_once_gives(pieces: list[bytes]) -> None:
    reply = reply_of(pieces)
    push_all(reply, len(pieces))

    assert reply.text == codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(pieces))


def test_half_a_character_is_not_shown() -> None:
    first, second = "🦙".encode()[:2], "🦙".encode()[2:]
    reply = reply_of([b"a" + first, second])

    assert push(reply, 0) == (False, of_target("a"))
    assert push(reply, 1) == (False, of_target("🦙"))
    assert reply.close() == []


# --- stop strings ---------------------------------------------------------------------------------------


def text_before_stop(text: str, stop_strings: Sequence[str]) -> tuple[str, bool]:
    """Read by character: the text ends as soon as a stop string is complete; of two, the longer one is cut off."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop_strings if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(st.data(), few_letters, st.lists(few_letters.map(lambda s: s[:4]), max_size=3))
def test_the_text_ends_before_the_first_stop_string_wherever_tokens_end(
    data: st.DataObject, text: str, stop_strings: list[str]
) -> None:
    pieces = data.draw(cut_up(text.encode()))
    reply = reply_of(pieces, stop_strings=stop_strings)
    shown = push_all(reply, len(pieces))

    expected, stopped = text_before_stop(text, stop_strings)
    assert reply.text == "".join(p.text for p in shown) == expected
    assert reply.stopped_by_string == stopped


@given(st.data(), texts, texts.filter(bool))
def test_one_stop_string_cuts_at_its_first_occurrence(data: st.DataObject, text: str, stop: str) -> None:
    text += data.draw(st.sampled_from(["", stop, stop[:-1], stop + text]))
    pieces = data.draw(cut_up(text.encode()))
    reply = reply_of(pieces, stop_strings=[stop])
    push_all(reply, len(pieces))

    assert reply.text == (text[: text.index(stop)] if stop in text else text)


@given(st.data(), few_letters, st.lists(few_letters.filter(bool), min_size=1, max_size=3))
def test_nothing_is_shown_that_must_be_taken_back_and_nothing_held_without_need(
    data: st.DataObject, text: str, stop_strings: list[str]
) -> None:
    pieces = data.draw(cut_up(text.encode()))
    reply = reply_of(pieces, stop_strings=stop_strings)
    shown, seen = "", b""
    for token, piece in enumerate(pieces):
        ended, spans = push(reply, token)
        shown += "".join(span.text for span in spans)
        seen += piece
        if ended:
            break
        sure = seen.decode("utf-8", "ignore")
        held = sure.removeprefix(shown)
        assert sure.startswith(shown)
        assert held == "" or any(stop.startswith(held) for stop in stop_strings)


def test_the_beginning_of_a_stop_string_waits_and_is_let_go() -> None:
    reply = reply_of([b"one<", b"|", b"end", b" two"], stop_strings=["<|end|>"])
    assert [push(reply, token) for token in range(4)] == [
        (False, of_target("one")),
        (False, []),
        (False, []),
        (False, of_target("<|end two")),
    ]


def test_what_waits_at_the_end_of_the_text_is_part_of_it() -> None:
    reply = reply_of([b"one<|", b"en"], stop_strings=["<|end|>"])
    assert push_all(reply, 2) == of_target("one", "<|en")


@pytest.mark.parametrize(
    ("text", "stop_strings", "expected"),
    [
        ("one\n\ntwo", ["\n\n"], "one"),
        ("aab", ["ab"], "a"),
        ("ababac", ["abac"], "ab"),
        ("stop at once", ["s"], ""),
        ("abc", ["c", "b"], "a"),
        # The one that is complete first; among those, the longest.
        ("abcd", ["abcd", "bc"], "a"),
        ("abc", ["bc", "abc", "c"], ""),
        ("x🦙y", ["🦙"], "x"),
        ("abc", [], "abc"),
        ("abc", [""], "abc"),
        ("abc", ["abcd"], "abc"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_stop_strings_by_hand(text: str, stop_strings: list[str], expected: str, size: int) -> None:
    data = text.encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    reply = reply_of(pieces, stop_strings=stop_strings)
    push_all(reply, len(pieces))

    assert reply.text == expected


def test_a_round_in_which_a_stop_string_is_complete_ends_there() -> None:
    reply = reply_of([b"a", b"b", b"c", b"d"], stop_strings=["bc"])

    assert [push(reply, t)[0] for t in range(2)] == [False, False]
    round_, spans = reply.add(Round((2, 3), 2, 0, k=4))
    assert (round_, spans) == (Round((2,), 1, None, k=4, finish="stop"), [])
    assert reply.tokens == [0, 1, 2], "the tokens are what was emitted, not what is shown"
    assert reply.origins == ["target", "target", "draft"]
    assert reply.stopped_by_string


@pytest.mark.parametrize(
    ("text", "stop_strings", "expected"),
    [
        ("", ["ab"], 0),
        ("a", ["ab"], 1),
        ("ab", ["ab"], 0),  # complete, so not open
        ("ba", ["ab", "bac"], 2),
        ("xaba", ["abab"], 3),
        ("abc", ["x", ""], 0),
    ],
)
def test_longest_open_stop(text: str, stop_strings: list[str], expected: int) -> None:
    assert longest_open_stop(text, stop_strings) == expected


# --- end tokens, indexes, origins -----------------------------------------------------------------------


def test_an_end_token_ends_the_text_and_is_no_part_of_it() -> None:
    reply = Reply(lambda _: b"</s>", end_tokens={END}, stop_strings=["x"])
    last = Round((), 0, END, finish="stop")

    assert reply.add(last) == (last, [])
    assert (reply.close(), reply.text, reply.tokens) == ([], "", [END])
    assert not reply.stopped_by_string


def test_an_end_token_releases_what_was_held() -> None:
    reply = reply_of([b"a<", b"\xf0\x9f"], stop_strings=["<|"])
    assert push_all(reply, 2) == of_target("a", "<")
    reply = reply_of([b"a<", b"\xf0\x9f"], stop_strings=["<|"])
    assert reply.add(Round((0, 1), 2, END, finish="stop"))[1] == [Span("a", "draft")]
    assert reply.close() == [Span("<", "draft")]
    assert reply.text == "a<"


def test_close_without_a_token_and_twice() -> None:
    reply = reply_of([b"ab"], stop_strings=["bc"])
    assert reply.close() == []

    reply = reply_of([b"ab"], stop_strings=["bc"])
    assert push(reply, 0) == (False, of_target("a"))
    assert reply.close() == of_target("b")
    assert reply.close() == []
    assert reply.text == "ab"


@given(st.data(), few_letters, st.lists(few_letters, max_size=2))
def test_every_character_has_the_origin_of_the_token_that_ends_it(
    data: st.DataObject, text: str, stop_strings: list[str]
) -> None:
    pieces = data.draw(cut_up(text.encode()))
    names: list[Origin] = ["draft", "target"]
    origins = [data.draw(st.sampled_from(names)) for _ in pieces]
    shown = push_all(reply_of(pieces, stop_strings=stop_strings), len(pieces), origins)

    assert all(span.text for span in shown)
    ends = list(itertools.accumulate(map(len, pieces)))
    at = 0
    for span in shown:
        for character in span.text:
            at += len(character.encode())
            # The first token by which the whole character is there.
            assert span.origin == origins[next(i for i, end in enumerate(ends) if end >= at)]


def test_text_takes_the_colour_of_the_token_that_completed_it() -> None:
    llama = "🦙".encode()
    reply = reply_of([b"a", b"b", llama[:2], llama[2:] + b"c", b"d<", b"/s", b"e"], stop_strings=["</s>"])
    origins: list[Origin] = ["draft", "draft", "draft", "target", "draft", "target", "target"]

    assert push_all(reply, 7, origins) == [
        Span("a", "draft"),
        Span("b", "draft"),
        Span("🦙c", "target"),
        Span("d", "draft"),
        Span("<", "draft"),
        Span("/se", "target"),
    ]
    reply = reply_of([b"a", b"b", b"c"])
    assert reply.add(Round((0, 1), 2, 2))[1] == [Span("ab", "draft"), Span("c", "target")]
