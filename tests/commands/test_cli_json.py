"""`specdec run --json` and `--jsonl`: one document, one trace, and both tell the same story."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_cli import __version__
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.generation.trace import stats_document
from specdec_cli.ui.view import Header
from tests.cli import CALM, COMMAND, PATIENCE, Done, Models, inside, json_inside, run_json, traced

Number = int | float
Story = tuple[Done, list[dict[str, Any]]]

FIELDS: dict[str, Any] = {
    "text": str,
    "token_ids": list[int],
    "origins": list[str],
    "logprobs": None,
    "finish_reason": str,
    "grammar_complete": None,
    "prompt_tokens": int,
    "notes": list[str],
    "settings": dict,
    "models": dict,
    "strict": None,
    "versions": dict,
    "stats": dict,
    "compare": None,
}
STATS: dict[str, Any] = {
    "tokens": int,
    "passes": int,
    "drafted": int,
    "accepted": int,
    "acceptance": float,
    "tokens_per_pass": float,
    "drafted_per_position": list[int],
    "accepted_per_position": list[int],
    "sources": dict,
    "decode_seconds": float,
    "tokens_per_second": float,
    "plain_tokens_per_second_estimate": float,
    "speedup_estimate": float,
    "speedup_estimate_spread": float,
    "ttft_seconds": float,
    "draft_seconds": float,
    "verify_seconds": float,
    "other_seconds": float,
    "speculation_off_reason": None,
    "target_tokens_evaluated": int,
    "target_read_tokens": int,
    "target_read_seconds": float,
    "draft_tokens_evaluated": int,
    "draft_read_tokens": int,
    "draft_read_seconds": float,
}
MODEL: dict[str, Any] = {
    "path": str,
    "parameters": int,
    "weights_bytes": int,
    "cache_bytes": int,
    "layers": int,
    "layers_on_gpu": int,
    "n_ctx": int,
    "threads": int,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("json"))


@pytest.fixture(scope="module")
def story(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run with a draft that is right now and then, and its trace."""
    flags = (models.words, "a b c", "-k", 4, "--draft", models.draft, "-n", 60, "--seed", 4)
    return traced(tmp_path_factory.mktemp("story") / "trace.jsonl", *flags)


def rounds_of(trace: list[dict[str, Any]]) -> list[Round]:
    rounds = []
    for line in trace:
        if line["type"] == "round":
            fields = {key: value for key, value in line.items() if key not in ("type", "spans")}
            rounds.append(Round(**{**fields, "drafted": tuple(fields["drafted"]), "logprobs": ()}))
    return rounds


def assert_typed(document: dict[str, Any], types: dict[str, Any]) -> None:
    assert list(document) == list(types)
    for key, kind in types.items():
        value = document[key]
        if kind in (list[int], list[str]):
            assert isinstance(value, list)
            assert all(type(item) is kind.__args__[0] for item in value), key
        elif kind is None:
            assert value is None, key
        else:
            assert type(value) is kind, key


# --- the document -----------------------------------------------------------------------------------------


def test_document_has_every_field(story: Story) -> None:
    document = story[0].document
    assert_typed(document, FIELDS)
    assert_typed(document["stats"], STATS)
    for which in ("target", "draft"):
        assert_typed(document["models"][which], MODEL)
    assert document["models"]["drafter"] == "model"


def test_counts_fit_one_another(story: Story) -> None:
    document = story[0].document
    stats, origins = document["stats"], document["origins"]
    assert len(origins) == len(document["token_ids"]) == stats["tokens"] == 60
    assert origins.count("draft") == stats["accepted"] == sum(stats["accepted_per_position"])
    assert stats["drafted"] == sum(stats["drafted_per_position"])
    assert origins.count("target") == stats["passes"]
    assert stats["acceptance"] == pytest.approx(stats["accepted"] / stats["drafted"])
    assert stats["tokens_per_pass"] == pytest.approx(60 / stats["passes"])
    assert stats["tokens_per_second"] == pytest.approx(59 / stats["decode_seconds"])
    parts = ("draft_seconds", "verify_seconds", "other_seconds")
    assert sum(stats[part] for part in parts) == pytest.approx(stats["decode_seconds"])


def test_no_token_is_evaluated_twice(story: Story) -> None:
    document = story[0].document
    stats = document["stats"]
    # Everything but the last token is evaluated once; a rejected draft token is evaluated and thrown away.
    assert stats["target_tokens_evaluated"] == document["prompt_tokens"] + 59 + stats["drafted"] - stats["accepted"]


def test_versions_and_settings(story: Story) -> None:
    document = story[0].document
    assert document["versions"]["specdec"] == __version__
    assert document["versions"]["numpy"] == np.__version__
    assert {"python", "platform", "llama_cpp_python", "llama_cpp", "llama_cpp_features"} < set(document["versions"])
    assert document["settings"]["max_tokens"] == 60
    assert document["settings"]["drafter"] == "model"


def test_without_a_draft_rates_are_null(models: Models) -> None:
    document = json_inside(models.ring, "a", "-n", 5).document
    assert document["models"]["draft"] is None
    stats = document["stats"]
    assert (stats["acceptance"], stats["drafted"], stats["accepted_per_position"]) == (None, 0, [])
    assert stats["speculation_off_reason"] == "--draft none"
    assert stats["speedup_estimate"] is stats["plain_tokens_per_second_estimate"] is None
    assert document["origins"] == ["target"] * 5


def test_nothing_generated_is_a_document_too(models: Models) -> None:
    document = json_inside(models.ring, "a", "-n", 0).document
    assert (document["text"], document["token_ids"], document["origins"]) == ("", [], [])
    assert document["stats"]["ttft_seconds"] is document["stats"]["tokens_per_second"] is None


def test_a_refusal_prints_no_document(models: Models) -> None:
    done = json_inside(models.ring, "a", "--draft", models.other_words)
    assert (done.code, done.out) == (4, "")


@pytest.mark.parametrize("env", [{}, {"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_document_is_ascii_whatever_the_model_writes(models: Models, env: dict[str, str]) -> None:
    """A C1 control would be obeyed by a terminal, and other letters need not exist in the locale."""
    done = run_json(models.wide, "x", "-n", 18, env=env)
    assert done.document["text"] == "é漢😀é漢😀"
    assert done.out.isascii()


def test_utf8_is_never_cut(models: Models, tmp_path: Path) -> None:
    """One byte a token: a character is whole with its last byte, and half of one at the limit is left out."""
    for draft in ("none", "ngram"):
        done, trace = traced(tmp_path / draft, models.wide, "é漢😀é", "-n", 12, "--draft", draft)
        assert done.document["text"] == "漢😀é漢"
        assert "\ufffd" not in "".join(text for line in trace[1:] for text, _ in line["spans"])
    assert json_inside(models.wide, "x", "-n", 4).document["text"] == "é"


# --- the trace --------------------------------------------------------------------------------------------


def test_trace_has_a_header_rounds_and_an_end(story: Story) -> None:
    done, trace = story
    assert [line["type"] for line in trace] == ["header", *["round"] * done.stats["passes"], "end"]
    header = Header.from_fields(trace[0]["header"])
    assert header.prompt_tokens == done.document["prompt_tokens"] == len(trace[0]["prompt_ids"])
    assert trace[0]["settings"] == done.document["settings"]


def test_trace_tells_the_tokens(story: Story) -> None:
    done, trace = story
    rounds = rounds_of(trace)
    assert [token for r in rounds for token in r.tokens] == done.document["token_ids"]
    assert [origin for r in rounds for origin in r.origins] == done.document["origins"]
    assert [r.finish for r in rounds if r.finish] == [done.document["finish_reason"]]


def test_trace_tells_the_text(story: Story) -> None:
    done, trace = story
    spans = [span for line in trace[1:] for span in line["spans"]]
    assert "".join(text for text, _ in spans) == done.document["text"]
    assert {origin for _, origin in spans} == {"draft", "target"}


def test_trace_replays_to_the_statistics(story: Story) -> None:
    done, trace = story
    stats = RunStats()
    for round_ in rounds_of(trace):
        stats.add(round_)
    replayed = stats_document(stats)
    assert replayed == {key: value for key, value in done.stats.items() if key in replayed}
    assert trace[-1]["stats"] == done.stats


def test_trace_without_json(models: Models, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = inside("run", models.ends, "a", "--jsonl", path, "--stop", "e")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert "".join(text for line in lines[1:] for text, _ in line["spans"]) == done.out == " b c d "
    assert lines[-1]["finish_reason"] == "stop"


# --- what else is printed ---------------------------------------------------------------------------------


def test_json_keeps_stderr_for_notes(models: Models) -> None:
    quiet = json_inside(models.chat, "a", "--draft", models.ring_draft, "--draft", "none")
    assert quiet.err == ""
    paired = json_inside(models.words, "a", "-n", 4, "-k", 4, "--raw", "--draft", models.draft)
    assert paired.err == "tokenizers match: SPM, 320 tokens\n"


@pytest.mark.parametrize("is_one_pipe", [False, True])
def test_notes_in_the_same_pipe_begin_a_line(models: Models, is_one_pipe: bool) -> None:
    """A pipe of its own gets the model's text and nothing else."""
    command = [*COMMAND, "run", str(models.ring), "a", "-n", "9", "--raw"]
    errors = subprocess.STDOUT if is_one_pipe else subprocess.DEVNULL
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | CALM, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == " b c d e a b c d e"
    assert [line.split(" · ")[0] for line in lines[1:2]] == (["9 tokens"] if is_one_pipe else [])


@pytest.mark.parametrize("words", [("-n", "200"), ("-n", "200", "--json"), ("-n", "1", "--json"), None])
def test_reader_that_goes_away_sees_no_traceback(models: Models, words: tuple[str, ...] | None) -> None:
    """Also of a text so short that it is only written at the end."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "run", str(models.ring), "a", *words] if words is not None else [*COMMAND, "--version"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=os.environ | CALM, timeout=PATIENCE, check=False
    )
    os.close(writer)
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
