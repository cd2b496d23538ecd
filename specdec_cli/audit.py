"""Holding the promise against this machine's own files, at length.

Texts of the coupled rule, and of every rule at temperature 0, must be plain decoding's. The other rules promise only
the distribution: for them one place of a text is drawn many times, each time with another seed, and the tokens are
counted. A draw begins with a draft, which the engine's first round does not have, and goes on round after round until
two tokens stand. The first token shows acceptance and the target's token after a rejection, the second the row after an
accepted token, drafted (k 2) or the target's own (k 1). Given the first, the second is the target's only if the text is
finished whatever the draft did: blocks lean towards lucky drafts, and the next round makes up for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specdec_cli.bench import Task
from specdec_cli.chance import distance, survival
from specdec_cli.draft_length import FixedLength
from specdec_cli.drafters import DRAFTERS, DrafterParts
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.engine import generate
from specdec_cli.law import certain
from specdec_cli.pairing import Pair
from specdec_cli.rejection import excess
from specdec_cli.rules import RULES
from specdec_cli.same import Comparison, compare
from specdec_cli.sampling import Row, SamplingParams
from specdec_cli.types import Drafter, Logits, Target
from specdec_cli.verify import Rule, SharedNoise

LAW_LENGTHS = (1, 2)
"""Draft lengths at which distributions are tested: the two kinds of a second token."""
ERROR = 1e-3
"""The chance that a pair without a fault is called faulty, over all tests together."""

_WORST = {"same": 0, "tie": 1, "bug": 2}
_NEVER = 10**9
_FEWEST_DRAWS = 100
_FEWEST_SECONDS = 10
"""Draws of a first token below which its second ones cannot fill two cells."""
_PLACES_IN, _ANSWER = 8, 24
_TASKS_LOOKED_AT = 6
_REPEATED = slice(-24, -8)
_REMEMBERED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode with drafts."""

    rule: str
    drafter: str
    k: int
    temperature: float

    @property
    def keeps_text(self) -> bool:
        return self.temperature == 0 or RULES[self.rule].keeps_text

    def __str__(self) -> str:
        return f"{self.rule}, {self.drafter} k {self.k}, temperature {self.temperature:g}"


@dataclass
class TextCheck:
    """What came of holding the texts of one way against plain decoding's. `tokens` were compared."""

    way: Way
    tokens: int = 0
    answers: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    worst: Comparison = field(default_factory=lambda: Comparison("same"))

    def add(self, found: Comparison, n_tokens: int) -> None:
        self.answers += 1
        self.tokens += n_tokens if found.position is None else found.position
        self.verdicts[found.verdict] += 1
        self.worst = max(self.worst, found, key=lambda c: (_WORST[c.verdict], c.gap))


@dataclass(frozen=True, slots=True)
class LawCheck:
    """One place of a text, drawn many times in one way.

    `overlap` is the share of the target's distribution that the draft has, too. `chances` are those of counts at
    least this far from the target's distribution, for the first and the second token; None where too few different
    tokens can come to say anything.
    """

    way: Way
    kind: str
    context: int
    overlap: float
    draws: int
    chances: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    tokens: tuple[int, ...]
    overlap: float


class Remembered:
    """A target that computes what follows a text once, however often it is asked: draws of one place repeat."""

    def __init__(self, session: Target) -> None:
        self._session = session
        self._rows: dict[tuple[tuple[int, ...], int], Logits] = {}
        self._bytes = 0

    @property
    def n_ctx(self) -> int:
        return self._session.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._session.n_vocab

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        key = (tuple(tokens), n_last)
        if key in self._rows:
            return self._rows[key]
        rows = self._session.score(tokens, n_last)
        if self._bytes + rows.nbytes <= _REMEMBERED_BYTES:
            self._rows[key] = rows.copy()
            self._bytes += rows.nbytes
        return rows


class Audit:
    """Tests an open pair. `sampling` is that of every run but for its temperature; `texts` and `laws` hold results."""

    def __init__(self, pair: Pair, sampling: SamplingParams, clock: Callable[[], float]) -> None:
        self._pair = pair
        self._sampling = sampling
        self._clock = clock
        self.texts: dict[Way, TextCheck] = {}
        self.laws: list[LawCheck] = []

    @property
    def bugs(self) -> list[TextCheck | LawCheck]:
        """What breaks the promise."""
        wrong_texts = [check for check in self.texts.values() if check.worst.verdict == "bug"]
        return [*wrong_texts, *(check for check in self.laws if self.is_wrong(check))]

    def is_wrong(self, check: LawCheck) -> bool:
        """Whether so small a chance is none, among as many tests."""
        return any(chance < self.threshold(len(self.laws)) for chance in check.chances if chance is not None)

    @staticmethod
    def threshold(n_places: int) -> float:
        """Bonferroni's, with two tests for each place and way."""
        return ERROR / (2 * n_places)

    def seconds_per_answer(self, task: Task, n: int) -> float:
        """What one takes, about: plain decoding's, which no way is slower than by much."""
        began = self._clock()
        self._answer(task, None, 0.0, n)
        return self._clock() - began

    def check_texts(
        self, tasks: Sequence[Task], ways: Sequence[Way], n_tokens: int, n_each: int, deadline: float
    ) -> Iterator[None]:
        """Every way on one prompt after another, until `n_tokens` are compared or time is up; yields after each."""
        for n, task in enumerate(tasks):
            if n and self._clock() > deadline:
                return
            plain: dict[float, tuple[int, ...]] = {}
            for way in ways:
                check = self.texts.setdefault(way, TextCheck(way))
                if check.tokens >= n_tokens:
                    continue
                if way.temperature not in plain:
                    plain[way.temperature] = self._answer(task, None, way.temperature, n_each)[0]
                self._check_text(task, check, plain[way.temperature], n_each)
                yield

    def _check_text(self, task: Task, check: TextCheck, plain: tuple[int, ...], n_each: int) -> None:
        way = check.way
        ids, widest = self._answer(task, way, way.temperature, n_each)
        rule = SharedNoise(self._rule("coupled", way.temperature).law, seed=self._pair.rule.seed)
        check.add(compare(self._pair.target.session, rule, task.ids, plain, ids, widest), len(ids))

    def _answer(self, task: Task, way: Way | None, temperature: float, n: int) -> tuple[tuple[int, ...], int]:
        """An answer and its widest pass; plain decoding's without a way. Drafting never gives up."""
        pair, ids, widest = self._pair, list[int](), 1
        rule = self._rule(way.rule if way else "coupled", temperature)
        drafter = self._drafter(way.drafter, rule, self._draft_session) if way else NoDrafter()
        for round_ in generate(
            pair.target.session,
            drafter,
            FixedLength(way.k if way else 0, give_up_after=_NEVER),
            rule,
            task.ids,
            max_tokens=n,
            ends=lambda token: token in pair.end_tokens,
            clock=self._clock,
        ):
            ids += round_.tokens
            widest = max(widest, len(round_.drafted) + 1)
        return tuple(ids), widest

    @property
    def _draft_session(self) -> Target | None:
        return self._pair.draft.session if self._pair.draft is not None else None

    def _drafter(self, name: str, rule: Rule, session: Target | None) -> Drafter:
        return DRAFTERS[name](DrafterParts(rule, self._pair.end_tokens, 0.0, session))

    def _rule(self, name: str, temperature: float, seed: int | None = None) -> Rule:
        law = self._pair.rule.law.with_params(replace(self._sampling, temperature=temperature))
        return RULES[name](law, seed=self._pair.rule.seed if seed is None else seed)

    # --- distributions ------------------------------------------------------------------------------------

    def check_laws(
        self, tasks: Sequence[Task], ways: Sequence[Way], draws: int, n_places: int, deadline: float
    ) -> Iterator[None]:
        """`n_places` places in every way, `draws` times each or as time allows; yields after each place and way."""
        left = len(ways) * n_places
        places = self._candidates(tasks, n_places)
        seen = _Sessions.of(self._pair)
        by_source: dict[tuple[str, float], list[Way]] = defaultdict(list)
        for way in ways:
            by_source[way.drafter, way.temperature].append(way)
        for (drafter, temperature), those in by_source.items():
            for place in self._best(places[drafter], drafter, temperature, n_places, seen):
                sessions = _Sessions.of(self._pair)
                for way in those:
                    now = self._clock()
                    self.laws.append(self._check_law(place, way, draws, now + (deadline - now) / left, sessions))
                    left -= 1
                    yield

    def _candidates(self, tasks: Sequence[Task], n_places: int) -> Mapping[str, list[list[Task]]]:
        """For each drafter and task, beginnings of texts at which something may be drafted."""
        found: Mapping[str, list[list[Task]]] = {"model": [], "ngram": []}
        for task in tasks[: max(_TASKS_LOOKED_AT, n_places)]:
            answer = self._answer(task, None, 1.0, _ANSWER)[0]
            texts = [(*task.ids, *answer[:n]) for n in range(0, len(answer) + 1, _ANSWER // _PLACES_IN)]
            n_shared = self._pair.rule.law.n_shared
            texts = [text for text in texts if max(text) < n_shared and text[-1] not in self._pair.end_tokens]
            found["model"].append([Task(task.kind, text) for text in texts])
            # Lookup finds what it has seen: the text says some of itself again, and stops before it is through.
            found["ngram"].append([Task(task.kind, (*text, *text[_REPEATED])) for text in texts])
        return found

    def _best(
        self,
        by_task: Sequence[Sequence[Task]],
        drafter: str,
        temperature: float,
        n_places: int,
        seen: "_Sessions",
    ) -> list[_Place]:
        """One place of each text, where a rejection is as likely as not: there every part of a rule is at work."""
        rule = self._rule("rejection", temperature, 0)
        best = []
        for texts in by_task:
            places = [self._place(text, drafter, rule, seen) for text in texts]
            best += sorted((p for p in places if p is not None), key=_one_sided)[:1]
        return sorted(best, key=_one_sided)[:n_places]

    def _place(self, task: Task, drafter: str, rule: Rule, seen: "_Sessions") -> _Place | None:
        text = task.ids
        draft = self._drafter(drafter, rule, seen.draft).propose(text, 1)
        if not draft.tokens or len(text) + max(LAW_LENGTHS) + 2 > seen.target.n_ctx:
            return None
        p = rule.law.distribution(seen.target.score(text, 1)[0], text)
        q = draft.probs[0] if draft.probs else certain(draft.tokens[0])
        return _Place(task.kind, text, 1.0 - float(excess(p, q).sum()))

    def _check_law(self, place: _Place, way: Way, draws: int, deadline: float, sessions: "_Sessions") -> LawCheck:
        """A chance that would be a bug must come twice: far out, with few counts in a cell, the test exaggerates."""
        first = 2 * draws * len(self.laws)  # no two tests have a seed in common
        drawn = self._draw(place, way, range(first, first + draws), deadline, sessions)
        chances = self._chances(place, way, drawn, sessions)
        if any(chance is not None and chance < ERROR for chance in chances):
            again = self._draw(place, way, range(first + draws, first + draws + len(drawn)), np.inf, sessions)
            others = self._chances(place, way, again, sessions)
            chances = (_larger(chances[0], others[0]), _larger(chances[1], others[1]))
        return LawCheck(way, place.kind, len(place.tokens), place.overlap, len(drawn), chances)

    def _draw(
        self, place: _Place, way: Way, seeds: Sequence[int], deadline: float, sessions: "_Sessions"
    ) -> list[tuple[int, int]]:
        """The two tokens of every seed, of a few at least and as many as there is time for."""
        found: list[tuple[int, int]] = []
        for seed in seeds:
            if len(found) >= _FEWEST_DRAWS and self._clock() > deadline:
                break
            rule = self._rule(way.rule, way.temperature, seed)
            drafter = self._drafter(way.drafter, rule, sessions.draft)
            found.append(two_tokens(sessions.target, drafter, rule, place.tokens, way.k))
        return found

    def _chances(
        self, place: _Place, way: Way, drawn: Sequence[tuple[int, int]], sessions: "_Sessions"
    ) -> tuple[float | None, float | None]:
        """Of the first tokens, and of the second ones given the first."""
        law, after = self._rule("coupled", way.temperature).law, defaultdict[int, Counter[int]](Counter)
        for first, second in drawn:
            after[first][second] += 1
        firsts = Counter({first: seconds.total() for first, seconds in after.items()})
        context, found, freedom = list(place.tokens), 0.0, 0
        for first, seconds in after.items():
            if firsts[first] >= _FEWEST_SECONDS and first not in self._pair.end_tokens:
                rows = _narrow_and_wide(sessions.target, context, first, way.k)
                one, more = distance(seconds, *(law.distribution(row[1], [*context, first]) for row in rows))
                found, freedom = found + one, freedom + more
        rows = _narrow_and_wide(sessions.target, context, drawn[0][0], way.k)
        return _chance(*distance(firsts, *(law.distribution(row[0], context) for row in rows))), _chance(found, freedom)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Both models, each asked the same only once."""

    target: Remembered
    draft: Remembered | None

    @classmethod
    def of(cls, pair: Pair) -> "_Sessions":
        draft = Remembered(pair.draft.session) if pair.draft is not None else None
        return cls(Remembered(pair.target.session), draft)


def two_tokens(target: Target, drafter: Drafter, rule: Rule, context: Sequence[int], k: int) -> tuple[int, int]:
    """The next two tokens of a text, by as many rounds with drafts as they take."""
    tokens = list(context)
    while len(tokens) < len(context) + 2:
        draft = drafter.propose(tokens, k)
        rows = target.score([*tokens, *draft.tokens], len(draft.tokens) + 1)
        n_accepted, own = rule.verify(rows, draft, tokens)
        tokens += [*draft.tokens[:n_accepted], own]
    return tokens[len(context)], tokens[len(context) + 1]


def _narrow_and_wide(target: Target, context: Sequence[int], first: int, k: int) -> tuple[list[Row], list[Row]]:
    """Rows after `context` and after `first`: from passes of one token, as plain decoding has them, and of k + 1."""
    text = [*context, first]
    narrow = [target.score(tokens, 1)[0].copy() for tokens in (text[:-1], text)]
    return narrow, list(target.score([*text, *[first] * (k - 1)], k + 1)[:2])


def _one_sided(place: _Place) -> float:
    return abs(place.overlap - 0.5)


def _chance(statistic: float, freedom: int) -> float | None:
    return survival(statistic, freedom) if freedom else None


def _larger(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)
