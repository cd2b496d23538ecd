"""The checks of `specdec audit`: exactness at length, on the user's own files.

Texts of the coupled rule, and of every rule at temperature 0, must be plain decoding's. The other rules promise only
the distribution: for them one place of a text is drawn many times, each time with another seed, and the tokens are
counted. A draw begins with a draft, which the engine's first round does not have, and goes on round after round until
two tokens stand. The first token shows acceptance and the target's token after a rejection, the second the row after an
accepted token, drafted (k 2) or the target's own (k 1).

What the counts are held against is the mean of the target's distributions in the very passes that gave the tokens. On
files where the width of a pass moves the logits, those differ from plain decoding's: no rule's fault, but told, as
`shift`. That passes give the right rows at all is what the texts show.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from specdec_cli.audit.chi_square import distance, survival
from specdec_cli.audit.memoized import Remembered, RememberedHead, RememberedHeads, RememberedTarget
from specdec_cli.bench.compare_texts import Comparison, compare
from specdec_cli.bench.measure import Task
from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.engine import rows_for
from specdec_cli.decode.rejection import excess
from specdec_cli.decode.sampler_chain import certain
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Distribution, Drafter, Head, Target
from specdec_cli.drafters import DrafterParts, kinds, make_drafter
from specdec_cli.drafters.medusa.heads import Heads
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair, decoding_for, own_name
from specdec_cli.generation.rules import RULES

LAW_LENGTHS = (1, 2)
"""Draft lengths at which distributions are tested: the two kinds of a second token."""
ERROR = 1e-3
"""The chance that a pair without a fault is called faulty, over all tests together."""

_NEVER = 10**9
_FEWEST_DRAWS = 300
"""With a hundred, a residual that ignores the draft goes unseen: rather fewer places."""
_FEWEST_SECONDS = 10
"""Draws of a first token below which its second ones cannot fill two cells."""
_PLACES_IN, _ANSWER = 8, 24
_TASKS_LOOKED_AT = 6
_REPEATED = slice(-24, -8)


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
    """What came of holding the texts of one way against plain decoding's. `tokens` were compared; `drafted` is how many
    draft tokens were verified."""

    way: Way
    tokens: int = 0
    drafted: int = 0
    answers: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    worst: Comparison = field(default_factory=lambda: Comparison("same"))

    def add(self, found: Comparison, n_tokens: int) -> None:
        self.answers += 1
        self.tokens += n_tokens if found.position is None else found.position
        self.verdicts[found.verdict] += 1
        self.worst = max(self.worst, found, key=lambda c: c.severity)


@dataclass(frozen=True, slots=True)
class LawCheck:
    """One place of a text, drawn many times in one way.

    `overlap` is the share of the target's distribution that the draft has, too, `shift` the share of the first token's
    that the width of the passes moves. `chances` are those of counts at least this far from the target's distribution,
    for the first and the second token; None where too few different tokens can come to say anything.
    """

    way: Way
    kind: str
    context: int
    overlap: float
    shift: float
    draws: int
    chances: tuple[float | None, float | None]


class _Answer(NamedTuple):
    """Its tokens, its widest pass, how many draft tokens were verified."""

    ids: tuple[int, ...]
    widest: int
    drafted: int


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    tokens: tuple[int, ...]
    overlap: float


class Audit:
    """Tests an open pair. `sampling` is that of every run but for its temperature; `texts` and `laws` hold results.

    At a drafter and temperature of `without_places` nothing was drafted where distributions could be tested; the ways
    `without_time` were not begun before the deadline.
    """

    def __init__(self, pair: Pair, sampling: SamplingParams, clock: Callable[[], float]) -> None:
        self._pair = pair
        self._sampling = sampling
        self._clock = clock
        self.texts: dict[Way, TextCheck] = {}
        self.laws: list[LawCheck] = []
        self.without_places: list[tuple[str, float]] = []
        self.without_time: list[Way] = []

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
        """Every way on one prompt after another, until `n_tokens` are compared or time is up; yields after each. One
        way is looked at in any case.
        """
        for task in tasks:
            plain: dict[float, tuple[int, ...]] = {}
            for way in ways:
                if self.texts and self._clock() > deadline:
                    self.without_time += [way for way in ways if way not in self.texts]
                    return
                check = self.texts.setdefault(way, TextCheck(way))
                if check.tokens >= n_tokens:
                    continue
                if way.temperature not in plain:
                    plain[way.temperature] = self._answer(task, None, way.temperature, n_each).ids
                self._check_text(task, check, plain[way.temperature], n_each)
                yield

    def _check_text(self, task: Task, check: TextCheck, plain: tuple[int, ...], n_each: int) -> None:
        way = check.way
        ids, widest, drafted = self._answer(task, way, way.temperature, n_each)
        check.drafted += drafted
        widest = min(widest, self._pair.target.context.max_rows)
        rule = SharedNoise(self._rule("coupled", way.temperature).law, seed=self._pair.rule.seed)
        check.add(compare(self._pair.target.session, rule, task.ids, plain, ids, widest), len(ids))

    def _answer(self, task: Task, way: Way | None, temperature: float, n: int) -> _Answer:
        """Plain decoding's without a way. Drafting never gives up."""
        ids, widest, drafted = list[int](), 1, 0
        rule = self._rule(way.rule if way else "coupled", temperature)
        drafter, k = (way.drafter, way.k) if way else (NoDrafter.name, 0)
        decoding = decoding_for(self._pair, drafter, k, rule, give_up_after=_NEVER)
        for round_ in self._pair.rounds(task.ids, decoding, max_tokens=n, clock=self._clock):
            ids += round_.tokens
            widest = max(widest, len(round_.drafted) + 1 + round_.n_beside)
            drafted += len(round_.drafted)
        return _Answer(tuple(ids), widest, drafted)

    def _drafter(self, name: str, rule: Rule, seen: "_Sessions") -> Drafter:
        pair = self._pair
        parts = DrafterParts(
            rule,
            pair.end_tokens,
            0.0,
            seen.draft,
            seen.target,
            head=seen.head,
            heads=seen.heads,
            crossing=pair.crossing,
        )
        return make_drafter(own_name(name, pair.draft), parts)

    def _rule(self, name: str, temperature: float, seed: int | None = None) -> Rule:
        law = self._pair.rule.law.with_params(replace(self._sampling, temperature=temperature))
        return RULES[name](law, seed=self._pair.rule.seed if seed is None else seed)

    # --- distributions ------------------------------------------------------------------------------------

    def check_laws(
        self, tasks: Sequence[Task], ways: Sequence[Way], draws: int, n_places: int, deadline: float
    ) -> Iterator[None]:
        """Every way at one place after another, of `n_places` or until time is up; yields after each. As many as
        `draws` are made at each, or as time allows, but never too few to show anything; one way is looked at in any
        case.
        """
        by_source = defaultdict[tuple[str, float], list[Way]](list)
        for way in ways:
            by_source[way.drafter, way.temperature].append(way)
        best = self._best_of(tasks, by_source, n_places, deadline)
        self.without_places += [source for source, places in best.items() if not places]
        left = sum(len(those) * len(best[source]) for source, those in by_source.items())
        for n in range(n_places):
            for source, those in by_source.items():
                sessions = _Sessions.of(self._pair)
                for way in those if n < len(best[source]) else ():
                    now = self._clock()
                    if self.laws and now > deadline:
                        tested = {check.way for check in self.laws}
                        wanted = [way for source, those in by_source.items() if best[source] for way in those]
                        self.without_time += [way for way in wanted if way not in tested]
                        return
                    self.laws.append(
                        self._check_law(best[source][n], way, draws, now + (deadline - now) / left, sessions)
                    )
                    left -= 1
                    yield

    def _best_of(
        self, tasks: Sequence[Task], wanted: Iterable[tuple[str, float]], n_places: int, deadline: float
    ) -> dict[tuple[str, float], list[_Place]]:
        """The places for each drafter and temperature."""
        places, seen = self._candidates(tasks, n_places), _Sessions.of(self._pair)
        return {
            (drafter, temperature): self._best(
                places[any(kind.copies for kind in kinds(drafter))], drafter, temperature, n_places, deadline, seen
            )
            for drafter, temperature in wanted
        }

    def _candidates(self, tasks: Sequence[Task], n_places: int) -> Mapping[bool, list[list[Task]]]:
        """For each task, beginnings of texts at which something may be drafted: by anybody, and by who copies."""
        found: Mapping[bool, list[list[Task]]] = {False: [], True: []}
        for task in tasks[: max(_TASKS_LOOKED_AT, n_places)]:
            answer = self._answer(task, None, 1.0, _ANSWER).ids
            texts = [(*task.ids, *answer[:n]) for n in range(0, len(answer) + 1, _ANSWER // _PLACES_IN)]
            n_shared = self._pair.rule.law.n_shared
            texts = [text for text in texts if max(text) < n_shared and text[-1] not in self._pair.end_tokens]
            found[False].append([Task(task.kind, text) for text in texts])
            # They find what they have seen: the text says some of itself again, and stops before it is through.
            found[True].append([Task(task.kind, (*text, *text[_REPEATED])) for text in texts])
        return found

    def _best(
        self,
        by_task: Sequence[Sequence[Task]],
        drafter: str,
        temperature: float,
        n_places: int,
        deadline: float,
        seen: "_Sessions",
    ) -> list[_Place]:
        """One place of each text, where a rejection is as likely as not: there every part of a rule is at work. After
        the deadline the first that is found will do."""
        rule = self._rule("rejection", temperature, 0)
        best = list[_Place]()
        for texts in by_task:
            if best and self._clock() > deadline:
                break
            places = [self._place(text, drafter, rule, seen) for text in texts]
            best += sorted((p for p in places if p is not None), key=_one_sided)[:1]
        return sorted(best, key=_one_sided)[:n_places]

    def _place(self, task: Task, drafter: str, rule: Rule, seen: "_Sessions") -> _Place | None:
        text = task.ids
        draft = self._drafter(drafter, rule, seen).propose(text, 1)
        if not draft.tokens or len(text) + max(LAW_LENGTHS) + 2 > seen.target.n_ctx:
            return None
        p = rule.law.distribution(seen.target.score(text, 1)[0], text)
        q = draft.probs[0] if draft.probs else certain(draft.tokens[0])
        return _Place(task.kind, text, 1.0 - float(excess(p, q).sum()))

    def _check_law(self, place: _Place, way: Way, draws: int, deadline: float, sessions: "_Sessions") -> LawCheck:
        """A chance that would be a bug must come twice: far out, with few counts in a cell, the test exaggerates."""
        first = 2 * draws * len(self.laws)  # no two tests have a seed in common
        firsts, seconds = self._draw(place, way, range(first, first + draws), deadline, sessions)
        chances = self._chances(firsts, seconds)
        if any(chance is not None and chance < ERROR for chance in chances):
            again = range(first + draws, first + draws + firsts.n)
            others = self._chances(*self._draw(place, way, again, np.inf, sessions))
            chances = (_larger(chances[0], others[0]), _larger(chances[1], others[1]))
        law = self._rule("coupled", way.temperature).law
        plain = law.distribution(sessions.target.score(place.tokens, 1)[0], place.tokens)
        shift = float(excess(plain, firsts.expected).sum())
        return LawCheck(way, place.kind, len(place.tokens), place.overlap, shift, firsts.n, chances)

    def _draw(
        self, place: _Place, way: Way, seeds: Sequence[int], deadline: float, sessions: "_Sessions"
    ) -> tuple["_Tally", dict[int, "_Tally"]]:
        """The first tokens, and by the first the second ones: of a few seeds at least, and of all if there is time."""
        firsts, seconds = _Tally(), defaultdict[int, _Tally](_Tally)
        known: dict[_Source, Distribution] = {}
        for seed in seeds:
            if firsts.n >= _FEWEST_DRAWS and self._clock() > deadline:
                break
            rule = self._rule(way.rule, way.temperature, seed)
            drafter = self._drafter(way.drafter, rule, sessions)
            (first, p), (second, p_next) = two_tokens(sessions.target, drafter, rule, place.tokens, way.k, known)
            firsts.add(first, p)
            seconds[first].add(second, p_next)
        return firsts, seconds

    def _chances(self, firsts: "_Tally", seconds: Mapping[int, "_Tally"]) -> tuple[float | None, float | None]:
        """Of the first tokens, and of the second ones given the first; nothing is written after an end."""
        found, freedom = 0.0, 0
        for first, tally in seconds.items():
            if tally.n >= _FEWEST_SECONDS and first not in self._pair.end_tokens:
                one, more = distance(tally.counts, tally.expected)
                found, freedom = found + one, freedom + more
        return _chance(*distance(firsts.counts, firsts.expected)), _chance(found, freedom)


class _Tally:
    """Tokens counted, and how often each was to be expected."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self._sources: dict[int, tuple[Distribution, int]] = {}

    @property
    def n(self) -> int:
        return self.counts.total()

    def add(self, token: int, p: Distribution) -> None:
        """A token that was to come from p; the same p is the same object."""
        self.counts[token] += 1
        self._sources[id(p)] = p, self._sources.get(id(p), (p, 0))[1] + 1

    @property
    def expected(self) -> Distribution:
        """The mean of all p."""
        parts = list(self._sources.values())
        ids, where = np.unique(np.concatenate([p.ids for p, _ in parts]), return_inverse=True)
        shares = np.concatenate([p.probs * (n / self.n) for p, n in parts])
        probs = np.zeros(len(ids))
        np.add.at(probs, where, shares)
        return Distribution(ids, probs)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Target and draft, each asked the same only once."""

    target: RememberedTarget
    draft: Target | None
    head: Head | None
    heads: Heads | None

    @classmethod
    def of(cls, pair: Pair) -> "_Sessions":
        return cls(
            RememberedTarget(pair.target.session),
            Remembered(pair.draft.session) if isinstance(pair.draft, OpenModel) else None,
            RememberedHead(pair.draft.session) if isinstance(pair.draft, OpenHead) else None,
            RememberedHeads(pair.heads) if pair.heads is not None else None,
        )


_Source = tuple[tuple[int, ...], int, int]
"""A row: the text of its pass, how many draft tokens were in it, the row's index."""


def two_tokens(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    context: Sequence[int],
    k: int,
    known: dict[_Source, Distribution],
) -> list[tuple[int, Distribution]]:
    """The next two tokens of a text, by as many rounds with drafts as they take, each with the target's distribution
    in the pass that gave it. `known` holds those so far.
    """
    tokens, found = list(context), list[tuple[int, Distribution]]()
    while len(found) < 2:
        draft = drafter.propose(tokens, k)
        text, n_drafted = (*tokens, *draft.tokens), len(draft.tokens)
        rows = rows_for(target, text, draft)
        n_accepted, own = rule.verify(rows, draft, tokens)
        for i, token in enumerate((*draft.tokens[:n_accepted], own)):
            source = text, n_drafted, i
            if source not in known:
                known[source] = rule.law.distribution(rows[i], tokens)
            found.append((token, known[source]))
            tokens.append(token)
    return found[:2]


def _one_sided(place: _Place) -> float:
    return abs(place.overlap - 0.5)


def _chance(statistic: float, freedom: int) -> float | None:
    return survival(statistic, freedom) if freedom else None


def _larger(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)
