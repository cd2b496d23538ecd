"""Caches of a pair tried by turns: the fastest is taken, unless it is the target's and changes the text."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from specdec_cli.bench.measure import Bench, Run, Setting, Task
from specdec_cli.bench.tune import Memory, Tuner, draft_candidates, target_candidates, weight_candidates
from specdec_cli.commands.tune import Tuning, _threads, fastest
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests.cli import Models

PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SETTING = Setting("model", 2, 1.0)
TASKS = [Task("a", (1, 300, 301)), Task("b", (1, 310, 302, 305))]
N = 12
PAYS = 1.03


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def pair(models: Models) -> Iterator[Pair]:
    request = PairRequest(
        models.words, Drafting("none", 4, models.draft, force=True), Sampling(seed=1, params=PURE), Placement(threads=1)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


class PacedBench(Bench):
    """Real texts at the speed that `pace` gives each pair; may put a word of its own into the text."""

    def __init__(self, pair: Pair, pace: Callable[[Pair], float], says: Callable[[Pair], int]) -> None:
        ticks = itertools.count()
        super().__init__(pair, PURE, N, lambda: next(ticks) / pace(pair))
        self._says = lambda: says(pair)

    def run(self, task: Task, setting: Setting, n_tokens: int | None = None) -> Run:
        run = super().run(task, setting, n_tokens)
        return replace(run, ids=(*run.ids[:-1], run.ids[-1] + self._says()))


def tuner(
    pair: Pair, pace: Callable[[Pair], float], says: Callable[[Pair], int] = lambda _: 0, until: float = 9
) -> Tuner:
    clock = itertools.count()
    return Tuner(
        pair,
        lambda opened: PacedBench(opened, pace, says),
        TASKS,
        SETTING,
        n_ctx=64,
        threads=(1, 1),
        clock=lambda: float(next(clock)),
        until=until,
        abort=AbortFlag(),
    )


def cache_of(pair: Pair) -> str:
    return pair.target.context.cache_type


def test_candidates_are_what_is_not_there_yet(pair: Pair) -> None:
    assert [str(memory) for memory in draft_candidates(pair)] == ["draft's cache bf16", "draft's cache q8_0"]
    assert [str(memory) for memory in target_candidates(pair)] == ["cache bf16", "cache q8_0", "flash attention off"]
    assert draft_candidates(replace(pair, draft=None)) == []
    quantised = replace(pair.target, context=replace(pair.target.context, cache_type="q8_0"))
    assert [str(m) for m in target_candidates(replace(pair, target=quantised))] == ["cache f16", "cache bf16"]


def test_weights_are_tried_the_other_way_where_a_kernel_reorders_them(pair: Pair) -> None:
    target = replace(pair.target, facts=replace(pair.target.facts, format_bytes={"Q4_0": 1 << 20}))
    quantised = replace(pair, target=target)
    assert [str(memory) for memory in weight_candidates(quantised, frozenset({"Q4_0"}))] == ["weights as in the file"]
    assert weight_candidates(quantised, frozenset({"Q2_K"})) == []
    assert weight_candidates(pair, frozenset({"Q4_0"})) == []  # F32


def test_weights_as_in_the_file_are_loaded_again_and_taken_if_faster(pair: Pair) -> None:
    def pace(opened: Pair) -> float:
        return 1.0 if opened.target.model.settings.repack else 1.5

    found, trials = tuner(pair, pace).best(Memory(), [Memory(repack=False)], PAYS)
    assert found == Memory(repack=False)
    assert str(trials[0]) == "weights as in the file: 1.50 times as fast"
    found, trials = tuner(pair, lambda opened: 1 / pace(opened)).best(Memory(), [Memory(repack=False)], PAYS)
    assert (found, trials[0].ratio) == (Memory(), pytest.approx(1 / 1.5))


@dataclass(frozen=True)
class At(Run):
    """A run at this pace."""

    pace: float = 1.0

    @property
    def speed(self) -> float:
        return self.pace


def test_threads_of_target_and_draft_are_chosen_apart(pair: Pair) -> None:
    now: list[tuple[int, int]] = []
    speeds = {(4, 4): 1.0, (2, 2): 0.8, (4, 2): 1.3, (2, 4): 0.9}

    class Paced(Bench):
        def _set_threads(self, threads: tuple[int, int]) -> None:
            now.append(threads)

        def run(self, _task: Task, _setting: Setting, _n_tokens: int | None = None) -> Run:
            return At((), (), RunStats(), speeds[now[-1]])

    assert _threads(Paced(pair, PURE, N, lambda: 0.0), TASKS, SETTING, (4, 4)) == (4, 2)
    lookup = replace(SETTING, drafter="ngram")
    assert _threads(Paced(pair, PURE, N, lambda: 0.0), TASKS, lookup, (4, 4)) == (4, 4)


def test_the_fastest_is_taken_with_what_was_found_before(pair: Pair) -> None:
    before = Memory(cache_type_draft="bf16")
    found, trials = tuner(pair, lambda p: {"q8_0": 1.5, "bf16": 1.2}.get(cache_of(p), 1.0)).best(
        before, target_candidates(pair), PAYS
    )
    assert found == Memory("q8_0", "bf16")
    assert [trial.ratio for trial in trials] == pytest.approx([1.2, 1.5, 1.0])
    assert [len(trial.ratios) for trial in trials] == [len(TASKS)] * 3


def test_what_is_hardly_faster_stays_out(pair: Pair) -> None:
    found, trials = tuner(pair, lambda p: 1.02 if cache_of(p) == "bf16" else 1.0).best(
        Memory(), target_candidates(pair), PAYS
    )
    assert (found, max(trial.ratio for trial in trials)) == (Memory(), pytest.approx(1.02))


def test_a_target_that_says_something_else_is_refused(pair: Pair) -> None:
    """And not tried any more."""
    found, trials = tuner(pair, lambda p: 2.0 if cache_of(p) == "bf16" else 1.0, lambda p: cache_of(p) == "bf16").best(
        Memory(), target_candidates(pair), PAYS
    )
    assert found == Memory()
    assert (trials[0].refused, len(trials[0].ratios)) == ("the text changes", 1)
    assert str(trials[0]) == "cache bf16: the text changes"


def test_the_drafts_cache_may_be_of_any_type(pair: Pair) -> None:
    """The text is the target's: real contexts, and the same ids from all of them."""
    found, trials = tuner(pair, lambda p: 1.5 if p.draft and p.draft.context.cache_type == "q8_0" else 1.0).best(
        Memory(), draft_candidates(pair), PAYS
    )
    assert found == Memory(cache_type_draft="q8_0")
    assert str(trials[1]) == "draft's cache q8_0: 1.50 times as fast"


def test_contexts_that_cannot_be_made_are_told(pair: Pair) -> None:
    candidates = [Memory(cache_type="q8_0", flash_attention="off"), Memory(cache_type="bf16")]
    found, trials = tuner(pair, lambda p: 1.5 if cache_of(p) == "bf16" else 1.0).best(Memory(), candidates, PAYS)
    assert "does not work with a KV cache of type q8_0" in str(trials[0])
    assert found == candidates[1]


def test_one_turn_is_the_least_and_the_last_when_time_is_over(pair: Pair) -> None:
    _, trials = tuner(pair, lambda _: 1.0, until=-1).best(Memory(), draft_candidates(pair), PAYS)
    assert [len(trial.ratios) for trial in trials] == [1, 1]


def test_the_open_contexts_are_left_alone(pair: Pair) -> None:
    sessions = pair.target.session, pair.draft and pair.draft.session
    before = Bench(pair, PURE, N, lambda: 0.0).run(TASKS[0], SETTING).ids
    tuner(pair, lambda _: 1.0).best(Memory(), target_candidates(pair), PAYS)
    assert (pair.target.session, pair.draft and pair.draft.session) == sessions
    assert Bench(pair, PURE, N, lambda: 0.0).run(TASKS[0], SETTING).ids == before


@pytest.mark.parametrize("with_target", [False, True])
def test_the_target_is_only_touched_on_request(
    pair: Pair, with_target: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specdec_cli.bench.report import Results

    pace = {"bf16": 1.5, "q8_0": 1.2}
    monkeypatch.setattr(
        "specdec_cli.bench.measure.Bench",
        lambda opened, *_: PacedBench(opened, lambda p: pace.get(cache_of(p), 1.0), lambda _: 0),
    )
    monkeypatch.setattr(Results, "best", lambda _: (SETTING, 1.4))
    tuning = Tuning(pair, PURE, N, AbortFlag(), until=float("inf"), with_target=with_target)
    profile = fastest(tuning, Bench(pair, PURE, N, lambda: 0.0), TASKS, Results({}, (), {}))
    assert (profile.drafter, profile.k, profile.threads) == ("model", 2, None)
    assert (profile.cache_type, profile.cache_type_draft) == ("bf16" if with_target else None, None)
    said = capsys.readouterr().err
    assert "Testing draft's cache bf16, draft's cache q8_0 ..." in said
    assert ("cache bf16: 1.50 times as fast (taken)" in said) == with_target


def test_without_time_nothing_is_tried(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_cli.bench.report import Results

    monkeypatch.setattr(Results, "best", lambda _: (SETTING, 1.4))
    tuning = Tuning(pair, PURE, N, AbortFlag(), until=0.0, with_target=True)
    profile = fastest(tuning, Bench(pair, PURE, N, lambda: 0.0), TASKS, Results({}, (), {}))
    assert profile.cache_type_draft is None
    assert "No time left to test cache bf16, cache q8_0, flash attention off" in capsys.readouterr().err
