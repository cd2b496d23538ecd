"""Compares the tokenizers of target and draft, rule by rule.

The target's ids are fed to both models and every emitted token is the target's own, so a draft with other
habits only drafts badly; a draft whose ids mean other text drafts nonsense. Hence:

| rule            | error                                             | note                                          |
|-----------------|---------------------------------------------------|-----------------------------------------------|
| vocabulary type | types differ, or a file has no tokens             |                                               |
| token text      | one side is text, or both are added tokens        | only markers or unused rows; only the spelling |
| token type      | a byte here, the letters of its name there        | any other difference under the same text      |
| size            | the tail of the longer one holds real tokens: the | the tail is padding: masked in both           |
|                 | other has no rows for them                        |                                               |
| pre-tokenizer   | names differ and so does the probe text           | names differ, the probe text does not         |
| probe text      | ids differ: text is cut otherwise than in training|                                               |
| add_bos/add_eos | differ (llama.cpp refuses these too)              |                                               |
| BOS, EOS        | differ, and a model adds it to what it reads      | differ, and no model adds it                  |
| EOT, end tokens |                                                   | differ: the target's decide when a text ends  |

Text (normal, byte) must be equal from id 0. Markers (control, unknown) may be renamed, and an added
(user-defined) token may stand where the other model has an unused row: both cost acceptance, not correctness.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from specdec_cli.errors import VocabularyMismatch
from specdec_cli.models.vocabulary import CONTROL, UNUSED, Vocabulary

Severity = Literal["note", "error"]
Verdict = Literal["match", "match with notes", "mismatch"]
Role = Literal["unused", "marker", "added", "text"]

_UNKNOWN, _NORMAL, _USER_DEFINED, _BYTE = 1 << 0, 1 << 2, 1 << 4, 1 << 5
# The order settles which name a token with several bits gets.
_KINDS = {
    UNUSED: "unused",
    CONTROL: "control",
    _BYTE: "byte",
    _USER_DEFINED: "user-defined",
    _UNKNOWN: "unknown",
    _NORMAL: "normal",
}
_KIND_BITS = sum(_KINDS)

_SENTENCEPIECE_SPACE = "▁".encode()
_PADDING = re.compile(
    r"[<\[>|｜]+(pad|unused|dummy|extra|reserved|place.?holder|special)[\w▁]*?\d+[>\]<|｜]+", re.IGNORECASE
)
_PADDING_BEGINS = (b"<", b"[", b">", b"|", b"\xef")  # the last begins the wide bar of DeepSeek's markers
TOKEN_RULES = ("token text", "token type", "size")
"""Rules whose findings are about what single ids are."""

_LONGEST_PIECE = 48
_N_FIRST = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `ids` are all token ids concerned; `text` is a clause without a full stop."""

    rule: str
    severity: Severity
    target: str
    draft: str
    text: str
    ids: tuple[int, ...] = ()

    @property
    def n_differing(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """What one id is in both models, each as (raw text, kind); None beyond the end of a vocabulary."""

    id: int
    target: tuple[bytes, str] | None
    draft: tuple[bytes, str] | None


@dataclass(frozen=True, slots=True)
class Report:
    """All differences of two tokenizers.

    Ids at or above `n_shared` are padding, to be masked in both models. The verdict is "match" also
    when padding is the only difference.
    """

    target: Vocabulary
    draft: Vocabulary
    findings: tuple[Finding, ...]

    @property
    def n_shared(self) -> int:
        return min(len(self.target), len(self.draft))

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "note")

    @property
    def verdict(self) -> Verdict:
        if self.errors:
            return "mismatch"
        return "match with notes" if any(f.rule != "size" for f in self.notes) else "match"

    def tokens(self, ids: Iterable[int]) -> Iterator[TokenPair]:
        """What these ids are in both models."""
        return (TokenPair(i, _token(self.target, i), _token(self.draft, i)) for i in ids)


def compare(target: Vocabulary, draft: Vocabulary) -> Report:
    """Apply every rule. 262,144 tokens take 3 ms when they are equal, 0.2 s when all differ."""
    return Report(target, draft, tuple(found for rule in _RULES for found in rule(target, draft)))


def one_line(report: Report) -> str:
    """The verdict for the line above a run."""
    if report.errors:
        return f"tokenizers differ: {'; '.join(_clause(report, f) for f in report.errors)}"
    facts = [f"{report.target.kind}, {report.n_shared:,} tokens", *(_clause(report, f) for f in report.notes)]
    return f"tokenizers {report.verdict}: {'; '.join(facts)}"


def refusal(report: Report, *, can_cross: bool = False) -> VocabularyMismatch:
    """The error for a pair that cannot work: what differs, in which ids, and what would still work. `can_cross` says
    that drafts could be translated."""
    target, draft = escaped(report.target.name), escaped(report.draft.name)
    first, *others = report.errors
    told = [first, *(f for f in others if f.rule == "token text")]
    others = [f for f in others if f not in told]
    lines = [f"The tokenizer of {draft} (draft) differs from that of {target} (target)."]
    lines += [f"{_clause(report, f)}." for f in told]
    if others:
        lines.append(f"Also different: {', '.join(f'{f.rule} ({f.target} vs {f.draft})' for f in others)}.")
    hint = (
        "Use a draft with the target's tokenizer, usually a smaller model of the same family, or --draft ngram, "
        "which needs no model."
    )
    if can_cross:
        hint = f"Let its drafts be translated with --cross, at some cost in acceptance. Otherwise: {hint}"
    if not {f.rule for f in report.errors} & {"vocabulary type", "token text", "token type", "size"}:
        hint = f"The tokens are the same, so converting the older file again may help. Otherwise: {hint}"
    return VocabularyMismatch("\n".join(lines), hint=hint)


def kind_of(vocabulary: Vocabulary, token: int) -> str:
    attr = vocabulary.attrs[token]
    return next((name for bit, name in _KINDS.items() if attr & bit), "undefined")


def is_padding(vocabulary: Vocabulary, token: int) -> bool:
    """Whether the row only fills the matrix: by its type, else by a text such as [PAD151936] or <unused12>."""
    text, unused = vocabulary.texts[token], bool(vocabulary.attrs[token] & UNUSED)
    if not unused and not text.startswith(_PADDING_BEGINS):
        return False  # most tokens, and this is asked for all of them
    if token in (vocabulary.bos, vocabulary.eos, vocabulary.eot) or token in vocabulary.end_tokens:
        return False
    return unused or _PADDING.fullmatch(text.decode("utf-8", "replace")) is not None


def n_real(vocabulary: Vocabulary) -> int:
    """Tokens up to the padding at the end: rows that no text ever uses."""
    n = len(vocabulary)
    while n > 1 and is_padding(vocabulary, n - 1):
        n -= 1
    return n


def pre_tokenizer(vocabulary: Vocabulary) -> str:
    """Its name; llama.cpp takes a missing one for "default"."""
    return escaped(vocabulary.pre_tokenizer or "default")


def marker(vocabulary: Vocabulary, token: int | None) -> str:
    """A special token as id and text, or "none"."""
    if token is None:
        return "none"
    return f"{token} {quoted(vocabulary.texts[token])}" if token < len(vocabulary) else str(token)


def escaped(text: str) -> str:
    """Text of a file on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: bytes) -> str:
    """A token's text in quotes on one line, everything that a terminal would obey escaped."""
    shown = escaped(text.decode("utf-8", "backslashreplace"))
    if len(shown) > _LONGEST_PIECE:
        shown = shown[: _LONGEST_PIECE - 3] + "..."
    quote = '"' if "'" in shown and '"' not in shown else "'"
    return quote + shown + quote


def _kind(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    for side, vocabulary in (("target", target), ("draft", draft)):
        if not len(vocabulary):
            text = f"the {side} has no tokens"
            yield Finding("vocabulary type", "error", target.kind, draft.kind, text)
    if target.kind != draft.kind:
        text = f"{target.kind} in the target, {draft.kind} in the draft"
        yield Finding("vocabulary type", "error", target.kind, draft.kind, text)


def _texts(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    n_shared = min(len(target), len(draft))
    if target.texts[:n_shared] == draft.texts[:n_shared]:
        return
    found: dict[str, list[int]] = {"text": [], "special": [], "spelling": []}
    for i, (a, b) in enumerate(zip(target.texts, draft.texts, strict=False)):
        if a != b:
            found[_text_difference(target, draft, i)].append(i)
    what: dict[str, tuple[Severity, str]] = {
        "text": ("error", f"of {n_shared:,} shared ids have different text"),
        "special": ("note", f"of {n_shared:,} shared ids differ, all special or unused"),
        "spelling": ("note", f"of {n_shared:,} shared ids spell the same text differently"),
    }
    for difference, ids in found.items():
        if ids:
            severity, text = what[difference]
            yield _about_tokens("token text", severity, text, ids, target, draft)


def _text_difference(target: Vocabulary, draft: Vocabulary, token: int) -> Literal["text", "special", "spelling"]:
    a, b = target.texts[token], draft.texts[token]
    if a.replace(_SENTENCEPIECE_SPACE, b" ") == b.replace(_SENTENCEPIECE_SPACE, b" "):
        # Converters write the spaces of added tokens as they are, those of others as SentencePiece does.
        return "spelling"
    roles = _role(target, token), _role(draft, token)
    if "text" in roles:
        return "text"
    return "text" if "added" in roles and "unused" not in roles else "special"


def _role(vocabulary: Vocabulary, token: int) -> Role:
    if is_padding(vocabulary, token):
        return "unused"
    attr = vocabulary.attrs[token]
    if attr & (CONTROL | _UNKNOWN):
        return "marker"
    return "added" if attr & _USER_DEFINED else "text"


def _types(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    n_shared = min(len(target), len(draft))
    if target.attrs[:n_shared] == draft.attrs[:n_shared]:
        return
    pairs = enumerate(zip(target.attrs, draft.attrs, strict=False))
    kinds = [i for i, (a, b) in pairs if (a ^ b) & _KIND_BITS and target.texts[i] == draft.texts[i]]
    bytes_ = [i for i in kinds if (target.attrs[i] ^ draft.attrs[i]) & _BYTE]
    others = [i for i in kinds if not (target.attrs[i] ^ draft.attrs[i]) & _BYTE]
    if bytes_:
        text = f"of {n_shared:,} shared ids are byte tokens in only one model"
        yield _about_tokens("token type", "error", text, bytes_, target, draft)
    if others:
        text = f"of {n_shared:,} shared ids have the same text but another type"
        yield _about_tokens("token type", "note", text, others, target, draft)


def _size(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    if len(target) == len(draft):
        return
    side, longer = ("target", target) if len(target) > len(draft) else ("draft", draft)
    tail = range(min(len(target), len(draft)), len(longer))
    real = tuple(i for i in tail if not is_padding(longer, i))
    sizes = f"{len(target)} vs {len(draft)}"
    if real:
        text = f"{sizes}: {len(real):,} of the {len(tail):,} tokens that only the {side} has are not padding"
        yield Finding("size", "error", f"{len(target):,}", f"{len(draft):,}", text, real)
    else:
        text = f"{sizes}: {len(tail)} padding {'row' if len(tail) == 1 else 'rows'}, ignored"
        yield Finding("size", "note", f"{len(target):,}", f"{len(draft):,}", text)


def _pre_tokenizer(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    ours, theirs = pre_tokenizer(target), pre_tokenizer(draft)
    if ours == theirs:
        return
    if _probe_ids(target) == _probe_ids(draft):
        text = f"named {ours} in the target, {theirs} in the draft, but both encode the probe text alike"
        yield Finding("pre-tokenizer", "note", ours, theirs, text)
    else:
        yield Finding("pre-tokenizer", "error", ours, theirs, f"{ours} in the target, {theirs} in the draft")


def _probe(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    ours, theirs = _probe_ids(target), _probe_ids(draft)
    if ours == theirs:
        return
    at = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
    a, b = (marker(v, ids[at] if at < len(ids) else None) for v, ids in ((target, ours), (draft, theirs)))
    text = (
        f"encoded as {len(ours)} tokens by the target, {len(theirs)} by the draft; they diverge at token "
        f"{at + 1}, {a} vs {b}"
    )
    yield Finding("probe text", "error", f"{len(ours)} tokens", f"{len(theirs)} tokens", text)


def _probe_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Without the BOS and EOS, which have rules of their own."""
    ids = vocabulary.probe_ids
    if vocabulary.add_bos and ids[:1] == (vocabulary.bos,):
        ids = ids[1:]
    if vocabulary.add_eos and ids[-1:] == (vocabulary.eos,):
        ids = ids[:-1]
    return ids


def _bos(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    yield from _switch("add_bos", target.add_bos, draft.add_bos)
    added = target.add_bos or draft.add_bos
    yield from _marker("BOS", target, draft, target.bos, draft.bos, added=added)


def _eos(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    yield from _switch("add_eos", target.add_eos, draft.add_eos)
    added = target.add_eos or draft.add_eos
    yield from _marker("EOS", target, draft, target.eos, draft.eos, added=added)


def _eot(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    yield from _marker("EOT", target, draft, target.eot, draft.eot, added=False)


def _switch(rule: str, ours: bool, theirs: bool) -> Iterator[Finding]:
    if ours != theirs:
        a, b = (str(value).lower() for value in (ours, theirs))
        yield Finding(rule, "error", a, b, f"{a} in the target, {b} in the draft")


def _marker(
    rule: str, target: Vocabulary, draft: Vocabulary, ours: int | None, theirs: int | None, *, added: bool
) -> Iterator[Finding]:
    a, b = marker(target, ours), marker(draft, theirs)
    if a == b:
        return
    # Under one id the text does not matter here: it is what the token text rule is about.
    severity: Severity = "error" if added and ours != theirs else "note"
    yield Finding(rule, severity, a, b, f"{a} in the target, {b} in the draft")


def _end_tokens(target: Vocabulary, draft: Vocabulary) -> Iterator[Finding]:
    n_shared = min(len(target), len(draft))
    ids = tuple(sorted(i for i in target.end_tokens ^ draft.end_tokens if i < n_shared))
    if not ids:
        return
    ours, theirs = ([i for i in ids if i in v.end_tokens] for v in (target, draft))
    sides = (("target", target, ours), ("draft", draft, theirs))
    only = [f"{_listed(v, its)} only in the {side}" for side, v, its in sides if its]
    text = f"texts end at {', at '.join(only)}"
    yield Finding("end tokens", "note", _listed(target, ours), _listed(draft, theirs), text, ids)


_RULES: tuple[Callable[[Vocabulary, Vocabulary], Iterator[Finding]], ...] = (
    _kind, _texts, _types, _size, _pre_tokenizer, _probe, _bos, _eos, _eot, _end_tokens,
)  # fmt: skip
"""In the order in which they explain a mismatch best: a refusal begins with the first that fails."""


def _about_tokens(
    rule: str, severity: Severity, text: str, ids: Sequence[int], target: Vocabulary, draft: Vocabulary
) -> Finding:
    a, b = (_described(v.texts[ids[0]], kind_of(v, ids[0])) for v in (target, draft))
    return Finding(rule, severity, a, b, f"{len(ids):,} {text}", tuple(ids))


def _token(vocabulary: Vocabulary, token: int) -> tuple[bytes, str] | None:
    if token >= len(vocabulary):
        return None
    return vocabulary.texts[token], kind_of(vocabulary, token)


def _described(text: bytes, kind: str) -> str:
    return f"{quoted(text)} ({kind})"


def _listed(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    return ", ".join(marker(vocabulary, i) for i in ids) or "none"


def _clause(report: Report, finding: Finding) -> str:
    """The finding in a line of its own or among others, with the first tokens that it is about."""
    text = f"{finding.rule}: {finding.text}"
    if not finding.ids or finding.rule not in TOKEN_RULES:
        return text
    firsts = [
        f"{pair.id} {' vs '.join(_described(*token) for token in (pair.target, pair.draft) if token)}"
        for pair in report.tokens(finding.ids[:_N_FIRST])
    ]
    return f"{text}, first {', '.join(firsts)}"
