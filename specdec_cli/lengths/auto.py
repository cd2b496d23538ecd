"""Draft length by measured cost: every round drafts what brings the most tokens per second.

A round whose draft ends after n tokens emits E(n) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_n tokens on average and takes
t(n + 1) for the pass and d for each draft token. What is maximised is its value E - L T, not its own tokens per second:
L is the rate reached lately, and time saved is worth what it brings elsewhere (the renewal reward theorem; Dinkelbach,
"On nonlinear fractional programming", 1967). L is never below the rate of plain decoding, so a draft has to beat that.

A source that does not pay rests. It is asked again (a probe) when what earlier drafts gained, and one percent of the
time since, can bear the loss; what it then has to read is part of the price.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.decode.types import Draft, Round
from specdec_cli.lengths.acceptance import Chances
from specdec_cli.lengths.learned import Learned

_LOOK_AHEAD = 12
"""Tokens beyond the next one that are looked at: a kernel's tile may end there."""
_UNLIKELY = 0.02
"""Tokens that come with less than this chance change no decision."""
_RATE_STEP = 1 / 24
_SELECTION = 1.1
"""By so much choosing a length for each round may beat the best of the fixed lengths."""
_ALLOWANCE = 0.01
_UNMINDED_LOSS, _DOUBLING_LOSS = 1.0, 4.0
"""Passes of one token that lookup may have cost an answer before it has to promise more, and how many more double the
price of time for it, which is the most: it is never rested, and bad luck with it is often a text unlike the others."""
_FIRST_CREDIT, _NEXT_CREDIT, _MOST_CREDIT = 4.0, 1.0, 16.0
"""Passes of one token that may be lost on a source before anything was gained, for the first answer and for later
ones, and that can be saved up."""
_LOOKUP_MARGIN = 1.2
"""By so much a copy must be better than worth its time: what is just worth it changes nothing but the luck."""
_SAVED_GAIN = 2.0
"""Passes that lookup gained earlier in an answer and may lose again before that counts."""
_PROBE_ROUNDS = 3
_SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 64
"""Rounds between two probes: twice as many after each, until one led to something."""
_PATIENCE = 24
"""Rounds after which what was really gained counts, not what was expected."""
_USUAL_ANSWER, _LEAST_REST = 200, 32
"""Tokens that an answer is expected to have, and to go on for at any time; past the first it is as long again."""
_HOPELESS = 0.98
_FREE = 0.01
_MOST_BESIDE = 0.25
"""Of a pass: what takes longer beside it (a measurement, a slow reader of the text) is not its cost."""
_KNOWN = 8
"""Outcomes after which a source is judged by what is known of it."""
_TRIED, _MOST_AT_ONCE = 16, 2.5
"""Outcomes, from the start or a probe, until which no draft may lose more than so many passes of one token. Hope asks
for long drafts; where a pass of ten takes as long as six of one, the first of them costs a short answer too much."""


@dataclass(slots=True)
class _Source:
    """How a source does in this text. Seconds and tokens are of recent rounds that it drafted for."""

    credit: float
    known: int = 0  # tokens of the text that it has read
    pause: int = _SHORTEST_PAUSE  # rounds to rest before the next probe
    is_resting: bool = False
    has_trees: bool = False  # its drafts make passes wider than they are long
    rested: int = 0
    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    lost: float = 0.0  # in this answer, against plain decoding, in passes of one token


class AutoLength:
    """Chooses for one answer; what it learns goes on in `learned`. At most `longest` tokens a draft.

    `sources` are those that may draft; a drafter that lets several take turns asks `worth`, `turn` and `value`.
    """

    def __init__(self, learned: Learned, *, longest: int, sources: Sequence[str]) -> None:
        self.off_reason: str | None = None
        self.left_out: str | None = None
        """Why a source that cannot pay is not asked while another one drafts."""
        self._learned, self._costs, self._longest = learned, learned.costs, longest
        self._sources = {name: self._source(name) for name in sources}
        self._tokens_lately, self._seconds_lately = 1.0, learned.costs.plain
        self._n_tokens = self._written = 0
        self._room = longest
        self._last_width = 0
        self._is_asked = False
        self._turn = next(iter(self._sources))
        self._begin()

    def _source(self, name: str) -> _Source:
        """One that is not known yet is tried, and may lose something."""
        if self._learned.of(name).n_seen >= _KNOWN:
            return _Source(_NEXT_CREDIT * self._costs.plain)
        return _Source(_FIRST_CREDIT * self._costs.plain)

    def _begin(self) -> None:
        self._source_chances = self._learned.of(self._turn)
        self._each = self._costs.draft_token(self._turn)
        self._most = self._most_of(self._turn)
        self._rate = self._reachable_rate()
        self._price_of_time = self._rate * self._caution()
        self._confidences: list[float | None] = []
        # Without a draft the price of returning from the last pass is paid now.
        self._no_draft = self._costs.passes[1] + self._costs.back_each * max(self._last_width - 1, 0)
        self._reached = 1.0  # chance that all draft tokens so far are kept
        self._value = [0.0]  # of ending the draft after i tokens, over that of no draft; drafting them is paid
        self._proposed: Sequence[int] = ()

    def _reachable_rate(self) -> float:
        """Tokens per second: lately, but not what only another kind of text would give, nor less than plain decoding.

        Were the past alone to say it, a text that turned harder would be hurried through with short drafts.
        """
        plain = self._costs.plain
        if not plain:
            return 0.0
        chances, passes = self._source_chances, self._costs.passes
        reached = tokens = 1.0
        best = tokens / plain
        for place in range(self._most):
            reached *= chances.expected(place)
            tokens += reached
            rate = tokens / (passes[place + 2] + (place + 1) * self._each)
            if rate > best:
                best = rate
            if reached < _UNLIKELY:
                break
        return max(min(self._tokens_lately / self._seconds_lately, _SELECTION * best), 1.0 / plain)

    def _caution(self) -> float:
        """How much dearer time is where nothing is ever rested, by what was lost."""
        if not self._is_free(self._turn):
            return 1.0
        lost = self._sources[self._turn].lost
        return _LOOKUP_MARGIN * (1.0 + min(max(lost - _UNMINDED_LOSS, 0.0) / _DOUBLING_LOSS, 1.0))

    def begin(self, n_prompt: int) -> None:
        """What an answer that was broken off left undone is forgotten; of a shorter text nothing was read yet."""
        self.off_reason = None
        self._is_asked, self._written, self._last_width, self.left_out = False, 0, 0, None
        for name, source in self._sources.items():
            if self._is_free(name):  # lookup's confidence is calibrated already, and other texts copied otherwise
                self._learned.chances.pop(name, None)
            source.lost = 0.0
            if n_prompt < self._n_tokens:
                source.known = 0
        self._n_tokens = n_prompt
        self._begin()

    def has_read(self, name: str, n_tokens: int) -> None:
        """A source knows the first `n_tokens` of the text already."""
        if name in self._sources:
            self._sources[name].known = n_tokens

    def next(self, n_tokens: int, room: int) -> int:
        """The most tokens to ask for after a text of `n_tokens`, at most `room`; 0 while no source is worth it."""
        self._n_tokens, self._is_asked = n_tokens, True
        self._room = room
        self.turn(self._turn)
        if not self._costs.plain:  # nothing was measured yet: this round is the first measurement
            return 0
        is_asked = len(self._sources) > 1 or self._is_free(self._turn) or self.worth(self._turn) > 0
        return min(room, self._longest) if is_asked else 0

    def _most_of(self, name: str) -> int:
        """Tokens that this source may draft now."""
        most = min(self._room, self._longest)
        if self._learned.of(name).n_recent >= _TRIED or not self._costs.plain or self._is_free(name):
            return most
        passes, each = self._costs.passes, self._costs.draft_token(name)
        loss = (1.0 + _MOST_AT_ONCE) * passes[1]
        return max((k for k in range(1, most + 1) if passes[k + 1] + k * each <= loss), default=min(1, most))

    def _is_free(self, name: str) -> bool:
        """Whether asking costs next to nothing, as for lookup, which seldom finds something but then is often right."""
        each = max(self._costs.draft_token(name), self._costs.token_behind(name))
        return each < _FREE * self._costs.plain and not self._sources[name].has_trees

    def turn(self, name: str) -> None:
        """It is this source's turn. What another one drafted is forgotten."""
        self._turn = name
        self._begin()

    def worth(self, name: str) -> float:
        """Tokens that a round with this source should bring beyond one without a draft; 0 or less if it rests."""
        source = self._sources[name]
        if source.is_resting:
            if source.rested < source.pause or source.credit < self._price(name):
                return 0.0
            pause = min(2 * source.pause, _LONGEST_PAUSE)
            self._sources[name] = source = _Source(source.credit, source.known, pause, has_trees=source.has_trees)
            self._learned.of(name).doubt()
            if name == self._turn:
                self._begin()
        if not source.rounds and not self._could_pay(name):
            return 0.0
        lead = self._lead(name)
        if lead > 0 and not self._disappoints(source):
            return lead
        source.is_resting = True
        return 0.0

    def _could_pay(self, name: str) -> bool:
        """Whether a draft that is always right would."""
        passes, each = self._costs.passes, self._costs.draft_token(name)
        best = max((k + 1) * passes[1] / (passes[k + 1] + k * each) for k in range(1, self._longest + 1))
        if best >= _HOPELESS:
            return True
        self._sources[name].is_resting = True
        self._sources[name].credit = -math.inf
        times = f"a draft token takes {1000 * each:.1f} ms and one of the target {1000 * passes[1]:.1f} ms"
        if len(self._sources) == 1:
            self.off_reason = f"{times}, so no draft can pay here"
        else:
            self.left_out = f"{times}, so it cannot pay here"
        return False

    def _disappoints(self, source: _Source) -> bool:
        return source.rounds >= _PATIENCE and source.tokens * self._costs.plain < source.seconds

    def _price(self, name: str) -> float:
        """Seconds that a probe may lose."""
        return self._behind(name) * self._costs.token_behind(name) + _PROBE_ROUNDS * self._costs.draft_token(name)

    def _behind(self, name: str) -> int:
        return max(self._n_tokens - self._sources[name].known - 1, 0)

    def _lead(self, name: str) -> float:
        """The first token is drafted, and dropped again where its confidence says so."""
        chances, each, rate = self._learned.of(name), self._costs.draft_token(name), self._rate
        behind = self._behind(name) * self._costs.token_behind(name) / self._rounds_left()
        wider, most = rate * (self._costs.and_back[2] - self._no_draft), self._most_of(name)
        worth = -rate * (each + behind)
        for share, chance in chances.first_tokens():
            gain = chance - wider + self._beyond(chances, each, 1, chance, most)
            if gain > 0:
                worth += share * gain
        return worth

    def _rounds_left(self) -> float:
        """Over which what a source has to read pays or not, if it drafts in one of two and they have two tokens."""
        rest = max(_USUAL_ANSWER - self._written, self._written, _LEAST_REST)
        return max(min(self._room, rest) / 4, 1.0)

    def value(self) -> float:
        """Tokens that what was drafted in this turn is worth beyond no draft."""
        return max(self._value)

    def more(self, confidence: float | None) -> bool:
        """Whether another draft token should bring more than it costs."""
        self._confidences.append(confidence)
        n, passes = len(self._confidences), self._costs.and_back
        self._reached *= self._source_chances.of(confidence)
        wider = passes[n + 1] - (passes[n] if n > 1 else self._no_draft)
        self._value.append(self._value[-1] + self._reached - self._price_of_time * wider)
        if n >= self._most or self._reached < _UNLIKELY:
            return False
        if self._is_free(self._turn):  # what is not worth verifying is dropped at no cost
            return True
        ahead = self._beyond(self._source_chances, self._each, n, self._reached, self._most)
        return self._value[-1] + ahead > max(self._value)

    def _beyond(self, chances: Chances, each: float, n: int, reached: float, most: int) -> float:
        """The most that drafting on after n tokens, to at most `most`, should bring; 0 or more."""
        passes, rate = self._costs.and_back, self._rate
        best, tokens, seconds = 0.0, 0.0, -passes[n + 1]
        for place in range(n, min(n + _LOOK_AHEAD, most)):
            reached *= chances.expected(place)
            tokens += reached
            seconds += each
            gain = tokens - rate * (passes[place + 2] + seconds)
            if gain > best:
                best = gain
            if reached < _UNLIKELY:
                break
        return best

    def keep(self, draft: Draft) -> int:
        """As many of the draft's tokens as have the best value; it may be none."""
        self._proposed = draft.tokens
        values = self._value[: len(draft.tokens) + 1]
        return values.index(max(values))

    def observe(self, round_: Round) -> None:
        if not self._is_asked:  # the prompt's round
            self._written = 1
            return
        self._written += len(round_.tokens)
        self._is_asked = False
        beside = round_.seconds - round_.draft_seconds - round_.verify_seconds  # rule, text, screen; seldom more
        seconds = round_.verify_seconds + min(beside, _MOST_BESIDE * round_.verify_seconds)
        width, before = len(round_.drafted) + 1 + round_.n_beside, self._last_width
        self._last_width = width
        if width == 1 and before > 1:
            self._costs.saw_return(before, seconds)
        elif round_.own is not None and not round_.n_beside:  # else the pass was wider than it shows
            self._costs.saw_pass(width, seconds)
        self._count(round_)
        if self._confidences:
            self._learn(round_)

    def _count(self, round_: Round) -> None:
        """Time and tokens: lately, of the source, and what probes may cost."""
        n, plain = len(round_.tokens), self._costs.plain
        seconds = min(round_.seconds, 4 * (self._costs.passes[len(round_.drafted) + 1] + round_.draft_seconds))
        self._tokens_lately += _RATE_STEP * (n - self._tokens_lately)
        self._seconds_lately += _RATE_STEP * (seconds - self._seconds_lately)
        for name, source in self._sources.items():
            if name == self._turn and self._confidences:
                source.rounds += 1
                source.has_trees |= round_.n_beside > 0
                step = max(_RATE_STEP, 1 / source.rounds)
                source.tokens += step * (n - source.tokens)
                source.seconds += step * (seconds - source.seconds)
                source.credit += n * plain - seconds
                if plain:  # by what such passes cost, so that whatever else took time is not its fault
                    lost = source.lost + self._costs.and_back[len(round_.drafted) + 1] / plain - n
                    source.lost = max(lost, -_SAVED_GAIN)
                if source.rounds >= _PATIENCE:
                    source.pause = _SHORTEST_PAUSE
            else:
                source.rested += source.is_resting
                source.credit += _ALLOWANCE * seconds
            source.credit = min(source.credit, _MOST_CREDIT * plain)

    def _learn(self, round_: Round) -> None:
        n_drafted, n_kept = len(self._confidences), len(round_.drafted)
        source, chances = self._sources[self._turn], self._learned.of(self._turn)
        self._costs.saw_draft(self._turn, n_drafted, self._behind(self._turn), round_.draft_seconds)
        source.known = self._n_tokens + n_drafted - 1
        n_right = round_.n_accepted
        for i in range(min(n_right + 1, n_kept)):
            chances.saw(self._confidences[i], i, kept=i < n_right)
        # The first token that was drafted and not verified: the target has told its own there all the same.
        if n_right == n_kept < len(self._proposed) and round_.own is not None:
            chances.saw(self._confidences[n_kept], n_kept, kept=self._proposed[n_kept] == round_.own)
            n_right += self._proposed[n_kept] == round_.own
        source.known = min(source.known, self._n_tokens + n_right)
