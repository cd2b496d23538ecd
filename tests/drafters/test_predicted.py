"""A text that the answer will mostly repeat: where the cursor goes, what is drafted, and that no token changes."""

import json
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.tokens import shared_prefix
from specdec_cli.decode.types import Draft
from specdec_cli.drafters.ngram.drafter import PREDICTION, TEXT, NgramDrafter
from specdec_cli.drafters.ngram.predicted import PredictedText
from specdec_cli.drafters.none import NoDrafter
from tests.cli import HEADS, VOCAB, inside, json_inside, ring, word
from tests.drafters.test_ngram import emitted, run
from tests.fakes import HashLM
from tests.planted import write_planted

FILE = "def first():\n    return 1\n\ndef second():\n    return 2\n\ndef third():\n    return 3\n"


WORDS: dict[str, int] = {}
"""Ids of words and signs, in the order in which they are met."""


def ids(text: str) -> list[int]:
    return [WORDS.setdefault(word, len(WORDS)) for word in re.findall(r"\w+|\W", text)]


def text_of(tokens: Iterable[int]) -> str:
    words = list(WORDS)
    return "".join(words[token] for token in tokens)


def after(answer: str, text: str = FILE) -> str | None:
    """What is expected after this answer; None where nothing is."""
    predicted = PredictedText(ids(text))
    for token in ids(answer):
        predicted.read(token)
    return text_of(one.token for one in predicted.continuation()) or None


# --- the cursor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        ("", FILE),
        ("def first", "():\n    return 1\n"),
        # something is said before
        ("Here it is:\n\ndef first", "():\n    return 1\n"),
        # another name: of all the brackets the next one
        ("def renamed(", "):\n    return 1\n"),
        ("def first():\n    return 1\n\ndef renamed(", "):\n    return 2\n"),
        # something added, left out, and replaced by something longer
        ("def first():\n    # new\n    return", " 1\n"),
        ("def first():\n    return 1\n\ndef third", "():\n    return 3\n"),
        ("def first():\n    return 1\n\ndef the.other.one():\n    return", " 2\n"),
        # a passage that was read already comes once more
        ("def first():\n    return 1\n\ndef second():\n    return 2\n\ndef first():\n    return", " 1\n"),
        # the end
        (FILE, None),
    ],
)
def test_the_cursor_is_where_the_answer_is(answer: str, rest: str | None) -> None:
    found = after(answer)

    assert found == rest if rest is None else found is not None and found.startswith(rest[:60])


def test_nothing_is_expected_of_an_answer_that_is_not_in_the_text() -> None:
    assert after("1 2 3", "a.b.c") is None


def test_a_single_token_far_ahead_is_no_place_to_go_on_from() -> None:
    text = "a.b" + "-" * 40 + "x,y,z"

    assert after("a.b;x", text) is None
    assert after("a.b;x,", text) == "y,z"


def test_a_wrong_guess_does_not_lose_the_rest() -> None:
    """The cursor jumps ahead on little, and comes back: what it skipped was not read."""
    text = "a.b.1.2.3.4 " + "- " * 20 + "x!y"

    assert after("a.b.x", text) is None
    assert after("a.b.x!1.2", text) == text[7:]


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        # the longer match, though another one is nearer
        ([1, 2, 20, 21, *[9] * 40, 10, 20, 22], [1, 2, 10, 20], 22),
        # two tokens ahead match, and then comes what was skipped
        ([1, 2, 3, 4, 5, *[9] * 12, 30, 31, 32], [1, 2, 3, 30, 31, 4], 5),
    ],
)
def test_what_matches_best_is_found_again(text: list[int], answer: list[int], expected: int) -> None:
    predicted = PredictedText(text)
    for token in answer:
        predicted.read(token)

    assert predicted.expected is not None
    assert predicted.expected.token == expected


def test_equally_long_matches_that_say_different_things_are_told() -> None:
    def agreement(text: str, answer: str = "?a,b.") -> str:
        predicted = PredictedText(ids(text))
        for token in ids(answer):
            predicted.read(token)
        assert predicted.expected is not None
        return predicted.expected.agreement

    assert agreement("; a,b.1") == "once"
    assert agreement("; a,b.1 a,b.1") == "agree"
    assert agreement("; a,b.1 a,b.2") == "differ"
    assert agreement("; a,b.1 a,b.2", "?a,b") == "agree"


@settings(deadline=None)
@given(st.text("ab\n", max_size=60), st.text("abc\n", max_size=60))
def test_what_is_expected_stands_in_the_text_after_what_it_matches(text: str, answer: str) -> None:
    predicted = PredictedText([ord(c) for c in text])
    for n, c in enumerate(answer, 1):
        predicted.read(ord(c))
        found = predicted.expected
        if found is not None and found.length:
            assert answer[:n][-min(found.length, 16) :] + chr(found.token) in text


# --- drafts ----------------------------------------------------------------------------------------------


def proposals(answer: str, predicted: str, prompt: str = "Please edit: ", k: int = 8) -> tuple[int, set[str]]:
    """Passes that the answer takes, and who drafted."""
    drafter = NgramDrafter(predicted=PredictedText(ids(predicted)) if predicted else None)
    tokens, rest, passes, sources = ids(prompt), ids(answer), 0, set()
    while rest:
        draft = drafter.propose(tokens, k) if passes else Draft()
        sources.add(draft.source)
        kept = shared_prefix(list(draft.tokens), rest) + 1
        tokens, rest, passes = [*tokens, *rest[:kept]], rest[kept:], passes + 1
    return passes, sources - {""}


EDITED = FILE.replace("second", "middle").replace("return 3", "return 4")


def test_an_edit_of_a_predicted_file_takes_few_passes() -> None:
    plain, predicted = proposals(EDITED, ""), proposals(EDITED, FILE)

    assert PREDICTION in predicted[1]
    assert predicted[0] < plain[0] / 2


def test_in_the_prompt_too_it_takes_no_more() -> None:
    prompt = f"Rename second in\n{FILE}\n"

    assert proposals(EDITED, FILE, prompt)[0] <= proposals(EDITED, "", prompt)[0]
    assert proposals(EDITED, "", prompt)[1] == {TEXT}


def test_every_answer_begins_anew() -> None:
    """The cursor was at the end."""
    file = f"import it\n\n{FILE}"
    drafter = NgramDrafter(predicted=PredictedText(ids(file)))
    tokens = ids("Show it: ")
    for token in ids(file):
        tokens.append(token)
        drafter.propose(tokens, 4)
    draft = drafter.propose([*tokens, *ids(" Once more, please; with other words;import")], 4)

    assert draft.source == PREDICTION
    assert text_of(draft.tokens) == " it\n\n"[: len(draft.tokens) + 1]


def test_tokens_that_a_grammar_forces_are_no_new_answer() -> None:
    """A round that begins with them is longer than a draft."""
    file = ids(FILE)
    tokens = [*ids("Show it: "), file[0]]
    for most_forced in (0, 12):
        drafter = NgramDrafter(predicted=PredictedText(file), most_forced=most_forced)
        drafter.propose(tokens, 2)
        found = drafter.propose([*tokens, *file[1:12]], 2)
        assert (list(found.tokens) == file[12:14]) == (most_forced > 0)


def test_a_text_that_is_always_wrong_is_soon_left_alone() -> None:
    """The cursor finds something after every "a", and it never comes."""
    text, answer = "a.b " * 30, "a.c " * 100
    drafter = NgramDrafter(predicted=PredictedText(ids(text)))
    tokens, drafted = ids("prompt: "), []
    for token in ids(answer):
        tokens.append(token)
        draft = drafter.propose(tokens, 4)
        drafted.append(draft.source == PREDICTION)

    assert sum(drafted[-100:]) <= 30


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 19), max_size=40),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(1, 8),
    st.integers(0, 1000),
)
def test_token_equality(predicted: list[int], temperature: float, k: int, seed: int) -> None:
    target, params = HashLM(20, seed), SamplingParams(temperature=temperature)
    drafter = NgramDrafter(predicted=PredictedText(predicted), least_chance=0)
    plain = emitted(run(target, NoDrafter(), params, [1, 2, 3], k=0, n=30))

    assert emitted(run(target, drafter, params, [1, 2, 3], k=k, n=30)) == plain


@pytest.mark.parametrize("wrong", [(), (3,), (5, 6, 20)])
def test_a_prediction_of_the_answer_is_accepted(wrong: Sequence[int]) -> None:
    target, params = HashLM(1000, 7), SamplingParams(temperature=0.8)
    plain = emitted(run(target, NoDrafter(), params, [1, 2, 3], k=0, n=60))
    predicted = [token + 1 if i in wrong else token for i, token in enumerate(plain)]
    rounds = run(target, NgramDrafter(predicted=PredictedText(predicted)), params, [1, 2, 3], k=8, n=60)

    assert emitted(rounds) == plain
    assert len(rounds) <= 60 // 9 + 3 + 2 * len(wrong)
    assert {round_.source for round_ in rounds} <= {PREDICTION, ""}


# --- the option ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says the alphabet."""
    letters = [word(letter) for letter in string.ascii_lowercase]
    path = tmp_path_factory.mktemp("models") / "alphabet.gguf"
    return write_planted(path, ring(*letters), vocab=VOCAB, n_head=HEADS)


FLAGS = ("a b c", "--temp", 0, "-n", 20, "-k", 4, "--raw")


def test_a_predicted_text_drafts_what_the_model_says(alphabet: Path, tmp_path: Path) -> None:
    file = tmp_path / "predicted.txt"
    file.write_text(" d e f g h i j k l m n o p q r s t u v w x y z")
    plain, predicted = json_inside(alphabet, *FLAGS), json_inside(alphabet, *FLAGS, "--predict", file)

    assert predicted.document["token_ids"] == plain.document["token_ids"]
    assert predicted.stats["sources"]["prediction"]["accepted"] > 10
    assert predicted.document["settings"]["predict"] == str(file)
    assert predicted.document["prompt_tokens"] == plain.document["prompt_tokens"], "the model never reads it"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x7fELF\x02\x01\xff\xfe", "is not UTF-8 text"),
        (b"text\0text", "is not text (it has zero bytes)"),
        (b"word " * 250_000, "is larger than 1,048,576 bytes"),
        (None, "Cannot read"),
    ],
)
def test_a_file_that_is_no_text_ends_in_one_sentence(
    alphabet: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "predicted"
    if content is not None:
        file.write_bytes(content)
    done = inside("run", alphabet, *FLAGS, "--predict", file)

    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 2, "one sentence of what happened, one of what to do"


@pytest.mark.parametrize("others", [("--draft", "none"), ("--draft", "lookahead"), ("--no-ngram",)])
def test_what_contradicts_it_is_refused(alphabet: Path, tmp_path: Path, others: Sequence[str]) -> None:
    file = tmp_path / "predicted.txt"
    file.write_text("d e f")
    done = inside("run", alphabet, *FLAGS, "--predict", file, *others)

    assert done.code == 2
    assert "--predict" in done.err
    assert "contradict each other" in done.err


def test_with_a_draft_model_both_draft(alphabet: Path, tmp_path: Path) -> None:
    file = tmp_path / "predicted.txt"
    file.write_text(" n o p q r s")
    flags = ("a b c", "--temp", 0, "-n", 24, "-k", 4, "--raw", "--draft", alphabet, "--force", "--predict", file)
    document = json_inside(alphabet, *flags).document

    assert document["token_ids"] == json_inside(alphabet, "a b c", "--temp", 0, "-n", 24, "--raw").document["token_ids"]
    assert set(document["stats"]["sources"]) >= {"prediction", "model"}, json.dumps(document["stats"])
