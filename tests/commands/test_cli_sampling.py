"""`specdec run`: samplers, grammars, log-probabilities and rules as a user has them. With drafts as without."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from tests.cli import HEADS, N_VOCAB, VOCAB, Models, inside, json_inside, specdec, text_of, word
from tests.planted import BYTES, disturbed, random_chain, write_planted

UNCUT = ("--top-k", 0, "--top-p", 1, "--min-p", 0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("sampling"))


def ids(models: Models, *flags: object) -> list[int]:
    done = json_inside(models.words, "a b a b c", "-n", 30, "--seed", 5, "--temp", 1, *UNCUT, *flags)
    return list(done.document["token_ids"])


def in_files(flags: Sequence[object], folder: Path) -> list[object]:
    """The same command line with the text behind each "FILE:" in a file."""
    written: list[object] = []
    for i, flag in enumerate(flags):
        if str(flag).startswith("FILE:"):
            (folder / str(i)).write_text(str(flag).removeprefix("FILE:"))
            flag = folder / str(i)
        written.append(flag)
    return written


SAMPLERS: dict[str, tuple[object, ...]] = {
    "repeat": ("--repeat-penalty", 1.6),
    "frequency": ("--frequency-penalty", 2.5),
    "presence": ("--presence-penalty", 2.5),
    "window": ("--presence-penalty", 2.5, "--repeat-last-n", 4),
    "dry": ("--temp", 0.2, "--dry-multiplier", 0.5, "--dry-allowed-length", 0),
    "dry base": ("--temp", 0.2, "--dry-multiplier", 0.5, "--dry-base", 30, "--dry-allowed-length", 0),
    "dry window": ("--temp", 0.2, "--dry-multiplier", 9, "--dry-allowed-length", 1, "--dry-penalty-last-n", 5),
    "typical": ("--typical", 0.4),
    "sigma": ("--top-n-sigma", 0.04),
    "bias": ("--logit-bias", f"{word('b')}+5.5", "--logit-bias", f"{word('c')}-2"),
    "ban": ("--ban", word("a"), "--ban", word("b")),
}


@pytest.mark.parametrize("flags", SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_changes_the_text_and_a_draft_does_not(models: Models, flags: tuple[object, ...]) -> None:
    plain = ids(models, *flags)
    without = (*flags[:2], *UNCUT) if flags[0] == "--temp" else UNCUT
    assert plain != ids(models, *without)
    for k in (1, 5):
        assert ids(models, *flags, "--draft", models.draft, "-k", k) == plain
    assert ids(models, *flags, "--draft", "ngram") == plain


@pytest.mark.parametrize(("one", "other"), [("presence", "window"), ("dry", "dry base"), ("dry", "dry window")])
def test_windows_and_bases_matter(models: Models, one: str, other: str) -> None:
    assert ids(models, *SAMPLERS[one]) != ids(models, *SAMPLERS[other])


def test_breakers_matter(models: Models) -> None:
    """ " b" written as a breaker is never a repeat; the default breakers are not in this text."""
    assert ids(models, *SAMPLERS["dry"]) == ids(models, *SAMPLERS["dry"], "--dry-sequence-breaker", "none")
    assert ids(models, *SAMPLERS["dry"]) != ids(models, *SAMPLERS["dry"], "--dry-sequence-breaker", " ")


def test_end_tokens_are_ignored_on_demand(models: Models) -> None:
    """The ring ends after " e"; kept from it, the model writes on."""
    ended = json_inside(models.ends, "a b", "--temp", 0, "-n", 12).document
    went_on = json_inside(models.ends, "a b", "--temp", 0, "-n", 12, "--ignore-eos").document
    assert (ended["finish_reason"], len(ended["token_ids"])) == ("stop", 4)
    assert (went_on["finish_reason"], len(went_on["token_ids"])) == ("length", 12)


GBNF = 'root ::= " " [a-c] (" " [a-c])*\n'


def test_a_grammar_is_kept_with_and_without_a_draft(models: Models, tmp_path: Path) -> None:
    (tmp_path / "letters.gbnf").write_text(GBNF)
    flags = ("--grammar", tmp_path / "letters.gbnf")
    plain = ids(models, *flags)
    assert set(plain) <= {*map(word, "abc"), 2}
    assert ids(models, *flags, "--draft", models.draft, "-k", 4) == plain
    assert ids(models, *flags, "--draft", "ngram", "-k", 3) == plain


def test_a_grammar_ends_with_an_end_token(models: Models, tmp_path: Path) -> None:
    (tmp_path / "word.gbnf").write_text('root ::= " b" " c"')
    document = json_inside(models.words, "a", "--grammar", tmp_path / "word.gbnf", "-n", 9).document
    assert (document["text"], document["finish_reason"]) == (" b c", "stop")


@pytest.mark.parametrize(
    ("option", "text", "matches"),
    [
        (
            "--json-schema",
            '\ufeff{"type": "array", "items": {"enum": ["a b", "c"]}, "minItems": 2}',
            r'\["(a b|c)", .*\]',
        ),
        ("--lark", 'start: " a" (" b" | " c")+ " d"', "( a)(( b)|( c))+( d)"),
        ("--regex", " a( [b-d]){2,5}", " a( [b-d]){2,5}"),
    ],
)
def test_structured_output_with_and_without_a_draft(
    models: Models, tmp_path: Path, option: str, text: str, matches: str
) -> None:
    """What the grammar forces is drafted, also by `--draft none`: the tokens of single bytes between quotes."""
    (tmp_path / "grammar").write_text(text, encoding="utf-8")
    flags = ("a b", "-n", 60, "--seed", 3, option, text if option == "--regex" else tmp_path / "grammar")
    plain = json_inside(models.words, *flags).document
    assert re.fullmatch(matches, plain["text"])
    assert plain["finish_reason"] == "stop"
    for draft in (("--draft", models.draft, "-k", 4), ("--draft", "ngram", "-k", 3), ("--draft", models.draft)):
        assert json_inside(models.words, *flags, *draft).document["token_ids"] == plain["token_ids"]
    if option == "--json-schema":
        assert plain["stats"]["accepted"] == plain["stats"]["drafted"] > 4


THINK, CLOSE = word("y"), word("z")
THINKING = "{% for message in messages %}{{ message.content }}{% endfor %}<think>{# </think> #}"


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target whose template opens a thought, which it closes after some words, and a draft of it."""
    named = VOCAB.renamed({THINK: "<think>", CLOSE: "</think>"})
    types = tuple(TokenType.USER_DEFINED if t in (THINK, CLOSE) else kind for t, kind in enumerate(VOCAB.types))
    chain = random_chain(N_VOCAB, seed=2, p_eos=0.15, eos=CLOSE, never=(0, 1, 2, THINK, *BYTES))
    folder = tmp_path_factory.mktemp("thinkers")
    vocab = replace(named, types=types, chat_template=THINKING)
    target, draft = (
        write_planted(folder / f"{name}.gguf", one, vocab=vocab, n_head=HEADS, n_ff=n_ff)
        for name, one, n_ff in (("target", chain, 2560), ("draft", disturbed(chain, 0.5, 4), 32))
    )
    return target, draft


@pytest.mark.parametrize(
    ("option", "text", "matches"),
    [
        ("--grammar", 'root ::= " a" (" b" | " c")* " d"', "( a)(( b)|( c))*( d)"),
        ("--json-schema", '{"enum": ["a b", "c"]}', '"(a b|c)"'),
    ],
)
def test_a_model_that_thinks_first_writes_the_same_with_drafts(
    thinkers: tuple[Path, Path], tmp_path: Path, option: str, text: str, matches: str
) -> None:
    """Freely until it closes the thought, then by the grammar; a note says so."""
    target, draft = thinkers
    (tmp_path / "grammar").write_text(text)
    asked = ("a b", option, tmp_path / "grammar", "-n", 150, "--seed", 7, "--temp", 1)
    plain = json_inside(target, *asked, "--draft", "none")
    ids = plain.document["token_ids"]
    thought, answer = ids[: ids.index(CLOSE)], ids[ids.index(CLOSE) + 1 :]
    assert len(thought) > 1
    assert plain.document["finish_reason"] == "stop"
    assert re.fullmatch(rf"\n?{matches}(</s>)?", text_of(answer))
    assert "This model may think first: the grammar applies after </think>." in plain.err
    for drafter in (("--draft", draft, "-k", 4), ("--draft", draft), ("--draft", "ngram", "-k", 3)):
        assert json_inside(target, *asked, *drafter).document["token_ids"] == ids


@pytest.mark.parametrize(
    ("flags", "is_complete", "note"),
    [
        (
            ("--json-schema", 'FILE:{"const": "a b c d"}', "-n", 3),
            False,
            "-n 3 and is not valid JSON. Use a larger -n.",
        ),
        (("--regex", " a( b){9}", "-n", 3), False, "-n 3 and does not match the regular expression"),
        (("--grammar", 'FILE:root ::= " a" " b" " c"', "-n", 2), False, "-n 2 and does not match the grammar"),
        (("--regex", "[ a-z0-9]*", "-n", 3), True, None),
        (("--json-schema", 'FILE:{"const": 7}', "-n", 9), True, None),
        (("--regex", " a( b){9}", "--stop", " b b", "-n", 9), None, None),
        (("-n", 3), None, None),
    ],
)
def test_an_answer_that_was_cut_before_it_was_complete_says_so(
    models: Models, tmp_path: Path, flags: tuple[Any, ...], is_complete: bool | None, note: str | None
) -> None:
    """With the option that cut it; where the text may end, the same limit is no news."""
    done = json_inside(models.words, "a b", *in_files(flags, tmp_path))
    assert done.document["grammar_complete"] is is_complete
    cut = [one for one in done.document["notes"] if "cut off" in one]
    assert len(cut) == (note is not None)
    assert (note or "") in " ".join(cut)
    assert ("cut off" in done.err) == (note is not None)


def test_an_answer_that_the_context_cut_says_so(models: Models, tmp_path: Path) -> None:
    flags = in_files(("--json-schema", 'FILE:{"const": "' + 60 * "a b c d " + '"}'), tmp_path)
    document = json_inside(models.words, "a b", *flags, "--ctx", 64).document
    assert (document["finish_reason"], document["grammar_complete"]) == ("context", False)
    assert any("at the end of the context and is not valid JSON. Use a larger --ctx." in n for n in document["notes"])


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_the_other_rules_write_too_and_say_so(models: Models, rule: str, draft: str) -> None:
    drafter = models.draft if draft == "model" else "ngram"
    flags = ("a b a b", "-n", 40, "--seed", 3, "--verify", rule, "--draft", drafter, "--logprobs", 0)
    document = json_inside(models.words, *flags).document
    assert len(document["token_ids"]) == len(document["logprobs"]) == 40
    assert document["settings"]["verify"] == rule
    assert document["token_ids"] == json_inside(models.words, *flags).document["token_ids"], "the seed repeats it"


def logprobs(models: Models, *flags: object) -> list[dict[str, Any]]:
    done = json_inside(models.words, "a b", "-n", 24, "--seed", 2, "--logprobs", 3, *flags)
    return list(done.document["logprobs"])


def test_logprobs_are_those_of_plain_decoding(models: Models) -> None:
    plain = logprobs(models)
    assert len(plain) == 24
    drafted = logprobs(models, "--draft", models.draft, "-k", 5)
    for one, other in zip(plain, drafted, strict=True):
        assert (one["id"], one["text"]) == (other["id"], other["text"])
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert [t["id"] for t in one["likeliest"]] == [t["id"] for t in other["likeliest"]]
        assert len(one["likeliest"]) == 3
        assert one["likeliest"][0]["logprob"] >= one["logprob"] - 1e-6


def test_logprobs_reach_the_trace(models: Models, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = inside("run", models.words, "a", "-n", 5, "--logprobs", 1, "--jsonl", trace, "--threads", 1)
    assert done.code == 0
    rounds = [line for line in map(json.loads, trace.read_text().splitlines()) if line["type"] == "round"]
    assert [len(r["logprobs"]) for r in rounds] == [r["n_accepted"] + (r["own"] is not None) for r in rounds]


def test_strict_says_what_it_did(models: Models) -> None:
    flags = ("a b a b c d e f g", "-n", 40, "--draft", models.draft, "-k", 3, "--seed", 8)
    done = json_inside(models.words, *flags, "--strict")
    assert done.document["strict"]["width_noise"] < 0.1
    assert "--strict" in done.err
    assert done.document["token_ids"] == json_inside(models.words, *flags).document["token_ids"]
    assert json_inside(models.words, "a b", "-n", 1).document["strict"] is None


SCHEMA = '{"type": "object", "properties": {"a": {"not": {"type": "null"}}}}'


@pytest.mark.parametrize(
    ("flags", "word_of_it"),
    [
        (("--strict", "--verify", "rejection"), "--strict"),
        (("--ignore-eos", "--grammar", "FILE:root ::= [a]"), "--ignore-eos"),
        (("--grammar", "FILE:root ::= nothing"), "nothing"),
        (("--grammar", "FILE:x ::= [a]"), "root"),
        (("--grammar", "missing.gbnf"), "Cannot read missing.gbnf (--grammar)"),
        (("--grammar", "FILE: "), "empty"),
        (("--json-schema", f"FILE:{SCHEMA}"), "not"),
        (("--json-schema", "FILE:[1]"), "object"),
        (("--json-schema", "FILE:{"), "not JSON"),
        (("--json-schema", 'FILE:{"type": "string", "pattern": "(a"}'), "not closed"),
        (("--regex", "a(?=b)"), "look-around"),
        (("--lark", "FILE:start: x"), "x"),
        (("--grammar", "FILE:root ::= [a]", "--json-schema", "FILE:{}"), "one grammar"),
        (("--logit-bias", "seven"), "seven"),
        (("--logit-bias", "99999+1"), "99999"),
        (("--ban", 99999), "99999"),
        (("--typical", 0), "typical"),
        (("--repeat-penalty", 0), "repeat-penalty"),
        (("--dry-base", 0.5), "dry-base"),
        (("--top-n-sigma", -1), "top-n-sigma"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(
    models: Models, flags: tuple[object, ...], word_of_it: str, tmp_path: Path
) -> None:
    done = json_inside(models.words, "a", "-n", 1, *in_files(flags, tmp_path))
    assert (done.code, done.out) == (2, "")
    assert word_of_it in done.err


def test_logprobs_need_a_place(models: Models) -> None:
    done = inside("run", models.words, "a", "--logprobs", 2)
    assert done.code == 2
    assert "--logprobs" in done.err


@pytest.mark.parametrize("option", ["--json-schema", "--grammar", "--lark"])
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "too large"])
def test_a_grammar_is_a_regular_file_of_some_size(models: Models, tmp_path: Path, option: str, kind: str) -> None:
    file = tmp_path / "grammar"
    if kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(b" " * (1 << 21))
    done = specdec("run", models.words, "a", "-n", 1, option, file, memory=8 << 30)
    assert done.code == 2
    assert f"Error: Cannot read {file} ({option}): it is " in done.err


def test_prompts_and_texts_of_any_size_do_not_fill_the_memory(models: Models, tmp_path: Path) -> None:
    fifo = tmp_path / "prompts.jsonl"
    os.mkfifo(fifo)
    for file in (fifo, Path("/dev/zero")):
        done = specdec("bench", models.words, "--draft", "ngram", "--prompts", file, memory=8 << 30)
        assert (done.code, "it is not a regular file" in done.err) == (2, True), done.err
    done = specdec("run", models.words, "-f", "/dev/zero", "-n", 1, memory=8 << 30)
    assert (done.code, "/dev/zero is larger than 67,108,864 bytes." in done.err) == (2, True), done.err


def test_a_schema_on_the_command_line_is_told_to_be_a_file(models: Models) -> None:
    done = inside("run", models.words, "a", "--json-schema", '{"type": "string"}')
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        "Hint: --json-schema takes the name of a file: write the text into one.",
    )
