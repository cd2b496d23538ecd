"""The few values that travel between modules, and the two protocols. No behaviour beyond their own fields."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens

Logits = NDArray[np.float32]
"""Rows of logits, shape [rows, n_vocab]."""

Hidden = NDArray[np.float32]
"""The state that the output matrix turns into logits (after the last norm), shape [n_embd]."""

FORCED = "grammar"
"""The source of draft tokens that are certain: where a grammar leaves one token, nobody need be asked."""

FinishReason = Literal["stop", "length", "context", "interrupt", "error"]
Origin = Literal["draft", "target"]

More = Callable[[float | None], bool]
"""Told how sure a drafter is of the token it has just drafted, from 0 to 1 or None if it cannot say: whether to draft
another one."""


def to_the_end(_confidence: float | None) -> bool:
    """Draft all that was asked for. Whoever is handed this one need not work out how sure he is."""
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Probabilities of the tokens that can come: `ids` ascending and `probs` above or at 0, sum 1, both [n]."""

    ids: NDArray[np.intp]
    probs: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Branches:
    """A tree of tokens to be evaluated beside the text, in the same pass: the text does not see them.

    `parents[i]` is the index of the token before token i, always smaller than i; -1 is the last token of the text
    before the draft. `take` is given the logits after the leaves, in order of index, shape [n_leaves, n_vocab], valid
    during the call. It is not called where the pass has no room for the tree.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    take: Callable[[Logits], None]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one round.

    `probs` has for every token the distribution q it was drawn from; None says that each was certain
    (looked up, or the likeliest), so q is one-hot. `off_reason` says why this drafter will propose
    nothing from here on; an empty draft without one only means "nothing this time". `source` names
    the one who drafted, where several take turns. `beside` is what the drafter wants to learn from
    the pass that verifies the draft; an empty draft may have it too. The first `n_forced_first` tokens
    and the last `n_forced` are not the drafter's: a grammar forces them before and after it.
    """

    tokens: tuple[int, ...] = ()
    off_reason: str | None = None
    probs: tuple[Distribution, ...] | None = None
    source: str = ""
    beside: Branches | None = None
    n_forced: int = 0
    n_forced_first: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of an emitted token for the target, before any sampler, and the likeliest tokens there."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One propose/verify step: everything that text, colours, statistics and traces are made from.

    `drafted` are the draft tokens that were verified, the first `n_accepted` of them are the
    target's own choices. `own` is the target's token after them: the correction after a mismatch
    or the bonus after a full match; None when the text ended on an accepted draft token.
    `logprobs` has one entry per emitted token if they were asked for. `source` is the draft's.
    `n_beside` tokens of a tree were evaluated in the same pass. `confidences` are how sure the drafter was of each
    token that it drafted, those that were not verified included, where lengths were chosen by that.
    The first `n_forced_first` of `drafted` and the last `n_forced` were forced by a grammar, before and after the
    draft. A round in which nothing else was drafted has the source "grammar" instead.
    Times are seconds: `draft_seconds` inside the drafter, `verify_seconds` inside the target's
    pass, `seconds` the whole time since the previous round ended (its consumer included).
    """

    drafted: tuple[int, ...]
    n_accepted: int
    own: int | None
    k: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0
    finish: FinishReason | None = None
    off_reason: str | None = None
    n_beside: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    source: str = ""
    confidences: tuple[float | None, ...] = ()
    n_forced: int = 0
    n_forced_first: int = 0

    @property
    def n_drafted_by_source(self) -> int:
        """How many of `drafted` are the drafter's own."""
        return len(self.drafted) - self.n_forced_first - self.n_forced

    @property
    def n_accepted_by_source(self) -> int:
        """How many of these are accepted."""
        return min(max(self.n_accepted - self.n_forced_first, 0), self.n_drafted_by_source)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens emitted by this round."""
        accepted = self.drafted[: self.n_accepted]
        return accepted if self.own is None else (*accepted, self.own)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where each emitted token came from."""
        drafted: Origin = "draft"
        own: Origin = "target"
        return (drafted,) * self.n_accepted + ((own,) if self.own is not None else ())

    def ending_after(self, n: int) -> "Round":
        """The round if the text ends with its token `n`, counted from 1: nothing after that is emitted or counted."""
        is_cut = n <= self.n_accepted
        return replace(
            self,
            drafted=self.drafted[:n] if is_cut else self.drafted,
            n_accepted=min(n, self.n_accepted),
            n_forced_first=min(n, self.n_forced_first) if is_cut else self.n_forced_first,
            n_forced=max(0, n - len(self.drafted) + self.n_forced) if is_cut else self.n_forced,
            own=None if is_cut else self.own,
            finish="stop",
            logprobs=self.logprobs[:n],
        )


class Target(Protocol):
    """Gives the logits of the last positions of a token list, whatever was asked before."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        """Logits after each of the last `n_last` tokens, shape [n_last, n_vocab].

        The array is valid until the next call.
        """
        ...


@runtime_checkable
class BranchingTarget(Target, Protocol):
    """A target that can evaluate a tree of tokens beside the text."""

    def score_beside(self, tokens: Sequence[int], n_last: int, branches: Branches) -> Logits:
        """The rows of `score(tokens, n_last)`; the tree grows from the first of the last `n_last` tokens."""
        ...


class HiddenStates(Protocol):
    """Shows the states from which a target made its logits."""

    def hidden(self, tokens: Sequence[int]) -> Hidden | None:
        """The state after `tokens`, shape [n_embd], a copy; None if the last pass gave none there."""
        ...


@runtime_checkable
class HiddenTarget(Target, HiddenStates, Protocol):
    """A target whose passes give hidden states if they are asked for."""

    def score(self, tokens: Sequence[int], n_last: int, *, hidden: bool = False) -> Logits:
        """As of any target; with `hidden` the pass gives the states of its rows as well."""
        ...


class Head(Protocol):
    """A small network that was trained to guess what a target writes, from the target's own hidden states."""

    @property
    def name(self) -> str: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def longest(self) -> int | None:
        """The most tokens it drafts at once; None without a limit."""
        ...

    @property
    def confidence(self) -> float | None:
        """How sure it is, from 0 to 1, of what comes where the last row was given; None if it was not taught that."""
        ...

    def start(self, tokens: Sequence[int], k: int) -> NDArray[np.float32]:
        """Logits of what may follow `tokens`, shape [n_vocab], for a draft of at most `k`; valid until the next call.

        Tokens that it cannot draft have minus infinity.
        """
        ...

    def advance(self, token: int) -> NDArray[np.float32]:
        """Logits after the draft token `token`."""
        ...


class Grammar(Protocol):
    """What may come next in a text that must keep to rules: the answer, which begins at `start` of the tokens."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A new answer begins, to `prompt`."""
        ...

    def allowed(self, tokens: Tokens, start: int, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `ids` [n] may follow `tokens`, shape [n]. Raises NothingAllowed as `all_allowed`."""
        ...

    def all_allowed(self, tokens: Tokens, start: int) -> NDArray[np.intp]:
        """All ids that may follow `tokens`, ascending, shape [n]; it can be far slower than to ask about a few.

        Raises NothingAllowed for an answer outside the grammar, or one that it cannot follow.
        """
        ...

    def only(self, tokens: Tokens, start: int) -> int | None:
        """The token that must follow `tokens`, if just one may; None also where it would take long to find out."""
        ...


class Drafter(Protocol):
    """Proposes how the text may go on."""

    @property
    def name(self) -> str: ...

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        """At most `k` tokens that may follow `tokens` (the whole list, prompt included).

        `more` is called once after each of them, in order, and none is drafted once it has said no.
        """
        ...


@runtime_checkable
class HiddenDrafter(Drafter, Protocol):
    """A drafter that may draft from the target's hidden states."""

    @property
    def wants_hidden(self) -> bool:
        """Whether the target's passes are to give them."""
        ...


@runtime_checkable
class AheadDrafter(Drafter, Protocol):
    """A drafter that may need nothing but the text, so that it can draft behind tokens that the target has not
    evaluated."""

    @property
    def needs_only_text(self) -> bool: ...
