"""Checks of a model and its draft, without loading them: files, hashes, tokenizers, memory."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.doctor.checkup import Check, Finding
from specdec_cli.hub.client import cache_root
from specdec_cli.hub.download import check_file
from specdec_cli.hub.inventory import is_made_here, known_sha256, stock_of, store_of
from specdec_cli.llama.model import read_vocabulary
from specdec_cli.llama.tokenizer_process import read_vocabulary_apart
from specdec_cli.llama.trial import is_trusted
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import parts_of, read_model
from specdec_cli.models.heads import HeadFacts, needs_tokenizer, own_head, own_part, read_head, refuse_as_target
from specdec_cli.models.tokenizer_check import compare, one_line
from specdec_cli.models.translation import Translation
from specdec_cli.planning.placement import changes, place
from specdec_cli.planning.plan import machine_now, size_up
from specdec_cli.planning.request import PairRequest
from specdec_cli.presets.derive import recorded_sha256
from specdec_cli.presets.resolve import Resolved
from specdec_cli.settings import USUAL_K

FILES_SECONDS, TOKENIZER_SECONDS, MEMORY_SECONDS = 30.0, 60.0, 20.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: the files that `model`, and `draft` if one was given, name, and how they are opened."""

    model: str
    draft: str | None
    files: Resolved
    request: PairRequest

    @property
    def k(self) -> int:
        """How long its drafts are, by its preset or as usual."""
        preset = self.files.preset
        return (preset.k if preset is not None else None) or USUAL_K

    @property
    def names(self) -> str:
        """Model and draft as arguments of a command."""
        return shlex.quote(self.model) + (f" --draft {shlex.quote(self.draft)}" if self.draft is not None else "")


def pair_checks(subject: Subject) -> list[Check]:
    """In the order in which they are told."""
    late = Finding(
        "files",
        "skipped",
        f"Checking all of the files takes longer than {FILES_SECONDS:g} seconds.",
        "specdec verify-files",
    )
    return [
        Check("files", "the files", lambda: files(subject), FILES_SECONDS, late),
        Check("tokenizers", "the tokenizers", lambda: tokenizers(subject), TOKENIZER_SECONDS),
        Check("fit", "the memory that they need", lambda: fit(subject), MEMORY_SECONDS),
    ]


def files(subject: Subject) -> Finding:
    """Hashes where they are known, else the structure."""
    told = []
    for path in _ggufs(subject.files):
        known, is_noted = _known_hash(path, subject.files)
        reason = None if is_noted else check_file(path, known)
        if reason is not None:
            text = f"{path.name} is damaged: {reason}. Compare its hash with its source's, or fetch it again."
            return Finding("files", "problem", text, _mend(path, subject))
        told.append(f"{path.name} ({'its hash is right' if known else 'structure only; no hash is known'})")
    return Finding("files", "ok", f"{', '.join(told)}.")


def _ggufs(files: Resolved) -> Iterator[Path]:
    for first in (files.target, files.draft):
        if first is not None:
            yield from (first.with_name(part) for part in parts_of(first.name))


def _known_hash(path: Path, files: Resolved) -> tuple[str | None, bool]:
    """The hash that a file should have, if it is known, and whether the file as it is now was once found to have it."""
    root = cache_root()
    if not path.is_relative_to(root):
        return recorded_sha256(path) if is_made_here(path) else None, False
    preset = files.preset
    known = known_sha256(path, root, stock_of(preset, root).sha256.get(path) if preset is not None else None)
    return known, known is not None and store_of(root, path).is_verified(path, known)


def _mend(path: Path, subject: Subject) -> str:
    if is_made_here(path):
        return f"specdec verify-files {subject.model}"
    if path.is_relative_to(cache_root()) and subject.files.preset is not None:
        return f"specdec verify-files {subject.model}; specdec pull {subject.model}"
    return f"sha256sum {shlex.quote(str(path))}"


def tokenizers(subject: Subject) -> Finding:
    """Whether both mean the same by their tokens."""
    found = subject.files
    target = read_model(found.target)
    refuse_as_target(target, found.target.name)
    if found.draft is None:
        return Finding("tokenizers", "skipped", "There is no draft with a tokenizer of its own.")
    draft = read_model(found.draft)
    head = read_head(draft, target, found.draft.name, found.draft)
    if head is not None and not needs_tokenizer(draft):
        return Finding("tokenizers", "skipped", f"{found.draft.name} is a trained head without a tokenizer.")
    read = read_vocabulary if is_trusted() else read_vocabulary_apart
    report = compare(read(found.target), read(found.draft))
    command = f"specdec check {shlex.quote(str(found.target))} {shlex.quote(str(found.draft))}"
    if report.verdict == "mismatch" and Translation(report.target, report.draft).why_not() is None:
        text = f"{_sentence(one_line(report))} Drafts would have to be translated (--cross), at a lower acceptance."
        return Finding("tokenizers", "problem", text, f"specdec run {subject.names} --cross")
    if report.verdict == "mismatch":
        text = (
            f"{_sentence(one_line(report))} This draft cannot work; use one of the target's family, or --draft ngram."
        )
        return Finding("tokenizers", "problem", text, command)
    if report.notes:
        text = f"{_sentence(one_line(report))} Such differences can only lower acceptance."
        return Finding("tokenizers", "ok", text)
    return Finding("tokenizers", "ok", _sentence(one_line(report)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def fit(subject: Subject) -> Finding:
    """Whether both models and their caches fit in the memory that is free."""
    found, request = subject.files, subject.request
    headers = read_model(found.target)
    facts, draft_facts = model_facts(headers), None
    head: HeadFacts | None = None
    if found.drafter == "mtp":
        head = own_head(headers, found.target.name)
        draft_facts, facts = own_part(facts, headers)
    elif found.draft is not None:
        draft_headers = read_model(found.draft)
        draft_facts = model_facts(draft_headers)
        head = read_head(draft_headers, headers, found.draft.name, found.draft)
    notes: list[str] = []
    sized, sized_draft = size_up(request, facts, draft_facts, notes.append, head=head)
    placement = request.placement
    placed = place(
        sized,
        sized_draft,
        machine_now(placement.devices),
        placement.gpu_layers,
        placement.gpu_layers_draft,
    )
    free = placed.machine.free_bytes
    need = f"About {(placed.ram + placed.gpu) / 1e9:.2f} GB are needed at a context of {sized.context.n_ctx} tokens"
    if free is None:
        return Finding("fit", "ok", f"{need}; how much is free is not known here.")
    what = f"{need}, and {free / 1e9:.2f} GB are free"
    if placed.fits:
        return Finding("fit", "ok", f"{what}.")
    options = (re.search(r"\((--[^()]*)\)", change.text) for change in changes(sized, sized_draft, placed.machine))
    fitting = next((found[1] for found in options if found is not None), None)
    if fitting is None:
        return Finding("fit", "problem", f"{what}. Use a smaller model.", f"specdec plan {subject.names}")
    model = shlex.quote(subject.model) if "--draft" in fitting else subject.names
    return Finding("fit", "problem", f"{what}. With {fitting} it fits.", f"specdec run {model} {fitting}")
