"""`specdec check`: do the tokenizers of target and draft match?"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.completion import drafts
from specdec_cli.commands.options import MODEL, JsonOpt, find, quantize, say, stop_waiting, waiting
from specdec_cli.errors import UsageError, VocabularyMismatch

if TYPE_CHECKING:
    from specdec_cli.models.tokenizer_check import Finding, Report
    from specdec_cli.models.translation import Overlap
    from specdec_cli.models.vocabulary import Vocabulary

TRANSLATABLE = "translatable"
EXIT_CODES = {"match": 0, "match with notes": 8, "mismatch": VocabularyMismatch.exit_code}
"""A mismatch ends as a run with that pair does."""


def check(
    target: Annotated[str, MODEL],
    draft: Annotated[
        str | None, typer.Argument(help="The draft: a GGUF file, or mtp. A preset has its own.", autocompletion=drafts)
    ] = None,
    *,
    as_json: JsonOpt = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show all differing tokens, not just the first 20.")] = False,
) -> None:
    """Compare two tokenizers, token by token. Reads only the headers of the files.

    Exit codes:

    - 0: they match (padding may differ).

    - 8: they match with notes: differences that can only lower acceptance.

    - 4: they differ. If the verdict is translatable, the draft works with --cross.

    - 3: a file is missing or cannot be read.
    """
    waiting(f"Reading the tokenizers of {target} ...")
    from specdec_cli.llama.model import read_vocabulary
    from specdec_cli.llama.tokenizer_process import read_vocabulary_apart
    from specdec_cli.llama.trial import is_trusted
    from specdec_cli.models.gguf import read_model
    from specdec_cli.models.heads import described, needs_tokenizer, own_head, read_head, refuse_as_target
    from specdec_cli.models.tokenizer_check import compare
    from specdec_cli.presets.resolve import named_preset, resolve
    from specdec_cli.ui import check_report
    from specdec_cli.ui.terminal import Terminal

    files = resolve(target, named_preset(target), draft, quantize, find, say)
    if not files.has_model:
        if files.head is not None:
            raise UsageError(
                f"{files.head.name} are Medusa heads, which have no tokenizer to compare.",
                hint="specdec run tells whether they fit the target.",
            )
        raise UsageError("There is no draft to compare with.", hint="Give a second GGUF file.")
    headers = read_model(files.target)
    refuse_as_target(headers, files.target.name)
    draft_headers, name = headers, files.target.name
    if files.draft is not None:
        draft_headers, name = read_model(files.draft), files.draft.name
    head = read_head(draft_headers, headers, name, files.draft) if files.draft else own_head(headers, name)
    if head is not None:
        say(described(head, name))
    if files.draft is None or not needs_tokenizer(draft_headers):
        stop_waiting()
        if as_json:
            sys.stdout.write(json.dumps({"verdict": "match", "n_shared": head.n_tokens if head else 0}) + "\n")
        return
    read = read_vocabulary if is_trusted() else read_vocabulary_apart
    report = compare(read(files.target), read(files.draft))
    overlap = _overlap(report)
    stop_waiting()
    if as_json:
        sys.stdout.write(json.dumps(document(report, overlap)) + "\n")
    else:
        limit = None if show_all else check_report.FEW
        check_report.write(report, Terminal(sys.stdout, os.environ), limit=limit, overlap=overlap)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _overlap(report: "Report") -> "Mapping[str, Overlap] | None":
    """What tokenizers that differ have in common, where drafts can be translated from one to the other."""
    from specdec_cli.models.translation import Translation

    if report.verdict != "mismatch":
        return None
    translation = Translation(report.target, report.draft)
    return translation.overlap() if translation.why_not() is None else None


def document(report: "Report", overlap: "Mapping[str, Overlap] | None" = None) -> dict[str, Any]:
    """The report as JSON values; bytes that are not UTF-8 become escapes such as \\xff. With an `overlap` drafts can be
    translated."""
    return {
        "verdict": report.verdict if overlap is None else TRANSLATABLE,
        "overlap": {language: asdict(shares) for language, shares in overlap.items()} if overlap else None,
        "n_shared": report.n_shared,
        "target": _facts(report.target),
        "draft": _facts(report.draft),
        "findings": [_finding(report, finding) for finding in report.findings],
    }


def _facts(vocabulary: "Vocabulary") -> dict[str, Any]:
    def marker(token: int | None) -> dict[str, Any] | None:
        return None if token is None else {"id": token, "text": _text(vocabulary.texts[token])}

    return {
        "name": vocabulary.name,
        "kind": vocabulary.kind,
        "pre_tokenizer": vocabulary.pre_tokenizer,
        "n_tokens": len(vocabulary),
        "bos": marker(vocabulary.bos),
        "eos": marker(vocabulary.eos),
        "eot": marker(vocabulary.eot),
        "add_bos": vocabulary.add_bos,
        "add_eos": vocabulary.add_eos,
        "end_tokens": [marker(token) for token in sorted(vocabulary.end_tokens)],
        "probe_ids": list(vocabulary.probe_ids),
    }


def _finding(report: "Report", finding: "Finding") -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "target": finding.target,
        "draft": finding.draft,
        "text": finding.text,
        "n_differing": finding.n_differing,
        "tokens": [
            {"id": pair.id, "target": _piece(pair.target), "draft": _piece(pair.draft)}
            for pair in report.tokens(finding.ids)
        ],
    }


def _piece(token: tuple[bytes, str] | None) -> dict[str, str] | None:
    return None if token is None else {"text": _text(token[0]), "kind": token[1]}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
