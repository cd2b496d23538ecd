"""Profiles: found by bench --tune, used and shown by run, good only for what they were measured on."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from specdec_cli.planning.profile import Profile, ProfileKey, key_for, load_profile, save_profile
from tests.cli import Done, Models, inside

KEY = ProfileKey(("t.gguf", 100), ("d.gguf", 10), "cpu, 2 cores", (), "1.0")
PROFILE = Profile("model", 3, 0.5, 1, 1.25, "2026-01-01")


def test_a_profile_comes_back_as_it_was() -> None:
    assert load_profile(KEY) is None
    file = save_profile(KEY, PROFILE)
    assert load_profile(KEY) == PROFILE
    assert json.loads(file.read_text())["key"]["target"] == ["t.gguf", 100]


def test_one_of_before_caches_were_tuned_is_read() -> None:
    """Its fields are those up to the date."""
    file = save_profile(KEY, PROFILE)
    data = json.loads(file.read_text())
    for name in ("cache_type", "cache_type_draft", "flash_attention"):
        assert data["profile"].pop(name) is None
    file.write_text(json.dumps(data))
    assert load_profile(KEY) == PROFILE
    del data["profile"]["date"]
    file.write_text(json.dumps(data))
    assert load_profile(KEY) is None


def test_what_is_opened_otherwise_is_said() -> None:
    tuned = replace(PROFILE, k="auto", cache_type="q8_0", cache_type_draft="bf16", flash_attention="off")
    save_profile(KEY, tuned)
    assert load_profile(KEY) == tuned
    words = "1 threads, cache q8_0, draft's cache bf16, flash attention off"
    assert str(tuned) == f"model k auto, p-min 0.5, {words} (1.25 times plain decoding, measured 2026-01-01)"
    plain = Profile("none", 0, 0.0, None, 1.0, "2026-01-01", "bf16")
    assert str(plain) == "plain decoding, because no draft pays here, cache bf16 (measured 2026-01-01)"


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, target=("t.gguf", 101)),
        replace(KEY, draft=None),
        replace(KEY, processor="cpu, 4 cores"),
        replace(KEY, devices=("CUDA0",)),
        replace(KEY, build="1.1"),
    ],
)
def test_it_is_for_nothing_else(other: ProfileKey) -> None:
    save_profile(KEY, PROFILE)
    assert load_profile(other) is None


@pytest.mark.parametrize(
    "change",
    [
        {"drafter": "magic"},
        {"k": -1},
        {"k": 2.5},
        {"p_min": 2},
        {"threads": 0},
        {"speedup": "fast"},
        {"more": 1},
        {"k": "many"},
        {"cache_type": "q7"},
        {"cache_type_draft": 8},
        {"flash_attention": True},
        {"k": 10**9},
        {"k": 10**30},
        {"k": True},
        {"threads": 10**9},
        {"speedup": 1e30},
        {"speedup": -1.0},
        {"p_min": math.nan},
        {"date": ["2026"]},
        {"cache_type": ["f16"]},
        {"drafter": ["model"]},
        {"drafter": "none+model"},
        {"drafter": "ngram+ngram"},
        {"drafter": "ngram+model+model"},
        {"date": [[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]},
    ],
)
def test_a_file_that_is_no_profile_is_none(change: dict[str, object]) -> None:
    file = save_profile(KEY, PROFILE)
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "profile": {**data["profile"], **change}}))
    assert load_profile(KEY) is None
    for text in ("half a fi", "[" * 100_000, "{}", "[]", "null"):
        file.write_text(text)
        assert load_profile(KEY) is None
    file.unlink()
    os.mkfifo(file)
    assert load_profile(KEY) is None


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def run(models: Models, *arguments: object) -> Done:
    return inside("run", models.words, "a b", "--raw", "-n", 8, "--seed", 1, "--json", *arguments)


def with_draft(models: Models, *arguments: object) -> Done:
    return run(models, "--draft", models.draft, *arguments)


def test_run_uses_a_profile_says_so_and_writes_the_same(models: Models) -> None:
    before = with_draft(models)
    save_profile(key_for(models.words, models.draft), PROFILE)
    tuned = with_draft(models)
    assert "Using the tuned profile of this pair: model k 3, p-min 0.5, 1 threads (1.25 times" in tuned.err
    settings = tuned.document["settings"]
    assert (settings["k"], settings["p_min"], settings["threads"]) == (3, 0.5, 1)
    assert tuned.document["token_ids"] == before.document["token_ids"]
    given = with_draft(models, "-k", 2, "--p-min", 0, "--threads", 2).document["settings"]
    assert (given["k"], given["p_min"], given["threads"]) == (2, 0.0, 2), "what is given comes first"
    left = with_draft(models, "--no-profile")
    assert "Tuned" not in left.err
    assert left.document["settings"]["k"] == before.document["settings"]["k"]


def test_run_opens_the_caches_of_a_profile(models: Models) -> None:
    tuned = replace(PROFILE, cache_type="f32", cache_type_draft="q8_0", flash_attention="on")
    save_profile(key_for(models.words, models.draft), tuned)
    done = with_draft(models)
    assert "threads, cache f32, draft's cache q8_0, flash attention on (1.25 times" in done.err
    names = ("cache_type", "cache_type_draft", "flash_attention")
    assert [done.document["settings"][name] for name in names] == ["f32", "q8_0", "on"]
    given = with_draft(models, "--kv", "f16", "--kv-draft", "bf16", "--flash-attn", "auto").document["settings"]
    assert [given[name] for name in names] == ["f16", "bf16", "auto"], "what is given comes first"
    left = with_draft(models, "--no-profile").document["settings"]
    assert [left[name] for name in names] == ["f16", "f16", "auto"]


def test_a_draft_that_does_not_pay_is_not_loaded(models: Models) -> None:
    save_profile(key_for(models.words, models.draft), Profile("none", 0, 0.0, None, 1.0, "2026-01-01"))
    plain = with_draft(models)
    assert "Using the tuned profile of this pair: plain decoding, because no draft pays here" in plain.err
    assert plain.document["models"]["draft"] is None
    assert plain.document["stats"]["drafted"] == 0


@pytest.mark.parametrize("drafter", ["eagle3", "mtp", "medusa", "ngram+mtp", "dspark"])
def test_a_profile_that_the_pair_cannot_draft_with_is_left_out(models: Models, drafter: str) -> None:
    """A file of another hand: it ended the run with an error."""
    save_profile(key_for(models.words, models.draft), replace(PROFILE, drafter=drafter))
    done = with_draft(models)
    assert done.code == 0, done.err
    assert "Tuned" not in done.err
    save_profile(key_for(models.words, None), replace(PROFILE, drafter=drafter))
    assert run(models).code == 0


def test_a_drafter_that_is_named_is_not_overruled(models: Models) -> None:
    save_profile(key_for(models.words, None), Profile("ngram", 8, 0.0, None, 1.5, "2026-01-01"))
    assert run(models).document["models"]["drafter"] == "ngram"
    named = run(models, "--draft", "none")
    assert named.document["models"]["drafter"] == "none"
    assert "Tuned" not in named.err


def test_tune_finds_keeps_and_tells(models: Models, tmp_path: Path) -> None:
    pair = (models.words, "--draft", models.draft)
    usual = ("--kinds", "code", "-n", 12, "--repeats", 1, "-k", "1,3", "--threads", 2)
    done = inside("bench", *pair, *usual, "--tune", "--json", tmp_path / "t.json")
    assert done.code == 0, done.err
    assert "Fastest: specdec run " in done.out
    profile = load_profile(key_for(models.words, models.draft))
    assert profile is not None
    cells = json.loads((tmp_path / "t.json").read_text())["cells"]
    assert {cell["p_min"] for cell in cells if cell["drafter"] == "model"} == {0.0, 0.5}
    best = max(cells, key=lambda cell: cell["speedup"])
    if best["speedup"] >= 1.03:
        assert (profile.drafter, profile.k, profile.p_min) == (best["drafter"], best["k"], best["p_min"])
    else:
        assert profile.drafter == "none"
    assert "Testing 2 threads and 1 thread ..." in done.err
    assert ("Testing draft's cache bf16, draft's cache q8_0" in done.err) == (profile.drafter == "model")
    assert (profile.cache_type, profile.flash_attention) == (None, None), "the target's stay as they are"
    assert f"Using the tuned profile of this pair: {profile}" in with_draft(models).err


@pytest.mark.parametrize("drafter", ["ngram+model", "ngram+medusa"])
def test_two_that_take_turns_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, drafter: str) -> None:
    monkeypatch.setenv("SPECDEC_CONFIG", str(tmp_path))
    key = ProfileKey(("target.gguf", 5), ("draft.gguf", 3), "a processor", (), "0.3.36")
    profile = Profile(drafter, "auto", 0.0, 2, 1.4, "2026-11-29")
    save_profile(key, profile)
    assert load_profile(key) == profile
