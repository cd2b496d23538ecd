"""Tests of bench_prompts.jsonl, the prompts that `specdec bench` measures with."""

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from specdec_cli.bench import prompt_set as kinds

FILE = Path(kinds.__file__).parent / "bench_prompts.jsonl"
KINDS = ["code", "edit", "summary", "qa", "math", "translation", "json", "story", "chat"]
LANGUAGES = {"en", "ru", "zh"}
MAX_CHARS = 2500
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
HAN = re.compile(r"[\u4e00-\u9fff]")
CYRILLIC = re.compile(r"[\u0400-\u04ff]")


def lines():
    return FILE.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def load():
    return [json.loads(line) for line in lines()]


def text_of(record):
    return "\n\n".join(record["turns"]) if "turns" in record else record["prompt"]


def of_kind(kind):
    return [r for r in load() if r["kind"] == kind]


def fences(language=None):
    return [
        pytest.param(body, id=f"edit{n}-{lang}")
        for n, r in enumerate(of_kind("edit"))
        for lang, body in FENCE.findall(r["prompt"])
        if language in (None, lang)
    ]


def test_every_line_is_a_json_object():
    raw = FILE.read_bytes()
    assert not raw.startswith(b"\xef\xbb\xbf")
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    assert not raw.endswith(b"\n\n")
    for line in lines():
        assert isinstance(json.loads(line), dict)


def test_keys_and_their_order():
    for line in lines():
        keys = [k for k, _ in json.loads(line, object_pairs_hook=list)]
        last = "turns" if json.loads(line)["kind"] == "chat" else "prompt"
        assert keys == ["kind", "language", last]


def test_kinds_and_languages_are_known():
    records = load()
    assert {r["kind"] for r in records} == set(KINDS)
    assert {r["language"] for r in records} == LANGUAGES


@pytest.mark.parametrize("kind", KINDS)
def test_three_to_five_of_each_kind_and_the_first_is_english(kind):
    records = of_kind(kind)
    assert 3 <= len(records) <= 5
    assert records[0]["language"] == "en"


def test_records_of_a_kind_stand_together():
    kinds = [r["kind"] for r in load()]
    assert list(dict.fromkeys(kinds)) == KINDS
    assert kinds == sorted(kinds, key=KINDS.index)


def test_spread_of_languages():
    records = load()
    counts = Counter(r["language"] for r in records)
    assert 30 <= len(records) <= 36
    assert 20 <= counts["en"] <= 24
    assert 5 <= counts["ru"] <= 7
    assert 4 <= counts["zh"] <= 6
    for language in ("ru", "zh"):
        assert len({r["kind"] for r in records if r["language"] == language}) >= 4


def test_no_duplicates():
    seen = Counter()
    for r in load():
        for text in r.get("turns") or [r["prompt"]]:
            seen[" ".join(text.lower().split())] += 1
    assert [text for text, n in seen.items() if n > 1] == []


def test_texts_are_clean_and_within_the_limit():
    for r in load():
        for text in r.get("turns") or [r["prompt"]]:
            assert isinstance(text, str)
            assert text == text.strip()
            assert len(text) >= 40
            assert "\ufffd" not in text
            assert "\t" not in text
        assert len(text_of(r)) <= MAX_CHARS


def test_chat_has_three_turns():
    for r in of_kind("chat"):
        assert isinstance(r["turns"], list)
        assert len(r["turns"]) == 3


def test_the_script_fits_the_language():
    for r in load():
        text = text_of(r)
        if r["language"] == "zh":
            assert HAN.search(text[:20])
            assert len(HAN.findall(text)) > 60
            outside = re.sub(r"[A-Za-z0-9_. -]+", "", text)
            assert not re.search("[,;:?!]", re.sub(r"\d\d:\d\d:\d\d", "", text)), outside
        elif r["language"] == "ru":
            assert CYRILLIC.search(text[:20])
            assert not HAN.search(text)
        else:
            assert not CYRILLIC.search(text)
            assert not HAN.search(text)


@pytest.mark.parametrize(("kind", "low", "high"), [("summary", 150, 250), ("qa", 150, 250), ("translation", 60, 120)])
def test_length_of_the_passages(kind, low, high):
    """The passage is the longest paragraph; for Chinese, two characters count as a word."""
    for r in of_kind(kind):
        passage = max(r["prompt"].split("\n\n"), key=len)
        size = len(HAN.findall(passage)) / 2 if r["language"] == "zh" else len(re.findall(r"\w[\w'’-]*", passage))
        assert low <= size <= high, (r["language"], size, passage[:40])


def test_every_edit_holds_one_file():
    for r in of_kind("edit"):
        assert len(FENCE.findall(r["prompt"])) == 1
        assert r["prompt"].count("```") == 2


@pytest.mark.parametrize("body", fences())
def test_length_of_the_files_to_edit(body):
    assert 25 <= len(body.splitlines()) <= 45


def test_there_is_python_to_edit():
    assert len(fences("python")) >= 2


@pytest.mark.parametrize("body", fences("python"))
def test_python_to_edit_parses(body):
    assert ast.parse(body).body


@pytest.mark.parametrize("body", fences("python"))
def test_python_to_edit_runs(body, capsys):
    exec(compile(body, "<edit>", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
