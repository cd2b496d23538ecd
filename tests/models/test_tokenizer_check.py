"""Every rule of the tokenizer check, on vocabularies of a few tokens."""

import dataclasses
import io
import json
from typing import Any

import pytest

from specdec_cli.commands.check import EXIT_CODES, document
from specdec_cli.models.tokenizer_check import Finding, Report, compare, is_padding, one_line, quoted, refusal
from specdec_cli.models.vocabulary import CONTROL, UNUSED, Vocabulary
from specdec_cli.ui import check_report
from specdec_cli.ui.terminal import Terminal

UNKNOWN, NORMAL, USER_DEFINED, BYTE, RSTRIP = 1 << 0, 1 << 2, 1 << 4, 1 << 5, 1 << 8

TOKENS = (
    (b"<unk>", UNKNOWN),
    (b"<s>", CONTROL),
    (b"</s>", CONTROL),
    (b"<0x0A>", BYTE),
    (b"he", NORMAL),
    (b"llo", NORMAL),
    (b"\xe2\x96\x81\xe2\x96\x81", NORMAL),
    (b"<think>", USER_DEFINED),
    (b"<|im_end|>", CONTROL),
)


def vocabulary(*extra: tuple[bytes, int], changed: dict[int, tuple[bytes, int]] | None = None, **fields: Any):
    tokens = [(changed or {}).get(i, token) for i, token in enumerate((*TOKENS, *extra))]
    base = Vocabulary(
        name="some.gguf",
        kind="SPM",
        pre_tokenizer="default",
        texts=tuple(text for text, _ in tokens),
        attrs=tuple(attr for _, attr in tokens),
        bos=1,
        eos=2,
        eot=8,
        add_bos=True,
        add_eos=False,
        end_tokens=frozenset({2, 8}),
        probe_ids=(1, 4, 5),
    )
    return dataclasses.replace(base, **fields)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def found(report: Report) -> dict[str, str]:
    return {f.rule: f.severity for f in report.findings}


def drawn(report: Report, limit: int | None = check_report.FEW, **options: Any) -> list[str]:
    return [line.plain for line in check_report.lines(report, limit, **options)]


def test_equal_vocabularies_match():
    report = compare(vocabulary(), vocabulary(name="other.gguf"))
    assert report.findings == ()
    assert (report.verdict, report.n_shared) == ("match", 9)
    assert one_line(report) == "tokenizers match: SPM, 9 tokens"


def test_type():
    report = compare(vocabulary(), vocabulary(kind="BPE"))
    finding = only(report)
    assert (finding.rule, finding.severity, finding.target, finding.draft) == (
        "vocabulary type", "error", "SPM", "BPE",
    )  # fmt: skip
    assert report.verdict == "mismatch"


def test_no_tokens_never_match():
    empty = vocabulary(texts=(), attrs=(), kind="none", end_tokens=frozenset(), bos=None, eos=None, eot=None)
    report = compare(empty, empty)
    assert [f.text for f in report.errors] == ["the target has no tokens", "the draft has no tokens"]


# --- token text ---


@pytest.mark.parametrize("token", [3, 4])
def test_text_of_text_tokens_is_an_error(token: int):
    changed = {token: (b"other", TOKENS[token][1])}
    finding = only(compare(vocabulary(), vocabulary(changed=changed)))
    assert (finding.rule, finding.severity, finding.ids) == ("token text", "error", (token,))
    assert finding.draft == f"'other' ({'byte' if token == 3 else 'normal'})"


def test_text_is_compared_from_id_0():
    finding = only(compare(vocabulary(), vocabulary(changed={0: (b"!", NORMAL)})))
    assert (finding.severity, finding.ids) == ("error", (0,))


def test_two_added_tokens_are_text():
    finding = only(compare(vocabulary(), vocabulary(changed={7: (b"<tool_call>", USER_DEFINED)})))
    assert (finding.severity, finding.ids) == ("error", (7,))


@pytest.mark.parametrize(
    "change",
    [
        {8: (b"<|eot_id|>", CONTROL)},
        {0: (b"<unknown>", UNKNOWN)},
        {0: (b"<pad>", CONTROL)},
        {7: (b"[PAD7]", UNUSED)},
        {7: (b"<|reserved_special_token_7|>", CONTROL)},
    ],
)
def test_markers_and_unused_rows_may_be_renamed(change: dict[int, tuple[bytes, int]]):
    report = compare(vocabulary(), vocabulary(changed=change))
    assert report.verdict == "match with notes"
    finding = next(f for f in report.findings if f.rule == "token text")
    assert finding.text == "1 of 9 shared ids differ, all special or unused"
    assert finding.ids == tuple(change)


def test_an_unused_row_is_no_text():
    finding = only(compare(vocabulary(), vocabulary(changed={4: (b"[PAD4]", UNUSED)})))
    assert finding.severity == "error"


@pytest.mark.parametrize("attr", [NORMAL, USER_DEFINED])
def test_spaces_may_be_spelled_in_two_ways(attr: int):
    """Gemma 2 27B and 2B differ in one token like this."""
    finding = only(compare(vocabulary(), vocabulary(changed={6: (b"  ", attr)})))
    assert (finding.severity, finding.ids) == ("note", (6,))
    assert "spell the same text differently" in finding.text


def test_text_and_marker_differences_are_told_apart():
    other = vocabulary(changed={5: (b"y", NORMAL), 8: (b"<|eot|>", CONTROL)}, eot=None, end_tokens=frozenset({2}))
    report = compare(vocabulary(), other)
    assert [(f.severity, f.ids) for f in report.findings if f.rule == "token text"] == [
        ("error", (5,)),
        ("note", (8,)),
    ]


# --- token type ---


def test_type_alone_is_a_note():
    finding = only(compare(vocabulary(), vocabulary(changed={0: (b"<unk>", CONTROL)})))
    assert (finding.rule, finding.severity, finding.ids) == ("token type", "note", (0,))
    assert (finding.target, finding.draft) == ("'<unk>' (unknown)", "'<unk>' (control)")


def test_a_byte_is_not_the_letters_of_its_name():
    finding = only(compare(vocabulary(), vocabulary(changed={3: (b"<0x0A>", NORMAL)})))
    assert (finding.rule, finding.severity, finding.ids) == ("token type", "error", (3,))


def test_flags_that_are_not_types_do_not_matter():
    assert compare(vocabulary(), vocabulary(changed={8: (b"<|im_end|>", CONTROL | RSTRIP)})).findings == ()


# --- size ---


def padding(start: int, n: int, attr: int = UNUSED) -> list[tuple[bytes, int]]:
    return [(b"[PAD%d]" % i, attr) for i in range(start, start + n)]


@pytest.mark.parametrize("attr", [UNUSED, NORMAL, USER_DEFINED, CONTROL])
def test_padding_at_the_end_is_ignored(attr: int):
    longer, shorter = vocabulary(*padding(9, 128, attr)), vocabulary()
    for pair in ((longer, shorter), (shorter, longer)):
        report = compare(*pair)
        assert (report.verdict, report.n_shared) == ("match", 9)
    assert only(compare(longer, shorter)).text == "137 vs 9: 128 padding rows, ignored"
    assert one_line(compare(longer, shorter)) == (
        "tokenizers match: SPM, 9 tokens; size: 137 vs 9: 128 padding rows, ignored"
    )
    assert only(compare(shorter, vocabulary(*padding(9, 1)))).text == "9 vs 10: 1 padding row, ignored"


def test_padding_that_both_have_is_no_difference():
    report = compare(vocabulary(*padding(9, 8)), vocabulary(*padding(9, 4)))
    assert (report.verdict, report.n_shared) == ("match", 13)


@pytest.mark.parametrize("attr", [NORMAL, CONTROL, USER_DEFINED])
def test_real_tokens_at_the_end_are_an_error(attr: int):
    tail = [*padding(9, 2), (b"<|assistant|>", attr), *padding(12, 1)]
    for pair, side in (((vocabulary(), vocabulary(*tail)), "draft"), ((vocabulary(*tail), vocabulary()), "target")):
        finding = only(compare(*pair))
        assert (finding.rule, finding.severity, finding.ids) == ("size", "error", (11,))
        assert f"1 of the 4 tokens that only the {side} has are not padding" in finding.text
        assert "first 11 '<|assistant|>'" in str(refusal(compare(*pair)))


def test_an_end_token_is_not_padding_whatever_its_type_says():
    for fields in ({"eos": 10}, {"eot": 10}, {"end_tokens": frozenset({2, 8, 10})}):
        longer = vocabulary(*padding(9, 2), **fields)
        for report in (compare(longer, vocabulary()), compare(vocabulary(), longer)):
            (finding,) = report.errors
            assert (finding.rule, finding.ids) == ("size", (10,))
            assert "end tokens" not in found(report)


@pytest.mark.parametrize(
    "text",
    [
        "[PAD151936]", "<unused12>", "<|unused_12|>", "[unused3]", "<extra_5>", "<|extra_5|>", "<dummy00002>",
        "<|dummy_3|>", "<|placeholder1|>", "<|reserved_special_token_250|>", "<|reserved_200001|>",
        "<｜place▁holder▁no▁12｜>", "<SPECIAL_20>", ">>UNUSED_7<<",
    ],
)  # fmt: skip
def test_padding_by_its_text(text: str):
    assert is_padding(vocabulary((text.encode(), NORMAL)), 9)


@pytest.mark.parametrize("text", ["<pad>", "<s>", "<|im_start|>", "unused12", "<0x0A>", "<h1>", "[12]", "12", ""])
def test_not_padding(text: str):
    assert not is_padding(vocabulary((text.encode(), CONTROL)), 9)


# --- pre-tokenizer and probe ---


def test_another_pre_tokenizer_with_the_same_effect_is_a_note():
    finding = only(compare(vocabulary(pre_tokenizer="llama-bpe"), vocabulary(pre_tokenizer="smaug-bpe")))
    assert (finding.rule, finding.severity) == ("pre-tokenizer", "note")
    assert (finding.target, finding.draft) == ("llama-bpe", "smaug-bpe")


def test_another_pre_tokenizer_with_another_effect_is_an_error():
    report = compare(vocabulary(), vocabulary(pre_tokenizer="qwen2", probe_ids=(1, 4, 4, 5)))
    assert found(report) == {"pre-tokenizer": "error", "probe text": "error"}


def test_no_pre_tokenizer_is_the_default_one():
    assert compare(vocabulary(), vocabulary(pre_tokenizer=None)).findings == ()


def test_the_probe_text_must_be_encoded_alike():
    finding = only(compare(vocabulary(), vocabulary(probe_ids=(1, 4, 4, 5))))
    assert (finding.rule, finding.severity) == ("probe text", "error")
    assert "2 tokens by the target, 3 by the draft; they diverge at token 2, 5 'llo' vs 4 'he'" in finding.text
    shorter = only(compare(vocabulary(), vocabulary(probe_ids=(1, 4))))
    assert "they diverge at token 2, 5 'llo' vs none" in shorter.text


def test_the_probe_text_is_compared_without_bos_and_eos():
    report = compare(vocabulary(), vocabulary(add_bos=False, add_eos=True, probe_ids=(4, 5, 2)))
    assert "probe text" not in found(report)


# --- BOS, EOS, EOT, end tokens ---


@pytest.mark.parametrize("rule", ["add_bos", "add_eos"])
def test_adding_a_marker_in_one_model_only_is_an_error(rule: str):
    plain = vocabulary(add_bos=False, probe_ids=(4, 5))
    finding = only(compare(plain, dataclasses.replace(plain, **{rule: True})))
    assert (finding.rule, finding.severity) == (rule, "error")
    assert (finding.target, finding.draft) == ("false", "true")


@pytest.mark.parametrize(("rule", "switch", "field"), [("BOS", "add_bos", "bos"), ("EOS", "add_eos", "eos")])
def test_a_marker_matters_where_it_is_added(rule: str, switch: str, field: str):
    for added, severity in ((True, "error"), (False, "note")):
        switches = {"add_bos": False, "add_eos": False, switch: added, "probe_ids": (4, 5)}
        finding = only(compare(vocabulary(**switches), vocabulary(**switches, **{field: 0})))
        assert (finding.rule, finding.severity, finding.draft) == (rule, severity, "0 '<unk>'")


def test_a_missing_marker_is_a_difference():
    report = compare(vocabulary(add_bos=False), vocabulary(add_bos=False, bos=None, eot=None))
    assert found(report) == {"BOS": "note", "EOT": "note"}
    assert {f.draft for f in report.findings} == {"none"}


def test_a_renamed_marker_under_the_same_id_is_a_note():
    report = compare(vocabulary(), vocabulary(changed={1: (b"<bos>", CONTROL)}))
    assert found(report) == {"token text": "note", "BOS": "note"}


def test_base_and_instruct_tokenizers_match_with_notes():
    report = compare(vocabulary(eos=2, end_tokens=frozenset({2})), vocabulary(eos=8))
    assert found(report) == {"EOS": "note", "end tokens": "note"}
    assert report.verdict == "match with notes"
    assert report.findings[-1].ids == (8,)
    assert report.findings[-1].text == "texts end at 8 '<|im_end|>' only in the draft"


# --- what is said about it ---


def test_a_refusal_names_files_rule_values_and_ids():
    changed = {4: (b"x", NORMAL), 5: (b"y", NORMAL)}
    error = refusal(compare(vocabulary(name="big.gguf"), vocabulary(name="small.gguf", changed=changed, bos=0)))
    assert error.exit_code == 4
    assert str(error).splitlines() == [
        "The tokenizer of small.gguf (draft) differs from that of big.gguf (target).",
        "token text: 2 of 9 shared ids have different text, "
        "first 4 'he' (normal) vs 'x' (normal), 5 'llo' (normal) vs 'y' (normal).",
        "Also different: probe text (2 tokens vs 3 tokens), BOS (1 '<s>' vs 0 '<unk>').",
    ]
    assert error.hint is not None
    assert "--draft ngram" in error.hint
    assert "--cross" not in error.hint
    assert "--force" not in error.hint


def test_a_refusal_counts_the_ids_even_if_the_types_differ():
    text = str(refusal(compare(vocabulary(), vocabulary(kind="BPE", changed={4: (b"x", NORMAL)}))))
    assert "vocabulary type: SPM in the target, BPE in the draft.\ntoken text: 1 of 9" in text


def test_a_refusal_of_equal_tokens_points_at_the_conversion():
    hint = refusal(compare(vocabulary(), vocabulary(add_bos=False, probe_ids=(4, 5)))).hint
    assert hint is not None
    assert hint.startswith("The tokens are the same, so converting the older file again")


def test_one_line_with_notes():
    line = one_line(compare(vocabulary(), vocabulary(changed={0: (b"<pad>", CONTROL)})))
    assert line == (
        "tokenizers match with notes: SPM, 9 tokens; token text: 1 of 9 shared ids differ, "
        "all special or unused, first 0 '<unk>' (unknown) vs '<pad>' (control)"
    )


def test_tokens_are_shown_escaped():
    assert quoted(b"\x1b[31m\n") == r"'\x1b[31m\n'"
    assert quoted(b"\xff\xe2\x96\x81a") == r"'\xff▁a'"
    assert quoted("\u202eabc".encode()) == r"'\u202eabc'"
    assert quoted(b"it's") == '"it\'s"'
    assert len(quoted(b"a" * 500)) == 50


def test_nothing_of_the_files_reaches_the_terminal_raw():
    evil = "\x1b]0;x\x07[bold]\n"
    report = compare(
        vocabulary(name=evil, pre_tokenizer=evil), vocabulary(changed={i: (evil.encode(), CONTROL) for i in range(9)})
    )
    texts = [*drawn(report), one_line(report), *str(refusal(report)).splitlines()]
    assert all(text.isprintable() for text in texts)
    assert any("[bold]" in text for text in texts)


def test_the_report_shows_facts_findings_and_verdict():
    lines = drawn(compare(vocabulary(name="big.gguf"), vocabulary(changed={4: (b"hi", NORMAL)}, name="small.gguf")))
    assert lines[:3] == [
        "                  target            draft",
        "file              big.gguf          small.gguf",
        "vocabulary type   SPM               SPM",
    ]
    assert lines[-5:] == [
        "error token text: 1 of 9 shared ids have different text",
        "      id   target        draft",
        "      4    'he' normal   'hi' normal",
        "",
        "tokenizers differ: 1 error",
    ]


def test_many_tokens_are_cut_short_unless_all_are_wanted():
    extra = [(b"x%d" % i, NORMAL) for i in range(50)]
    report = compare(vocabulary(), vocabulary(*extra))
    assert "      and 30 more (--all shows them)" in drawn(report)
    assert sum("'x" in line for line in drawn(report)) == 20
    assert sum("'x" in line for line in drawn(report, None)) == 50
    assert not any("more" in line for line in drawn(report, None))


def test_the_report_in_ascii():
    report = compare(vocabulary(), vocabulary(changed={6: (b"  ", NORMAL)}))
    assert "      6    '\\u2581\\u2581' normal   '  ' normal" in drawn(report, ascii_only=True)


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "'▁▁'"), ("cp1252", r"'\u2581\u2581'")])
def test_a_pipe_gets_no_colours_and_only_what_it_can_take(encoding: str, shown: str):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    check_report.write(compare(vocabulary(), vocabulary(changed={6: (b"  ", NORMAL)})), Terminal(stream, {}))
    stream.flush()
    written = raw.getvalue().decode(encoding)
    assert shown in written
    assert "\x1b" not in written


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch):
    class Tty(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Tty()
    check_report.write(compare(vocabulary(), vocabulary(kind="BPE")), Terminal(stream, {"TERM": "xterm-256color"}))
    assert "\x1b[1;31mtokenizers differ: 1 error" in stream.getvalue()


def test_json_holds_every_id():
    extra = [(b"\xff%d" % i, NORMAL) for i in range(50)]
    written = json.loads(json.dumps(document(compare(vocabulary(), vocabulary(*extra, bos=None)))))
    assert (written["verdict"], written["n_shared"]) == ("mismatch", 9)
    size = next(f for f in written["findings"] if f["rule"] == "size")
    assert (size["severity"], size["n_differing"], len(size["tokens"])) == ("error", 50, 50)
    assert size["tokens"][0] == {"id": 9, "target": None, "draft": {"text": "\\xff0", "kind": "normal"}}
    assert written["target"]["bos"] == {"id": 1, "text": "<s>"}
    assert written["draft"]["bos"] is None


def test_exit_codes():
    assert EXIT_CODES == {"match": 0, "match with notes": 8, "mismatch": 4}
