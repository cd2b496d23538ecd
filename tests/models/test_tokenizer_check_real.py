"""`specdec check` on tokenizers of real models."""

import functools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specdec_cli.commands.check import check
from specdec_cli.errors import ModelError
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.models.tokenizer_check import Report, compare, one_line, refusal
from specdec_cli.models.vocabulary import Vocabulary
from tests import real_models

FAMILIES = (
    "aquila", "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
    "gpt-neox", "llama-bpe", "llama-spm", "mpt", "nomic-bert-moe", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
MATCHING_WITH_NOTES = {("qwen2", "qwen35"), ("qwen35", "qwen2")}

VocabPath = Callable[[str], Path]

app = typer.Typer()
app.command()(check)


@functools.cache
def read(path: Path) -> Vocabulary:
    return read_vocabulary(path)


@pytest.fixture
def pair(vocab_path: VocabPath) -> Callable[[str, str], Report]:
    return lambda target, draft: compare(read(vocab_path(target)), read(vocab_path(draft)))


def severities(report: Report) -> dict[str, str]:
    return {f.rule: f.severity for f in reversed(report.findings)}


def error(report: Report, rule: str) -> tuple[str, str]:
    finding = next(f for f in report.errors if f.rule == rule)
    return finding.target, finding.draft


@pytest.mark.parametrize("target", FAMILIES)
def test_only_equal_families_match(target: str, vocab_path: VocabPath):
    """Each two once, every family as the target of about half of the others."""
    at = FAMILIES.index(target)
    for i, draft in enumerate(FAMILIES):
        if i != at and (i < at) == bool((i + at) % 2) and (target, draft) not in MATCHING_WITH_NOTES:
            continue
        report = compare(read(vocab_path(target)), read(vocab_path(draft)))
        expected = "match with notes" if (target, draft) in MATCHING_WITH_NOTES else "mismatch"
        assert report.verdict == ("match" if draft == target else expected), one_line(report)


def test_gemma_4_and_aya(pair):
    report = pair("gemma-4", "command-r")
    assert error(report, "BOS") == ("2 '<bos>'", "5 '<BOS_TOKEN>'")
    assert error(report, "size") == ("262,144", "256,000")
    told = str(refusal(report))
    assert "token text: 255,992 of 256,000 shared ids have different text, first 5 '[multimodal]'" in told
    assert "BOS (2 '<bos>' vs 5 '<BOS_TOKEN>')" in told


def test_gemma_3_and_aya(vocab_path: VocabPath):
    gemma = read(real_models.need(real_models.gemma3_270m, "Q4_K_M"))
    report = compare(gemma, read(vocab_path("command-r")))
    assert error(report, "vocabulary type") == ("SPM", "BPE")
    assert error(report, "BOS") == ("2 '<bos>'", "5 '<BOS_TOKEN>'")
    assert "vocabulary type: SPM in the target, BPE in the draft." in str(refusal(report))


def test_gemma_3_and_gemma_4(vocab_path: VocabPath):
    gemma = read(real_models.need(real_models.gemma3_270m, "Q4_K_M"))
    assert error(compare(gemma, read(vocab_path("gemma-4"))), "vocabulary type") == ("SPM", "BPE")


@pytest.mark.parametrize(("target", "draft", "longer"), [
    ("llama-spm", "phi-3", "draft"), ("phi-3", "llama-spm", "target"),
])  # fmt: skip
def test_llama_2_and_phi_3(pair, target: str, draft: str, longer: str):
    """llama.cpp lets this pair through: type, BOS and the first 32,000 texts agree."""
    report = pair(target, draft)
    assert severities(report) == {"token type": "note", "size": "error", "EOS": "note", "EOT": "note"}
    finding = report.errors[0]
    assert finding.ids == (32000, 32001, 32006, 32007, 32010)
    assert finding.text == (
        f"{finding.target.replace(',', '')} vs {finding.draft.replace(',', '')}: "
        f"5 of the 64 tokens that only the {longer} has are not padding"
    )
    assert "first 32000 '<|endoftext|>' (control)" in str(refusal(report))


def test_qwen_and_llama_3(pair):
    report = pair("qwen2", "llama-bpe")
    assert error(report, "pre-tokenizer") == ("qwen2", "llama-bpe")
    assert error(report, "add_bos") == ("false", "true")
    assert error(report, "token text") == ("'ith' (normal)", "'00' (normal)")
    assert report.errors[0].n_differing == 127_845


def test_the_same_tokens_cut_in_two_ways(pair):
    """gpt-neox and mpt have one token list; the older file says nothing about the pre-tokenizer."""
    report = pair("gpt-neox", "mpt")
    assert severities(report) == {"pre-tokenizer": "error", "probe text": "error"}
    assert "converting the older file again" in str(refusal(report).hint)


def test_gemma_4_is_compared_at_once(vocab_path: VocabPath):
    """The target file and the draft file are read one by one, so no tuple is the other's."""
    path = vocab_path("gemma-4")
    ours, theirs = read_vocabulary(path), read_vocabulary(path)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        report = compare(ours, theirs)
        seconds.append(time.process_time() - start)
    assert report.verdict == "match"
    assert report.n_shared == 262_144
    assert min(seconds) < 0.1


# --- the command ---


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_match(vocab_path: VocabPath):
    result = run(vocab_path("gpt-2"), vocab_path("gpt-2"))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "tokenizers match: BPE, 50,257 tokens"


def test_command_match_with_notes(vocab_path: VocabPath):
    result = run(vocab_path("qwen2"), vocab_path("qwen35"))
    assert result.exit_code == 8
    assert "note  pre-tokenizer: named qwen2 in the target, qwen35 in the draft" in result.stdout


def test_command_mismatch(vocab_path: VocabPath):
    few, everything = (run(vocab_path("gpt-2"), vocab_path("mpt"), *flag) for flag in ([], ["--all"]))
    assert few.exit_code == everything.exit_code == 4
    assert "      and 50,174 more (--all shows them)" in few.stdout
    assert len(everything.stdout.splitlines()) > 50_000
    assert few.stdout.splitlines()[-2].startswith("tokenizers differ: ")
    assert few.stdout.splitlines()[-1].startswith("translatable with --cross: ")


def test_command_json(vocab_path: VocabPath):
    result = run(vocab_path("llama-spm"), vocab_path("phi-3"), "--json")
    assert result.exit_code == 4
    written = json.loads(result.stdout)
    assert (written["verdict"], written["n_shared"]) == ("translatable", 32_000)
    size = next(f for f in written["findings"] if f["rule"] == "size")
    assert [token["id"] for token in size["tokens"]] == [32000, 32001, 32006, 32007, 32010]
    assert written["draft"]["eos"] == {"id": 32000, "text": "<|endoftext|>"}


def test_command_missing_file(tmp_path: Path):
    result = run(tmp_path / "none.gguf", tmp_path / "none.gguf")
    assert isinstance(result.exception, ModelError)


def test_help_names_the_exit_codes():
    result = run("--help")
    assert all(f"{code}: " in result.stdout for code in (0, 8, 4, 3))


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("gemma-3-270m", "command-r"),
        ("gemma-4", "command-r"),
        ("gemma-3-270m", "gemma-4"),
        ("qwen2", "llama-bpe"),
        ("llama-spm", "phi-3"),
    ],
)
def test_the_docs_quote_the_check(target: str, draft: str, vocab_path: VocabPath) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "pairs.md").read_text(encoding="utf-8")
    row = next(line for line in docs.splitlines() if f"| {target}, {draft} |" in line)
    quotes = re.findall(r"`([^`]*)`", row)
    ours, theirs = (
        real_models.need(real_models.gemma3_270m, "Q4_K_M") if name == "gemma-3-270m" else vocab_path(name)
        for name in (target, draft)
    )
    report = compare(read(ours), read(theirs))
    said = {f"{finding.severity} {finding.rule}: {finding.text}" for finding in report.findings}
    said.add(f"tokenizers differ: {counted(len(report.errors), 'error')} and {counted(len(report.notes), 'note')}")
    assert len(quotes) >= 2
    assert set(quotes) <= said


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
