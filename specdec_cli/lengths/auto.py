"""Draft length by measured cost (`-k auto`): every round drafts what brings the most tokens per second.

This is the bookkeeping: who drafts, what came of it, what it says about costs and chances. What is decided from that is
in `policy`.
"""

import math
from collections.abc import Sequence

from specdec_cli.decode.types import Draft, Round
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.policy import (
    ALLOWANCE,
    MOST_CREDIT,
    PATIENCE,
    RATE_STEP,
    SAVED_GAIN,
    SHORTEST_PAUSE,
    Policy,
    Progress,
    Source,
    Turn,
)

_MOST_BESIDE = 0.25
"""Of a pass: what takes longer beside it (a measurement, a slow reader of the text) is not its cost."""


class AutoLength:
    """Chooses for one answer; what it learns goes on in `learned`. At most `longest` tokens a draft.

    `sources` are those that may draft, cheapest first. `next` begins the round with the first of them; a drafter that
    has a second one asks `passes_on` whether that should draft instead.
    """

    def __init__(self, learned: Learned, *, longest: int, sources: Sequence[str]) -> None:
        self.off_reason: str | None = None
        self.left_out: str | None = None
        """Why a source that cannot pay is not asked while another one drafts."""
        self._learned, self._costs, self._longest = learned, learned.costs, longest
        self._at = Progress(room=longest, seconds=learned.costs.plain)
        self._policy = Policy(self._costs, self._at, longest)
        self._sources = {name: self._source(name) for name in sources}
        self._first = next(iter(self._sources.values()))
        self._is_asked = False
        self._turn = self._begin_turn(self._first)

    def _source(self, name: str) -> Source:
        chances = self._learned.of(name)
        return Source(name, chances, self._policy.first_credit(chances))

    def _begin_turn(self, source: Source) -> Turn:
        return Turn(self._policy, source, self._costs)

    @property
    def confidences(self) -> Sequence[float | None]:
        """Of all tokens of the last draft."""
        return self._turn.confidences

    def begin(self, n_prompt: int) -> None:
        """What an answer that was broken off left undone is forgotten; of a shorter text nothing was read yet."""
        self.off_reason = self.left_out = None
        self._is_asked, self._at.written, self._at.last_width = False, 0, 0
        for name, source in self._sources.items():
            if self._policy.is_free(source):  # lookup's confidence is calibrated already; other texts copy otherwise
                self._learned.chances.pop(name, None)
            source.chances = self._learned.of(name)
            source.lost = 0.0
            if n_prompt < self._at.n_text:
                source.known = 0
        self._at.n_text = n_prompt
        self._turn = self._begin_turn(self._first)

    def has_read(self, name: str, n_tokens: int) -> None:
        """A source knows the first `n_tokens` of the text already."""
        if name in self._sources:
            self._sources[name].known = n_tokens

    def next(self, n_tokens: int, room: int) -> int:
        """The most tokens to ask for after a text of `n_tokens`, at most `room`; 0 while no source is worth it."""
        self._at.n_text, self._at.room, self._is_asked = n_tokens, room, True
        source, most = self._first, min(room, self._longest)
        if not self._costs.plain:  # nothing was measured yet: this round is the first measurement
            self._turn = self._begin_turn(source)
            return 0
        must_pay = len(self._sources) == 1 and not self._policy.is_free(source)
        if must_pay:
            self._wake(source)
        self._turn = self._begin_turn(source)
        return 0 if must_pay and self._worth(source) <= 0 else most

    def passes_on(self, name: str, draft: Draft) -> bool:
        """Whether this source should bring more than the `draft` of the first one; then it is its turn to draft."""
        source = self._sources[name]
        self._wake(source)
        if self._worth(source) <= (self._turn.value() if draft.tokens else 0.0):
            return False
        self._turn = self._begin_turn(source)
        return True

    def more(self, confidence: float | None) -> bool:
        """Whether another draft token should bring more than it costs."""
        return self._turn.more(confidence)

    def keep(self, draft: Draft) -> int:
        """As many of the draft's tokens as have the best value; it may be none."""
        return self._turn.keep(draft.tokens)

    def _wake(self, source: Source) -> None:
        """A resting source is probed when it is time for that: what is known of it may be out of date."""
        if not source.is_resting or not self._policy.may_probe(source):
            return
        source.is_resting, source.rested, source.rounds = False, 0, 0
        source.tokens = source.seconds = source.lost = 0.0
        source.pause = self._policy.next_pause(source.pause)
        source.chances.doubt()

    def _worth(self, source: Source) -> float:
        """Tokens that asking the source should bring beyond a round without a draft; 0 if it rests."""
        if source.is_resting:
            return 0.0
        if not source.rounds and not self._could_pay(source):
            return 0.0
        if self._policy.is_hoped_for(source):
            return math.inf
        worth = self._policy.worth(source, self._turn.rate)
        if worth > 0 and not self._policy.disappoints(source):
            return worth
        source.is_resting = True
        return 0.0

    def _could_pay(self, source: Source) -> bool:
        """Whether a draft that is always right would. If not, the source rests for good."""
        times = self._policy.cannot_pay(source)
        if times is None:
            return True
        source.is_resting = True
        source.credit = -math.inf
        if len(self._sources) == 1:
            self.off_reason = f"{times}, so no draft can pay here"
        else:
            self.left_out = f"{times}, so it cannot pay here"
        return False

    def observe(self, round_: Round) -> None:
        if not self._is_asked:  # the prompt's round
            self._at.written = 1
            return
        self._at.written += len(round_.tokens)
        self._is_asked = False
        beside = round_.seconds - round_.draft_seconds - round_.verify_seconds  # rule, text, screen; seldom more
        seconds = round_.verify_seconds + min(beside, _MOST_BESIDE * round_.verify_seconds)
        width, before = len(round_.drafted) + 1 + round_.n_beside, self._at.last_width
        self._at.last_width = width
        if width == 1 and before > 1:
            self._costs.saw_return(before, seconds)
        elif round_.own is not None and not round_.n_beside:  # else the pass was wider than it shows
            self._costs.saw_pass(width, seconds)
        self._count(round_)
        if self._turn.confidences:
            self._learn(round_)

    def _count(self, round_: Round) -> None:
        """Time and tokens: lately, of the source, and what probes may cost."""
        n, plain, at = len(round_.tokens), self._costs.plain, self._at
        seconds = min(round_.seconds, 4 * (self._costs.passes[len(round_.drafted) + 1] + round_.draft_seconds))
        at.tokens += RATE_STEP * (n - at.tokens)
        at.seconds += RATE_STEP * (seconds - at.seconds)
        for source in self._sources.values():
            if source is self._turn.source and self._turn.confidences:
                self._count_source(source, round_, seconds)
            else:
                source.rested += source.is_resting
                source.credit += ALLOWANCE * seconds
            source.credit = min(source.credit, MOST_CREDIT * plain)

    def _count_source(self, source: Source, round_: Round, seconds: float) -> None:
        """A round that it drafted for, which took so many seconds."""
        n, plain = len(round_.tokens), self._costs.plain
        source.rounds += 1
        source.has_trees |= round_.n_beside > 0
        step = max(RATE_STEP, 1 / source.rounds)
        source.tokens += step * (n - source.tokens)
        source.seconds += step * (seconds - source.seconds)
        source.credit += n * plain - seconds
        if plain:  # by what such passes cost, so that whatever else took time is not its fault
            lost = source.lost + self._costs.and_back[len(round_.drafted) + 1] / plain - n
            source.lost = max(lost, -SAVED_GAIN)
        if source.rounds >= PATIENCE:
            source.pause = SHORTEST_PAUSE

    def _learn(self, round_: Round) -> None:
        """What the drafter's confidence was worth, also of tokens that were not verified where the target told."""
        turn, source = self._turn, self._turn.source
        confidences, proposed, n_right = turn.confidences, turn.proposed, round_.n_accepted
        n_drafted, n_kept = len(confidences), len(round_.drafted)
        self._costs.saw_draft(source.name, n_drafted, self._policy.n_behind(source), round_.draft_seconds)
        source.known = self._at.n_text + n_drafted - 1
        for i in range(min(n_right + 1, n_kept)):
            source.chances.saw(confidences[i], i, kept=i < n_right)
        # The first token that was drafted and not verified: the target has told its own there all the same.
        if n_right == n_kept < len(proposed) and round_.own is not None:
            source.chances.saw(confidences[n_kept], n_kept, kept=proposed[n_kept] == round_.own)
            n_right += proposed[n_kept] == round_.own
        source.known = min(source.known, self._at.n_text + n_right)
