"""Estimates acceptance for every draft length from a draft model's choices along a text.

With shared noise a draft token stands while it is the target's own, so up to its first mistake a draft stands before
the target's own text. Whether the draft model chooses the text's token after each of its prefixes, which one pass over
the text tells, therefore fixes every round of every draft length: a run of speculative decoding need not take place to
be counted.
"""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.types import Target
from specdec_cli.lengths.speedup_model import conditional_acceptance, position_counts

ROWS = 16
"""Rows of logits asked for at a time."""


def agreements(session: Target, rule: Rule, prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
    """Whether the model chooses each token of `answer`, given all before it."""
    tokens, found = [*prompt, *answer], list[bool]()
    for begin in range(len(prompt), len(tokens), ROWS):
        end = min(begin + ROWS, len(tokens))
        rows = session.score(tokens[: end - 1], end - begin)
        for at, row in zip(range(begin, end), rows, strict=True):
            found.append(rule.draw(row, tokens[:at], at).token == tokens[at])
    return found


def chances(texts: Sequence[Sequence[bool]], k: int) -> list[float]:
    """Chance of each of `k` draft positions, given that all before it were kept, over rounds of `k` draft tokens.

    `texts` has for each text which of its tokens the draft chooses. The first token of a text comes without a draft,
    the last one is never drafted: a round ends with a token of the target's own.
    """
    drafts: list[tuple[int, int]] = []
    for agrees in texts:
        at = 1
        while at < len(agrees) - 1:
            length = min(k, len(agrees) - at - 1)
            run = next((i for i in range(length) if not agrees[at + i]), length)
            drafts.append((length, run))
            at += run + 1
    found = conditional_acceptance(*position_counts(drafts))
    return found + [0.0] * (k - len(found))
