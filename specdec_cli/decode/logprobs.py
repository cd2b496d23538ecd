"""What the target thought of the tokens that were emitted."""

from collections.abc import Sequence

import numpy as np

from specdec_cli.decode.sampling import Row, log_total, top_k
from specdec_cli.decode.types import Logits, TokenLogprob


def logprobs(rows: Logits, tokens: Sequence[int], n: int, n_shared: int) -> tuple[TokenLogprob, ...]:
    """One entry for each of `tokens`; row i [>= n_shared] holds the logits before token i. With the `n` likeliest."""
    return tuple(_one(row[:n_shared], token, n) for row, token in zip(rows, tokens, strict=False))


def _one(row: Row, token: int, n: int) -> TokenLogprob:
    total = log_total(row)
    likeliest = top_k(row, min(n, len(row))) if n > 0 else np.array([], np.intp)
    return TokenLogprob(token, float(row[token]) - total, tuple((int(t), float(row[t]) - total) for t in likeliest))
