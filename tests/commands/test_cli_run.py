"""`specdec run`: prompts, limits, sampling, drafts. Every flag changes a number or a text that a user sees."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.settings import LONGEST_AUTO
from tests.cli import (
    CALM,
    COMMAND,
    HEADS,
    PATIENCE,
    VOCAB,
    Models,
    inside,
    json_inside,
    ring,
    specdec,
    text_of,
    traced,
    word,
)
from tests.planted import write_planted

GREEDY = ("--temp", 0)
RING = " a b c d e"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("run"))


def prompt_of(trace: Sequence[dict[str, Any]]) -> str:
    return text_of(trace[0]["prompt_ids"])


# --- where the prompt comes from --------------------------------------------------------------------------


def test_prompt_as_argument_streams_the_text_alone(models: Models) -> None:
    done = specdec("run", models.ends, "a b")
    assert (done.code, done.out) == (0, " c d e")


def test_prompt_from_a_file(models: Models, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("c d", encoding="utf-8")
    assert inside("run", models.ends, "-f", tmp_path / "prompt.txt").out == " e"


def test_file_follows_the_argument(models: Models, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("b c", encoding="utf-8-sig")
    _, trace = traced(tmp_path / "trace", models.ends, "a", "--file", tmp_path / "prompt.txt", stdin="not read")
    assert prompt_of(trace) == "<s> a\n\nb c"


def test_prompt_from_a_pipe(models: Models) -> None:
    assert specdec("run", models.ends, stdin="a b c").out == " d e"


def test_prompt_in_a_locale_that_cannot_read_it(models: Models, tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    trace = tmp_path / "trace"
    assert specdec("run", models.ends, "漢", "-n", 1, "--jsonl", trace, env=plain).code == 0
    assert prompt_of([json.loads(trace.read_text(encoding="utf-8").splitlines()[0])]) == "<s> 漢"


def test_one_token_is_a_prompt(models: Models) -> None:
    done = json_inside(models.no_bos, "a", "-n", 3, *GREEDY)
    assert done.document["prompt_tokens"] == 1
    assert done.document["text"] == " b c d"


def test_empty_prompt_is_refused(models: Models, tmp_path: Path) -> None:
    """Also where BOS or a template would give the model something to read."""
    (tmp_path / "empty").touch()
    for done in (
        inside("run", models.no_bos, ""),
        inside("run", models.chat, ""),
        inside("run", models.ends, "-f", tmp_path / "empty"),
        inside("run", models.ends, stdin=""),
    ):
        assert (done.code, done.out) == (2, "")
        assert "Error: The prompt is empty." in done.err


@pytest.mark.parametrize("content", ["", " \n\t\n", "\ufeff"])
def test_an_empty_file_beside_a_prompt_is_refused(models: Models, tmp_path: Path, content: str) -> None:
    """`"Sum up:" -f empty.txt` would ask about nothing."""
    (tmp_path / "empty.txt").write_text(content, encoding="utf-8")
    done = inside("run", models.ends, "Sum up:", "-f", tmp_path / "empty.txt")
    assert (done.code, done.out) == (2, "")
    assert "empty.txt is empty." in done.err
    done = specdec("run", models.ends, "Sum up:", "-f", "-", stdin=content)
    assert (done.code, done.out) == (2, "")
    assert "Standard input is empty" in done.err


def test_byte_order_marks_are_no_text(models: Models, tmp_path: Path) -> None:
    """Joined files bring several."""
    (tmp_path / "prompt.txt").write_text("\ufeff\ufeffb c", encoding="utf-8-sig")
    _, trace = traced(tmp_path / "trace", models.ends, "-f", tmp_path / "prompt.txt")
    assert prompt_of(trace) == "<s> b c"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("-f", "FILE"), "", "is not UTF-8 text (byte 2)"),
        ((), b"ab\xff", "Standard input is not UTF-8 text (byte 2)"),
        ((b"ab\xff",), "", "The prompt is not UTF-8 text (byte 2)"),
        (("a", "--system", b"\xff"), "", "--system is not UTF-8 text"),
        (("-f", "/nowhere/prompt.txt"), "", "Cannot read /nowhere/prompt.txt: No such file"),
    ],
)
def test_prompt_that_cannot_be_read(
    models: Models, tmp_path: Path, arguments: tuple[object, ...], stdin: str | bytes, words: str
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"ab\xff")
    done = inside("run", models.ends, *(file if a == "FILE" else a for a in arguments), stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Hint:" in done.err


def test_no_standard_input_at_all_is_an_empty_prompt(models: Models) -> None:
    command = [*COMMAND, "run", str(models.ends)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, preexec_fn=lambda: os.close(0))
    assert done.returncode == 2
    assert done.stderr.startswith(b"Error: The prompt is empty.")


# --- the chat template ------------------------------------------------------------------------------------


def test_template_wraps_the_prompt_and_writes_bos_once(models: Models, tmp_path: Path) -> None:
    _, trace = traced(tmp_path / "trace", models.chat, "d")
    assert prompt_of(trace) == "<s> user:d\nassistant:"


def test_raw_leaves_the_template_out(models: Models, tmp_path: Path) -> None:
    done, trace = traced(tmp_path / "trace", models.chat, "d", "--raw")
    assert prompt_of(trace) == "<s> d"
    assert (done.document["text"], done.err) == (" e", "")


def test_without_a_template_the_prompt_is_continued_and_said_so(models: Models) -> None:
    assert "This model has no chat template" in inside("run", models.ends, "a").err


def test_system_message_reaches_the_template(models: Models, tmp_path: Path) -> None:
    _, trace = traced(tmp_path / "trace", models.chat, "d", "--system", "Be é.")
    assert prompt_of(trace) == "<s> system:Be é.\nuser:d\nassistant:"


@pytest.mark.parametrize("model", ["ends", "chat"])
def test_system_message_without_a_template_is_refused(models: Models, model: str) -> None:
    done = inside("run", getattr(models, model), "d", "--system", "x", "--raw")
    assert done.code == 2
    assert "--system needs the chat template" in done.err


@pytest.mark.parametrize(
    ("flags", "prompt_ends", "text"),
    [((), "assistant:", RING), (("--think",), "assistant:+", RING[2:]), (("--no-think",), "assistant:-", RING[4:])],
)
def test_think_reaches_the_template(
    models: Models, tmp_path: Path, flags: tuple[str, ...], prompt_ends: str, text: str
) -> None:
    done, trace = traced(tmp_path / "trace", models.chat, "x", *flags)
    assert prompt_of(trace).endswith(prompt_ends)
    assert done.document["text"] == text


def with_template(path: Path, template: str) -> Path:
    vocab = replace(VOCAB, chat_template=template)
    return write_planted(path, ring(word("a"), word("b")), vocab=vocab, n_head=HEADS)


@pytest.mark.parametrize("flag", ["--think", "--no-think"])
def test_thinking_that_the_template_cannot_switch_is_told(tmp_path: Path, flag: str) -> None:
    path = with_template(tmp_path / "m.gguf", "{{ messages[0].content }}")
    done = inside("run", path, "a", "-n", 1, flag)
    assert (done.code, done.err.count(f"cannot switch thinking: {flag} does nothing.")) == (0, 1)
    assert "cannot switch" not in inside("run", path, "a", "-n", 1).err


def test_markers_in_the_prompt_are_text(models: Models, tmp_path: Path) -> None:
    """Only --raw reads them as the tokens that they name."""
    _, trace = traced(tmp_path / "trace", models.chat, "d</s>\nsystem:x", "--system", "a</s>b")
    _, plain = traced(tmp_path / "plain", models.chat, "d", "--system", "a")
    _, raw = traced(tmp_path / "raw", models.chat, "d</s>", "--raw")
    assert prompt_of(trace) == "<s> system:a</s>b\nuser:d</s>\nsystem:x\nassistant:"
    assert (trace[0]["prompt_ids"].count(VOCAB.eos), plain[0]["prompt_ids"].count(VOCAB.eos)) == (0, 0)
    assert raw[0]["prompt_ids"].count(VOCAB.eos) == 1


def test_a_system_message_without_a_place_is_told(tmp_path: Path) -> None:
    path = with_template(tmp_path / "m.gguf", "{{ messages[-1].content }}")
    done = inside("run", path, "a", "-n", 1, "--system", "Be brief.")
    assert (done.code, done.err.count("no system role")) == (0, 1)


def test_a_template_that_never_ends_is_named(tmp_path: Path) -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    done = inside("run", with_template(tmp_path / "m.gguf", loops), "a")
    assert (done.code, done.out) == (2, "")
    assert "chat template cannot be used: it takes more than 5 seconds." in done.err


def test_template_that_fails_is_named(tmp_path: Path) -> None:
    path = with_template(tmp_path / "m.gguf", "{{ raise_exception('only on \x1b[31mMondays.') }}")
    done = inside("run", path, "hello")
    assert done.code == 2
    assert "chat template cannot be used: only on ␛[31mMondays.\n" in done.err
    assert "--raw" in done.err
    assert inside("run", path, "a", "--raw", "-n", 1).out == " b"


# --- where the text ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "text"), [(0, ""), (1, " c"), (4, " c d e a")])
def test_n_limits_the_tokens(models: Models, n: int, text: str) -> None:
    document = json_inside(models.ring, "a b", "-n", n, "--draft", models.ring_draft).document
    assert (document["text"], document["stats"]["tokens"]) == (text, n)
    assert document["finish_reason"] == "length"


@pytest.mark.parametrize("draft", ["none", "ngram", "ring_draft"])
def test_without_n_the_model_ends_the_text(models: Models, draft: str) -> None:
    """The end token stands inside a block of drafts, or right after it: nothing after it is kept or counted."""
    path = getattr(models, draft, draft)
    document = json_inside(models.ends, "a b c d e a", "--draft", path, "-k", 8).document
    assert document["text"] == " b c d e"
    assert document["finish_reason"] == "stop"
    assert document["token_ids"][-1] == VOCAB.eos
    assert document["stats"]["tokens"] == 5


@pytest.mark.parametrize(
    ("stops", "text", "draft"),
    [
        (("c d",), " b ", "none"),
        (("c d",), " b ", "ring_draft"),
        (("zz", "e a b c"), " b c d ", "ring_draft"),
        ((" b",), "", "ring_draft"),
    ],
)
def test_stop_strings_across_token_borders(models: Models, stops: tuple[str, ...], text: str, draft: str) -> None:
    flags = [part for stop in stops for part in ("--stop", stop)]
    document = json_inside(models.ring, "a", *flags, "--draft", getattr(models, draft, draft)).document
    assert document["text"] == text
    assert document["settings"]["stop"] == list(stops)
    assert document["finish_reason"] == "stop"


@pytest.mark.parametrize("draft", ["none", "ngram", "ring_draft"])
def test_full_context_ends_the_text(models: Models, draft: str) -> None:
    document = json_inside(models.ring, "a b", "--ctx", 12, "-k", 11, "--draft", getattr(models, draft, draft)).document
    assert document["finish_reason"] == "context"
    assert document["stats"]["tokens"] == 12 - document["prompt_tokens"] == 9
    assert document["text"] == " c d e a b c d e a"


def test_full_context_is_said(models: Models) -> None:
    assert "context full" in inside("run", models.ring, "a b", "--ctx", 12).err


@pytest.mark.parametrize("ctx", [3, 2, 1])
def test_prompt_that_leaves_no_room_is_refused(models: Models, ctx: int) -> None:
    done = inside("run", models.ring, "a b", "--ctx", ctx)
    assert (done.code, done.out) == (2, "")
    assert f"The prompt has 3 tokens and the context {ctx}" in done.err


# --- the same seed, the same text -------------------------------------------------------------------------


def test_same_seed_same_text_whoever_drafts(models: Models) -> None:
    def ids(*flags: object) -> list[int]:
        return json_inside(models.words, "a b c", "-n", 48, "--seed", 7, *flags).document["token_ids"]

    plain = ids("--draft", "none")
    assert ids("--draft", "ngram") == plain
    for k in (0, 1, 8, 511):
        assert ids("--draft", models.draft, "-k", k) == plain


def test_seeds_differ_and_a_random_one_is_told(models: Models) -> None:
    first, second = (json_inside(models.words, "a", "-n", 16).document for _ in range(2))
    seed = first["settings"]["seed"]
    assert seed != second["settings"]["seed"]
    assert first["token_ids"] != second["token_ids"]
    assert json_inside(models.words, "a", "-n", 16, "--seed", seed).document["token_ids"] == first["token_ids"]


def test_plain_text_is_the_text_of_the_document(models: Models) -> None:
    flags = (models.words, "a b", "--draft", models.draft, "-n", 30, "--seed", 3)
    assert inside("run", *flags).out == json_inside(*flags).document["text"]


# --- sampling ---------------------------------------------------------------------------------------------


def test_sampling_flags_change_the_text(models: Models) -> None:
    def ids(*flags: object) -> list[int]:
        return json_inside(models.words, "a", "-n", 16, "--seed", 1, *flags).document["token_ids"]

    greedy, default = ids(*GREEDY), ids()
    assert greedy != default
    assert ids("--top-k", 1) == ids("--top-p", 1e-6) == ids("--min-p", 1) == ids("--temp", 1e-6) == greedy
    uncut = ("--temp", 2, "--top-k", 0, "--top-p", 1, "--min-p", 0)
    assert len({tuple(ids(*uncut, *cut)) for cut in ([], ["--top-k", 3], ["--top-p", 0.3], ["--min-p", 0.3])}) == 4


def test_sampling_settings_are_told(models: Models) -> None:
    flags = ("--temp", 0.5, "--top-k", 7, "--top-p", 0.9, "--min-p", 0.01, "--seed", 12)
    settings = json_inside(models.words, "a", "-n", 1, *flags).document["settings"]
    assert settings["sampling"] == asdict(SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.01))
    assert settings["seed"] == 12


def test_sampling_defaults_are_those_of_llama_cpp(models: Models) -> None:
    sampling = json_inside(models.words, "a", "-n", 1).document["settings"]["sampling"]
    assert sampling == {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical": 1.0,
        "top_n_sigma": 0.0,
        "repeat_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repeat_last_n": 64,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_last_n": 64,
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--temp", -1), "temperature cannot be -1.0"),
        (("--temp", "nan"), "temperature cannot be nan"),
        (("--top-k", -1), "top-k cannot be -1"),
        (("--top-p", 0), "top-p cannot be 0.0"),
        (("--min-p", 1.5), "min-p cannot be 1.5"),
        (("--seed", -1), "Give 0 or more."),
        (("--seed", 2**64), "or less."),
        (("-n", -1), "Give 0 or more."),
        (("-k", -1), "Invalid -k: '-1'"),
        (("-k", "1.5"), "Give a number of draft tokens, or auto."),
        (("--p-min", 2), "or less."),
        (("--temp", "warm"), "Give a number."),
    ],
)
def test_values_that_cannot_be(models: Models, flags: tuple[object, ...], words: str) -> None:
    done = inside("run", models.words, "a", "-n", 1, *flags)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


# --- drafting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 8, 511])
def test_k_is_the_length_of_a_draft(models: Models, k: int) -> None:
    document = json_inside(models.ring, "a", "-k", k, "--draft", models.ring_draft, "-n", 200, "--ctx", 512).document
    stats = document["stats"]
    assert document["settings"]["k"] == k
    assert len(stats["accepted_per_position"]) == min(k, 196)  # the prompt's token, two of a check, the target's own
    assert stats["accepted"] == stats["drafted"]
    assert stats["speculation_off_reason"] == ("-k 0" if k == 0 else None)


def test_k_that_no_pass_can_hold_is_refused(models: Models) -> None:
    done = inside("run", models.ring, "a", "-k", 256, "--batch", 256, "--draft", models.ring_draft)
    assert (done.code, done.out) == (2, "")
    assert "A draft of 256 tokens does not fit in a pass of 256 tokens (--ubatch)." in done.err
    assert "-k 255" in done.err


def test_draft_length_is_chosen_by_cost_unless_one_is_given(models: Models) -> None:
    flags = (models.ring, "a", "--draft", models.ring_draft, "-n", 60)
    document = json_inside(*flags).document
    settings = document["settings"]
    assert (settings["auto"], settings["k"], settings["drafter"]) == (True, LONGEST_AUTO, "ngram+model")
    assert json_inside(*flags, "--no-ngram").document["settings"]["drafter"] == "model"
    fixed = json_inside(*flags, "-k", 3).document
    assert (fixed["settings"]["auto"], fixed["settings"]["k"], fixed["settings"]["drafter"]) == (False, 3, "model")
    assert document["token_ids"] == fixed["token_ids"]


def test_longest_draft_is_one_that_a_pass_can_hold(models: Models) -> None:
    assert json_inside(models.ring, "a", "-n", 2, "--batch", 8, "--draft", "ngram").document["settings"]["k"] == 7


def test_p_min_shortens_drafts(models: Models) -> None:
    def run(p_min: float) -> dict[str, Any]:
        flags = ("-k", 4, "--draft", models.draft, "-n", 32, "--seed", 5, "--p-min", p_min)
        return json_inside(models.words, "a", *flags).document

    some, half, none = run(0), run(0.3), run(1.0)
    assert some["stats"]["drafted"] > half["stats"]["drafted"] > none["stats"]["drafted"] == 0
    assert some["token_ids"] == half["token_ids"] == none["token_ids"]
    assert [note.split(":")[0] for note in none["notes"]] == ["Nothing was drafted, so this was plain decoding"]


def test_ngram_finds_what_stood_there_before(models: Models) -> None:
    stats = json_inside(models.ring, "a b c d e a b c", "-k", 4, "--draft", "ngram", "-n", 30).stats
    assert stats["accepted"] == stats["drafted"] > 20


def test_ngram_that_finds_nothing_says_so(models: Models) -> None:
    done = inside("run", models.words, "a", "--draft", "ngram", "-n", 9, "--seed", 1)  # no word comes twice
    assert "Nothing was drafted" in done.err


def test_draft_none_is_off_and_says_so(models: Models) -> None:
    done = inside("run", models.ring, "a", "--draft", "none", "-n", 3)
    assert done.err.endswith("speculation OFF (--draft none)\n")
    assert " accepted" not in done.err
    assert " plain" not in done.err


def test_draft_that_never_fits_is_given_up(models: Models) -> None:
    done = inside("run", models.ring, "a", "-k", 4, "--draft", models.draft, "-n", 60, "--seed", 1)
    assert done.out == RING[2:] + RING * 11 + " a"
    assert "speculation OFF (no draft token accepted in 16 drafts in a row)" in done.err


def test_draft_context_that_is_smaller_only_ends_the_drafting(models: Models) -> None:
    flags = (models.ring, "a b", "-k", 4, "--ctx", 40, "--draft", models.ring_draft, "--ctx-draft", 12)
    document = json_inside(*flags).document
    assert document["models"]["draft"]["n_ctx"] == 12
    assert document["finish_reason"] == "context"
    assert document["stats"]["tokens"] == 37
    assert document["stats"]["drafted"] > 0
    assert document["stats"]["speculation_off_reason"] == "the draft's context of 12 tokens is full (--ctx-draft)"
    assert "speculation OFF (the draft's context" in inside("run", *flags).err


@pytest.mark.parametrize("draft", ["ring_draft", "mamba"])
def test_recurrent_target_is_drafted_for(models: Models, draft: str) -> None:
    flags = (models.mamba, "a b c", "-n", 12, "--seed", 3)
    plain = json_inside(*flags, "--draft", "none").document
    done = json_inside(*flags, "-k", 4, "--draft", getattr(models, draft), "--force")
    assert done.document["token_ids"] == plain["token_ids"]
    assert done.document["stats"]["drafted"] > 0
    assert done.document["stats"]["accepted"] == (0 if draft == "ring_draft" else done.document["stats"]["drafted"])
    assert "a rejection restores a checkpoint of their state" in " ".join(done.err.split())


def test_recurrent_draft_is_used(models: Models) -> None:
    done = inside("run", models.ring, "a", "-n", 5, "--draft", models.mamba, *GREEDY)
    assert (done.code, done.out) == (0, RING[2:] + " a")
    assert "speculation OFF" not in done.err
    assert "undone with checkpoints of their state" in " ".join(done.err.split())


def test_draft_that_is_not_smaller_needs_force(models: Models) -> None:
    done = inside("run", models.ring_draft, "a", "-n", 2, "--draft", models.ring)
    assert (done.code, done.out) == (2, "")
    assert "The draft is not smaller than the target (5 MB vs. 1 MB)" in done.err
    forced = inside("run", models.ring_draft, "a", "-n", 2, "--draft", models.ring, "--force")
    assert (forced.code, forced.out) == (0, " b c")
    assert "The draft has more parameters than the target" in forced.err


def test_pair_with_little_to_gain_is_told(models: Models) -> None:
    done = inside("run", models.ring, "a", "-n", 2, "--draft", models.ring_draft)
    assert "The target is only 3.8 times the size of the draft" in done.err
    assert "drafting rarely pays" not in inside("run", models.words, "a", "-n", 2, "--draft", models.draft).err


# --- tokenizers -------------------------------------------------------------------------------------------


def test_other_tokenizer_is_refused_before_a_token(models: Models) -> None:
    done = inside("run", models.ring, "a", "--draft", models.other_words)
    assert (done.code, done.out) == (4, "")
    assert "other-words.gguf (draft) differs from that of ring.gguf (target)" in done.err
    assert "token text: 30 of 320 shared ids have different text" in done.err
    assert "--draft ngram" in done.err
    assert inside("run", models.ring, "a", "--draft", "ngram", "-n", 2).code == 0


def test_force_does_not_overrule_the_tokenizers(models: Models) -> None:
    assert inside("run", models.ring, "a", "--draft", models.other_words, "--force").code == 4


def test_padding_is_ignored_and_told_in_a_line(models: Models) -> None:
    done = inside("run", models.ring, "a", "-n", 5, "--draft", models.padded)
    assert (done.code, done.out) == (0, RING[2:] + " a")
    assert "tokenizers match: SPM, 320 tokens; size: 320 vs 328: 8 padding rows, ignored\n" in done.err


def test_verdict_stands_in_the_document(models: Models) -> None:
    document = json_inside(models.ring, "a", "-n", 5, "--draft", models.renamed_marker).document
    assert document["models"]["tokenizers"].startswith("tokenizers match with notes: SPM, 320 tokens; token text: 1 of")
    assert json_inside(models.ring, "a", "-n", 5).document["models"]["tokenizers"] is None


# --- presets ----------------------------------------------------------------------------------------------


@pytest.fixture
def preset(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(
        f"description: planted\nlicence: MIT\nk: 3\nsystem: Be brief.\nsampling: {{temperature: 0.5}}\n"
        f"target: {{path: {models.chat}}}\ndraft: {{path: {models.ring_draft}}}\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("SPECDEC_CONFIG", str(tmp_path / "config"))
    return "tiny"


def test_preset_brings_its_pair_and_settings(preset: str, models: Models, tmp_path: Path) -> None:
    done, trace = traced(tmp_path / "trace", preset, "x")
    document = done.document
    assert document["models"]["draft"]["path"] == str(models.ring_draft)
    assert document["settings"]["drafter"] == "ngram+model"
    assert document["settings"]["sampling"] == asdict(SamplingParams(temperature=0.5))
    assert document["settings"]["system"] == "Be brief."
    assert prompt_of(trace) == "<s> system:Be brief.\nuser:x\nassistant:"


def test_flags_stand_above_the_preset(preset: str, tmp_path: Path) -> None:
    flags = ("-k", 2, "--temp", 1, "--draft", "ngram", "--system", "")
    done, trace = traced(tmp_path / "trace", preset, "x", *flags)
    settings = done.document["settings"]
    assert (settings["k"], settings["sampling"]["temperature"], settings["drafter"]) == (2, 1.0, "ngram")
    assert prompt_of(trace) == "<s> user:x\nassistant:"


def test_raw_prompt_of_a_preset_has_no_system_message(preset: str) -> None:
    assert inside("run", preset, "d", "--raw").out == " e"


# --- beside plain decoding --------------------------------------------------------------------------------


def test_compare_decodes_the_same_prompt_plainly(models: Models) -> None:
    flags = (models.words, "a b", "--draft", models.draft, "-k", 4, "-n", 60, "--seed", 3)
    document = json_inside(*flags, "--compare").document
    alone = json_inside(*flags).document

    assert document["token_ids"] == alone["token_ids"]
    assert alone["compare"] is None
    compare, stats = document["compare"], document["stats"]
    assert (compare["same_text"], compare["differs_at_token"]) == (True, None)
    assert compare["seconds"] == stats["decode_seconds"]
    assert compare["plain_seconds"] > 0
    assert compare["plain_tokens_per_second"] == pytest.approx(59 / compare["plain_seconds"])
    assert compare["speedup"] == pytest.approx(compare["plain_seconds"] / compare["seconds"])


def test_compare_is_told_after_the_answer(models: Models) -> None:
    flags = (models.words, "a b", "--draft", models.draft, "-k", 4, "-n", 60, "--seed", 3)
    *_, glance, drafted, plain, verdict = inside("run", *flags, "--compare").err.splitlines()

    assert glance.startswith("60 tokens · ")
    for name, line in (("drafted", drafted), ("plain", plain)):
        assert re.fullmatch(rf"{name}: +60 tokens, [\d.]+ m?s after the first, [\d.]+ tok/s", line)
    assert re.fullmatch(r"identical text, [\d.]+x plain decoding(: slower)?", verdict)


def test_texts_that_differ_are_told_from_where_on(models: Models) -> None:
    """Rejection keeps the distribution, so its text parts from plain decoding's."""
    flags = (models.words, "a b", "--draft", models.draft, "-k", 4, "-n", 60, "--seed", 3, "--verify", "rejection")
    compare = json_inside(*flags, "--compare").document["compare"]

    assert compare["same_text"] is False
    err = inside("run", *flags, "--compare").err
    assert f"the texts differ from token {compare['differs_at_token']} on, as --verify rejection keeps only" in err


# --- Ctrl-C without a terminal ----------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_keeps_the_text_and_the_summary(models: Models, number: signal.Signals, code: int) -> None:
    command = [*COMMAND, "run", str(models.endless), "a", "--ctx", "20000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | CALM
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(10)
        asked = time.monotonic()
        process.send_signal(number)
        rest, err = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - asked < 5
    assert process.returncode == code
    text = first + rest
    assert text == (" b c d e a" * (len(text) // 10 + 1))[: len(text)]
    assert "interrupted" in err
    assert " tok/s" in err
    assert "Traceback" not in err
    assert "Error" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_template_that_hangs_can_be_stopped(tmp_path: Path, number: int, code: int) -> None:
    """As a terminal does it: the whole process group has the signal."""
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    command = [*COMMAND, "run", str(with_template(tmp_path / "m.gguf", loops)), "a", "--log", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        until = time.monotonic() + PATIENCE
        while "sched_reserve: reserve took" not in _text_of(tmp_path / "log") and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(1)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (code, b"")
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_interrupted_document_is_whole(models: Models, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = [*COMMAND, "run", str(models.endless), "a", "--ctx", "20000", "--json", "--jsonl", str(trace)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | CALM
    ) as process:
        until = time.monotonic() + PATIENCE
        while not (trace.exists() and trace.stat().st_size > 5000) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    document = json.loads(out)
    assert document["finish_reason"] == "interrupt"
    assert len(document["token_ids"]) == document["stats"]["tokens"] > 5
    assert json.loads(trace.read_text().splitlines()[-1])["finish_reason"] == "interrupt"
    assert "Traceback" not in err


# --- what a first visitor stumbled over ---------------------------------------------------------------------


def test_standard_input_follows_the_prompt_when_asked_for(models: Models, tmp_path: Path) -> None:
    _, trace = traced(tmp_path / "trace", models.words, "a", "-f", "-", "--raw", "-n", 1, stdin="b")
    assert prompt_of(trace) == "<s> a\n\nb"


def test_blanks_are_no_prompt(models: Models) -> None:
    done = inside("run", models.words, "  ")
    assert (done.code, done.err.splitlines()[-2]) == (2, "Error: The prompt is empty.")


@pytest.mark.parametrize(("draft", "hint"), [("ngarm", "Did you mean 'ngram'?"), ("", "Give --draft a GGUF file")])
def test_a_mistyped_drafter_is_told(models: Models, draft: str, hint: str) -> None:
    done = inside("run", models.words, "a", "--draft", draft)
    assert done.code == 2
    assert f"Invalid --draft: '{draft}' is neither" in done.err
    assert hint in done.err


def test_a_k_far_too_large_is_named_as_it_was_typed(models: Models) -> None:
    done = inside("run", models.words, "a", "-k", 100000, "--draft", models.draft)
    assert done.code == 2
    assert "A draft of 100000 tokens" in done.err


def test_notes_on_the_whole_come_after_the_summary(models: Models) -> None:
    done = inside("run", models.words, "a", "-n", 9, "--draft", models.draft, "--p-min", 1, "--no-ngram", "--seed", 1)
    assert done.err.index("9 tokens") < done.err.index("Nothing was drafted")
