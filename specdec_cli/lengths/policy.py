"""The policy of `-k auto`: whether a source of drafts is asked, and when a draft ends. Decisions and constants only.

Nothing is kept here: `auto` counts what happens and asks, `speedup_model` has the sums, `PassCosts` and `Chances` have
what was measured.

A draft is worth its tokens less what its time brings elsewhere: the rate reached lately, which is never below that of
plain decoding, so a draft has to beat that. A source that does not pay rests. It is asked again (a probe) when what its
earlier drafts gained, and one percent of the time since, can bear the loss; what it then has to read is part of the
price.
"""

from dataclasses import dataclass

from specdec_cli.lengths.acceptance import Chances
from specdec_cli.lengths.pass_costs import PassCosts
from specdec_cli.lengths.speedup_model import PERFECT, UNLIKELY, best_gain, best_rate

_LOOK_AHEAD = 12
"""Tokens beyond the next one that are looked at: a kernel's tile may end there."""
RATE_STEP = 1 / 24
"""How fast means of recent rounds follow."""
_SELECTION = 1.1
"""By so much choosing a length for each round may beat the best of the fixed lengths."""
ALLOWANCE = 0.01
"""Of the time that passes while a source is not asked, what its next probe may lose."""
_UNMINDED_LOSS, _DOUBLING_LOSS = 1.0, 4.0
"""Passes of one token that lookup may have cost an answer before it has to promise more, and how many more double the
price of time for it, which is the most: it is never rested, and bad luck with it is often a text unlike the others."""
_FIRST_CREDIT, _NEXT_CREDIT, MOST_CREDIT = 4.0, 1.0, 16.0
"""Passes of one token that may be lost on a source before anything was gained, for the first answer and for later
ones, and that can be saved up."""
LOOKUP_MARGIN = 1.2
"""By so much a copy must be better than worth its time: what is just worth it changes nothing but the luck."""
SAVED_GAIN = 2.0
"""Passes that lookup gained earlier in an answer and may lose again before that counts."""
_PROBE_ROUNDS = 3
SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 64
"""Rounds between two probes: twice as many after each, until one led to something."""
PATIENCE = 24
"""Rounds after which what was really gained counts, not what was expected."""
_USUAL_ANSWER, _LEAST_REST = 200, 32
"""Tokens that an answer is expected to have, and to go on for at any time; past the first it is as long again."""
_HOPELESS = 0.98
"""A draft whose tokens would all be right has to reach this speedup to be asked at all."""
_FREE = 0.01
"""Of a pass of one token: a source whose tokens cost less is asked every time."""
_KNOWN = 8
"""Outcomes after which a source is judged by what is known of it."""
_TRIED, _MOST_AT_ONCE = 16, 2.5
"""Outcomes, from the start or a probe, until which no draft may lose more than so many passes of one token. Hope asks
for long drafts; where a pass of ten takes as long as six of one, the first of them costs a short answer too much."""


@dataclass(slots=True)
class Source:
    """How a source of drafts does in this text. Seconds and tokens are of recent rounds that it drafted for."""

    name: str
    chances: Chances
    credit: float = 0.0
    known: int = 0  # tokens of the text that it has read
    pause: int = SHORTEST_PAUSE  # rounds to rest before the next probe
    is_resting: bool = False
    has_trees: bool = False  # its drafts make passes wider than they are long
    rested: int = 0
    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    lost: float = 0.0  # in this answer, against plain decoding, in passes of one token


@dataclass(slots=True)
class Progress:
    """Where an answer is: tokens of the text so far, of the answer, and that there is room for; the width of the last
    pass; tokens and seconds of a round lately."""

    room: int
    seconds: float
    tokens: float = 1.0
    n_text: int = 0
    written: int = 0
    last_width: int = 0


class Policy:
    """Decides by `costs` and by where the answer is. No draft has more than `longest` tokens."""

    def __init__(self, costs: PassCosts, progress: Progress, longest: int) -> None:
        self._costs = costs
        self._at = progress
        self._longest = longest

    def first_credit(self, chances: Chances) -> float:
        """Seconds that may be lost on a source at first: one that is not known yet is tried."""
        passes = _NEXT_CREDIT if chances.n_seen >= _KNOWN else _FIRST_CREDIT
        return passes * self._costs.plain

    def is_free(self, source: Source) -> bool:
        """Whether asking costs next to nothing, as for lookup, which seldom finds something but then is often right."""
        each = max(self._costs.draft_token(source.name), self._costs.token_behind(source.name))
        return each < _FREE * self._costs.plain and not source.has_trees

    def cannot_pay(self, source: Source) -> str | None:
        """Why not even drafts that are always right would pay; None if they may."""
        passes, each = self._costs.passes, self._costs.draft_token(source.name)
        speedup = best_rate(lambda _: PERFECT, passes, each, self._longest) * passes[1]
        if speedup >= _HOPELESS:
            return None
        times = f"a draft token takes {1000 * each:.1f} ms and one of the target {1000 * passes[1]:.1f} ms"
        return f"{times}; with wider passes and every draft token right that is {speedup:.2f}x plain decoding"

    def is_hoped_for(self, source: Source) -> bool:
        """Whether a source counts as good that is not known yet, whatever was measured before it drafted: else a bad
        minute shuts it out for good, because what is never asked is never measured again."""
        each = self._costs.draft_token(source.name)
        return not self.is_free(source) and source.chances.n_seen < _KNOWN and source.credit > each

    def may_probe(self, source: Source) -> bool:
        """Whether a resting source has rested long enough, and its credit bears what a probe may lose."""
        each, behind = self._costs.draft_token(source.name), self._costs.token_behind(source.name)
        price = self.n_behind(source) * behind + _PROBE_ROUNDS * each
        return source.rested >= source.pause and source.credit >= price

    def next_pause(self, pause: int) -> int:
        """Rounds to rest after a probe that led to nothing."""
        return min(2 * pause, _LONGEST_PAUSE)

    def disappoints(self, source: Source) -> bool:
        """Whether rounds with the source were really slower than plain decoding."""
        return source.rounds >= PATIENCE and source.tokens * self._costs.plain < source.seconds

    def n_behind(self, source: Source) -> int:
        """Tokens of the text, but for the last, that the source has not read."""
        return max(self._at.n_text - source.known - 1, 0)

    def most(self, source: Source) -> int:
        """Tokens that the source may draft now."""
        most = min(self._at.room, self._longest)
        if source.chances.n_recent >= _TRIED or not self._costs.plain or self.is_free(source):
            return most
        passes, each = self._costs.passes, self._costs.draft_token(source.name)
        loss = (1.0 + _MOST_AT_ONCE) * passes[1]
        return max((k for k in range(1, most + 1) if passes[k + 1] + k * each <= loss), default=min(1, most))

    def rate(self, source: Source, most: int) -> float:
        """Tokens per second: lately, but not what only another kind of text would give, nor less than plain decoding.

        Were the past alone to say it, a text that turned harder would be hurried through with short drafts.
        """
        plain = self._costs.plain
        if not plain:
            return 0.0
        best = best_rate(source.chances.expected, self._costs.passes, self._costs.draft_token(source.name), most)
        reachable = _SELECTION * max(best, 1.0 / plain)
        return max(min(self._at.tokens / self._at.seconds, reachable), 1.0 / plain)

    def caution(self, source: Source) -> float:
        """How much dearer time is where nothing is ever rested, by what was lost."""
        if not self.is_free(source):
            return 1.0
        return LOOKUP_MARGIN * (1.0 + min(max(source.lost - _UNMINDED_LOSS, 0.0) / _DOUBLING_LOSS, 1.0))

    def no_draft(self) -> float:
        """Seconds of a pass without a draft, which pays for returning from the last, wider one."""
        return self._costs.passes[1] + self._costs.back_each * max(self._at.last_width - 1, 0)

    def worth(self, source: Source, rate: float) -> float:
        """Tokens that asking the source should bring beyond a round without a draft, where time brings `rate`.

        The first token is drafted, and dropped again where its confidence says so.
        """
        chances, each, passes = source.chances, self._costs.draft_token(source.name), self._costs.and_back
        behind = self.n_behind(source) * self._costs.token_behind(source.name) / self._rounds_left()
        wider, positions = rate * (passes[2] - self.no_draft()), _ahead(1, self.most(source))
        worth = -rate * (each + behind)
        for share, chance in chances.first_tokens():
            gain = chance - wider + best_gain(chances.expected, passes, each, positions, chance, rate)
            if gain > 0:
                worth += share * gain
        return worth

    def _rounds_left(self) -> float:
        """Over which what a source has to read pays or not, if it drafts in one of two and they have two tokens."""
        rest = max(_USUAL_ANSWER - self._at.written, self._at.written, _LEAST_REST)
        return max(min(self._at.room, rest) / 4, 1.0)


class Turn:
    """One source drafts for one round: after each token, whether another should bring more than it costs."""

    __slots__ = (
        "_chances",
        "_each",
        "_is_free",
        "_most",
        "_no_draft",
        "_passes",
        "_price_of_time",
        "_reached",
        "_values",
        "confidences",
        "proposed",
        "rate",
        "source",
    )

    def __init__(self, policy: Policy, source: Source, costs: PassCosts) -> None:
        self.source = source
        self.confidences: list[float | None] = []
        self.proposed: tuple[int, ...] = ()
        self._chances = source.chances
        self._each = costs.draft_token(source.name)
        self._most = policy.most(source)
        self._is_free = policy.is_free(source)
        self.rate = policy.rate(source, self._most)
        self._price_of_time = self.rate * policy.caution(source)
        self._passes = costs.and_back
        self._no_draft = policy.no_draft()
        self._reached = 1.0  # chance that all draft tokens so far are accepted
        self._values = [0.0]  # of ending the draft after i tokens, over that of no draft; drafting them is paid

    def more(self, confidence: float | None) -> bool:
        """Called after each draft token, with how sure the drafter is of it."""
        self.confidences.append(confidence)
        n, passes = len(self.confidences), self._passes
        self._reached *= self._chances.of(confidence)
        wider = passes[n + 1] - (passes[n] if n > 1 else self._no_draft)
        self._values.append(self._values[-1] + self._reached - self._price_of_time * wider)
        if n >= self._most or self._reached < UNLIKELY:
            return False
        if self._is_free:  # what is not worth verifying is dropped at no cost
            return True
        ahead = best_gain(self._chances.expected, passes, self._each, _ahead(n, self._most), self._reached, self.rate)
        return self._values[-1] + ahead > max(self._values)

    def value(self) -> float:
        """Tokens that what was drafted is worth beyond no draft; 0 if it is not worth verifying."""
        return max(self._values)

    def keep(self, proposed: tuple[int, ...]) -> int:
        """As many of the draft's tokens as have the best value; it may be none."""
        self.proposed = proposed
        values = self._values[: len(proposed) + 1]
        return values.index(max(values))


def _ahead(n: int, most: int) -> range:
    """Positions after n draft tokens that are looked at."""
    return range(n, min(n + _LOOK_AHEAD, most))
