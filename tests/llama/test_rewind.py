"""Memories that cannot simply be cropped: whatever way they go back, the text is that of plain decoding."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Draft, Drafter, Logits, Round
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, Interrupted
from specdec_cli.generation.pair import drafter_for, open_pair
from specdec_cli.lengths.rewind_cost import RewindCost, rewind_cost
from specdec_cli.llama import rewind
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import read_model
from specdec_cli.models.memory import cache_bytes
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import MAX_CHECKPOINTS, ContextSettings, ModelSettings
from tests.hybrids import write_hybrid
from tests.planted import disturbed, random_chain, write_planted, write_tiny_hybrid, write_tiny_mamba

N_VOCAB = 64
MAX_K = 8
N = 24
"""Tokens of an answer."""
EXACT = {"n_ctx": 512, "n_batch": 64, "n_ubatch": 64, "cache_type": "f32", "flash_attention": "off"}
KINDS = {"mamba": "checkpoints", "lfm2": "snapshots", "gemma3": "crop"}
"""The way each kind of target goes back."""
HYBRIDS = {"qwen35": "snapshots", "nemotron_h": "snapshots", "granitehybrid": "checkpoints"}
"""The same for those with large states."""
CELLS = [(0.0, k) for k in (1, 2, 4, 7)] + [(0.8, k) for k in (1, 3, 5, 6, 8)]
"""Temperatures and draft lengths."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By architecture a target, and with "-draft" a draft that agrees about half of the time."""
    folder = tmp_path_factory.mktemp("rewind")
    chain = random_chain(N_VOCAB, 1)
    return {
        f"{arch}{name}": write_planted(folder / f"{arch}{name}.gguf", one, arch=arch, mixing=1.0, seed=5)
        for arch in KINDS
        for name, one in (("", chain), ("-draft", disturbed(chain, 0.7, 2)))
    }


@pytest.fixture(scope="module")
def models(files: dict[str, Path]) -> Iterator[dict[str, LlamaModel]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(LlamaModel(ModelSettings(path))) for name, path in files.items()}


Open = Callable[..., LlamaSession]


@pytest.fixture
def opened(models: dict[str, LlamaModel]) -> Iterator[Open]:
    """`opened("mamba")` a target's session, `opened("mamba-draft", max_rows=1, max_back=8)` a draft's."""
    with ExitStack() as stack:

        def open_one(name: str, *, abort: AbortFlag | None = None, **settings: object) -> LlamaSession:
            wanted = ContextSettings(**{**EXACT, "max_rows": MAX_K + 1, **settings})
            return stack.enter_context(LlamaSession(models[name], wanted, abort=abort))

        yield open_one


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, N_VOCAB, size=n).tolist()


def rule(temperature: float) -> SharedNoise:
    return SharedNoise(Law(SamplingParams(temperature=temperature), n_shared=N_VOCAB), seed=7)


def rounds(
    target: LlamaSession, drafter: Drafter, k: int, temperature: float, prompt: Sequence[int]
) -> Iterator[Round]:
    return generate(
        target,
        drafter,
        FixedLength(k, give_up_after=10**9),
        rule(temperature),
        prompt,
        max_tokens=N,
        ends=lambda _: False,
        clock=time.perf_counter,
    )


def written(found: Iterator[Round]) -> tuple[list[int], int, int]:
    """(tokens, drafted, accepted)"""
    every = list(found)
    drafted, accepted = (sum(f(r) for r in every) for f in (lambda r: len(r.drafted), lambda r: r.n_accepted))
    return [t for r in every for t in r.tokens], drafted, accepted


class Spoilt:
    """Knows the text and proposes it, wrong at one place of each draft."""

    name = "spoilt"

    def __init__(self, text: Sequence[int], place: int) -> None:
        self.text = text
        self.place = place

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        draft = list(self.text[len(tokens) : len(tokens) + k])
        if self.place < len(draft):
            draft[self.place] = draft[self.place] % (N_VOCAB - 4) + 4
        return Draft(tuple(draft))


# --- the text is the same -------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "draft"), list(itertools.product(KINDS, KINDS)))
def test_a_draft_model_leaves_the_text_as_it_is(opened: Open, target: str, draft: str) -> None:
    prompt, plain = ids(40), opened(target)
    with opened(target) as verifying, opened(f"{draft}-draft", max_rows=1, max_back=MAX_K) as drafting:
        assert verifying.rewind.name == KINDS[target]
        assert drafting.rewind.name == ("crop" if draft == "gemma3" else "checkpoints")
        expected = {t: written(rounds(plain, NoDrafter(), 0, t, prompt))[0] for t in (0.0, 0.8)}
        total = np.zeros(2, int)
        for temperature, k in CELLS:
            drafter = ModelDrafter(drafting, rule(temperature), frozenset())
            tokens, *counts = written(rounds(verifying, drafter, k, temperature, prompt))
            assert tokens == expected[temperature], (temperature, k)
            total += counts
        assert total[0] > total[1] > 0


@pytest.mark.parametrize("target", KINDS)
def test_lookup_leaves_the_text_as_it_is(opened: Open, target: str) -> None:
    prompt, plain, verifying = ids(8) * 5, opened(target), opened(target)
    expected = {t: written(rounds(plain, NoDrafter(), 0, t, prompt))[0] for t in (0.0, 0.8)}
    total = np.zeros(2, int)
    for temperature, k in CELLS:
        tokens, *counts = written(rounds(verifying, NgramDrafter(least_chance=0.05), k, temperature, prompt))
        assert tokens == expected[temperature], (temperature, k)
        total += counts
    assert total[0] > total[1]


@pytest.mark.parametrize("target", KINDS)
def test_rejections_at_every_place_start_nothing_over(opened: Open, target: str) -> None:
    prompt = ids(40)
    text = prompt + written(rounds(opened(target), NoDrafter(), 0, 0.8, prompt))[0]
    for place in range(MAX_K + 1):  # the last one spoils nothing
        with opened(target) as s:
            tokens, drafted, accepted = written(rounds(s, Spoilt(text, place), MAX_K, 0.8, prompt))
            assert prompt + tokens == text
            assert s.n_resets == 0
            assert accepted == drafted if place == MAX_K else accepted < drafted
            if KINDS[target] != "checkpoints":
                assert s.n_evaluated <= len(prompt) + drafted + N


@pytest.mark.parametrize("wider", [True, False])
def test_accepted_tokens_are_evaluated_again_in_a_pass_with_others_or_alone(opened: Open, wider: bool) -> None:
    prompt = ids(40)
    text = prompt + written(rounds(opened("mamba"), NoDrafter(), 0, 0.8, prompt))[0]
    with opened("mamba", wider_passes=wider) as s:
        every = list(rounds(s, Spoilt(text, 3), 4, 0.8, prompt))
        assert prompt + [t for r in every for t in r.tokens] == text
        n_rejected = sum(r.n_accepted < len(r.drafted) for r in every[:-1])
        assert n_rejected == len(every) - 2 > 3, "all but the prompt's round, and the last one's draft is cut off"
        extra = s.n_passes - len(every) - 1  # the prompt but its last token is a pass too
        assert extra == n_rejected if not wider else 0 < extra < n_rejected


@pytest.mark.parametrize("draft", KINDS)
def test_a_draft_evaluates_nothing_twice(opened: Open, draft: str) -> None:
    """Its tokens come one by one, and it goes back to each of them exactly."""
    prompt, target, drafting = ids(40), opened("gemma3"), opened(f"{draft}-draft", max_rows=1, max_back=MAX_K)
    every = list(rounds(target, ModelDrafter(drafting, rule(0.8), frozenset()), MAX_K, 0.8, prompt))
    assert sum(r.n_accepted for r in every) < sum(len(r.drafted) for r in every)
    full = sum(r.n_accepted == len(r.drafted) > 0 for r in every[:-1])  # after these it owes its own last token
    drafts = sum(len(r.drafted) for r in every)
    assert drafting.n_evaluated == len(prompt) + drafts + full
    assert drafting.n_resets == 0


@pytest.mark.parametrize("arch", HYBRIDS)
def test_hybrids_with_large_states(tmp_path: Path, arch: str) -> None:
    """As target and as draft, with drafts of 1 to 8 tokens."""
    prompt, settings = ids(40), ContextSettings(**EXACT, max_rows=MAX_K + 1)
    draft_settings = ContextSettings(**EXACT, max_back=MAX_K)
    total = np.zeros(2, int)
    with ExitStack() as stack:
        paths = (write_hybrid(tmp_path / f"{amount}.gguf", arch, disturbance=amount) for amount in (0.0, 0.5))
        target, draft = (stack.enter_context(LlamaModel(ModelSettings(path))) for path in paths)
        plain, verifying = (stack.enter_context(LlamaSession(target, settings)) for _ in range(2))
        drafting = stack.enter_context(LlamaSession(draft, draft_settings))
        assert (verifying.rewind.name, drafting.rewind.name) == (HYBRIDS[arch], "checkpoints")
        expected = {t: written(rounds(plain, NoDrafter(), 0, t, prompt))[0] for t in (0.0, 0.8)}
        for temperature, k in CELLS:
            drafter = ModelDrafter(drafting, rule(temperature), frozenset())
            tokens, *counts = written(rounds(verifying, drafter, k, temperature, prompt))
            assert tokens == expected[temperature], (temperature, k)
            total += counts
        assert (verifying.n_resets, drafting.n_resets) == (0, 0)
    assert total[0] > total[1] > 0


def test_drafts_longer_than_there_are_checkpoints(opened: Open) -> None:
    """Checkpoints then stand a few tokens apart, and what lies between is evaluated again."""
    k, prompt = 2 * MAX_CHECKPOINTS + 3, ids(40)
    drafting = opened("mamba-draft", max_rows=1, max_back=k)
    expected, _, _ = written(rounds(opened("gemma3"), NoDrafter(), 0, 0.8, prompt))
    with opened("gemma3", max_rows=k + 1) as target:
        drafter = ModelDrafter(drafting, rule(0.8), frozenset())
        assert written(rounds(target, drafter, k, 0.8, prompt))[0] == expected
    assert drafting.n_resets == 0


# --- turns and stops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", KINDS)
def test_turns_go_on_from_each_other(opened: Open, target: str) -> None:
    """Appended to, written anew from the same prompt, and changed in the middle."""
    verifying, drafting = opened(target), opened("lfm2-draft", max_rows=1, max_back=MAX_K)
    first = ids(70)
    answer, _, _ = written(rounds(opened(target), NoDrafter(), 0, 0.8, first))
    turns = [first, first, first + answer + ids(9, 1), first + answer[:11] + ids(20, 2), first[:30], first]
    for prompt in turns:
        with opened(target) as fresh:
            expected, _, _ = written(rounds(fresh, NoDrafter(), 0, 0.8, prompt))
        drafter = ModelDrafter(drafting, rule(0.8), frozenset())
        assert written(rounds(verifying, drafter, 5, 0.8, prompt))[0] == expected


@pytest.mark.parametrize("target", KINDS)
def test_a_prompt_asked_again_is_not_read_again(opened: Open, target: str) -> None:
    prompt, s = ids(90), opened(target)
    written(rounds(s, NoDrafter(), 0, 0.8, prompt))
    before = s.n_evaluated
    s.score(prompt, 1)
    assert s.n_evaluated - before == 1


def again_and_again(found: Iterator[Round], more: Callable[[], Iterator[Round]]) -> Iterator[Round]:
    yield from found
    while True:
        yield from more()


@pytest.mark.parametrize("target", KINDS)
def test_stopped_in_the_middle_and_going_on(opened: Open, target: str) -> None:
    abort, prompt = AbortFlag(), ids(40)
    expected, _, _ = written(rounds(opened(target), NoDrafter(), 0, 0.8, prompt))
    text = prompt + expected
    with opened(target, abort=abort) as s:
        for n_rounds, delay in itertools.product((1, 3, 6), (0.0, 0.0002, 0.0005)):
            timer = threading.Timer(delay, abort.set, [2])
            found = rounds(s, Spoilt(text, 3), MAX_K, 0.8, prompt)
            for _ in range(n_rounds):
                next(found)
            timer.start()
            with pytest.raises(Interrupted):
                deque(again_and_again(found, lambda: rounds(s, Spoilt(text, 3), MAX_K, 0.8, prompt)), 0)
            timer.join()
            abort.clear()
            assert written(rounds(s, Spoilt(text, 3), MAX_K, 0.8, prompt))[0] == expected


# --- what each way can do -------------------------------------------------------------------------------


def rows(s: LlamaSession, tokens: Sequence[int], n_last: int = 1) -> Logits:
    return s.score(tokens, n_last).copy()


@pytest.mark.parametrize(
    ("wide", "keep", "cost"),
    [(9, 55, 1), (9, 51, 1), (9, 50, 1), (3, 57, 1), (3, 56, 1), (3, 40, 41), (1, 58, 1)],
)
def test_snapshots_reach_back_one_pass(opened: Open, wide: int, keep: int, cost: int) -> None:
    """Where it began lies the copy of the prompt's end, and before that nothing."""
    tokens, s = ids(59), opened("lfm2")
    rows(s, tokens, wide)
    before = s.n_evaluated
    assert np.abs(rows(s, [*tokens[:keep], 5]) - rows(opened("lfm2"), [*tokens[:keep], 5])).max() < 4e-3
    assert s.n_evaluated - before == cost
    assert s.n_resets == (cost == 41)


def test_the_snapshots_of_a_pass_are_used_up(opened: Open) -> None:
    tokens, s = ids(60), opened("lfm2")
    rows(s, tokens, 9)
    with pytest.raises(DecodeFailed, match="invalid token"):
        s.score([*tokens[:57], N_VOCAB], 1)  # goes back, and evaluates nothing
    before = s.n_evaluated
    assert np.abs(rows(s, [*tokens[:55], 5]) - rows(opened("lfm2"), [*tokens[:55], 5])).max() < 4e-3
    assert s.n_evaluated - before == 5, "from the copy at 51 tokens"


def test_copies_of_the_state_are_never_far_behind(opened: Open) -> None:
    """A long answer, and then back by more than a draft at any time."""
    tokens, s, other = ids(400), opened("lfm2"), opened("lfm2")
    rows(s, tokens[:50])
    end = 50
    for step in range(60):
        end += 5
        rows(s, tokens[:end], 5)
        if step % 13 == 12:
            before = s.n_evaluated
            assert np.abs(rows(s, [*tokens[: end - 7], 5]) - rows(other, [*tokens[: end - 7], 5])).max() < 4e-3
            assert s.n_evaluated - before <= rewind.COPY_EVERY + 5
    assert s.n_resets == 0


def test_a_long_prompt_leaves_its_last_snapshots_whole(opened: Open) -> None:
    """The batch is longer than a micro-batch, and the last of these must not be shorter than the way back."""
    for n in (64, 65, 66, 70, 130):
        tokens, s = ids(n), opened("lfm2", n_batch=256)
        rows(s, tokens, 9)
        assert np.abs(rows(s, [*tokens[:-8], 5]) - rows(opened("lfm2"), [*tokens[:-8], 5])).max() < 4e-3
        assert s.n_resets == 0


@pytest.mark.parametrize(("name", "settings"), [("mamba", {"max_rows": 1}), ("lfm2", {"max_rows": 1})])
def test_a_session_that_never_goes_back_keeps_nothing_for_it(
    opened: Open, name: str, settings: dict[str, object]
) -> None:
    assert opened(name, **settings).rewind.name == "start over"


def test_a_pass_too_narrow_for_snapshots_has_checkpoints(opened: Open) -> None:
    assert opened("lfm2", n_ubatch=9).rewind.name == "checkpoints"
    assert opened("lfm2", n_ubatch=10).rewind.name == "snapshots"


@pytest.fixture(scope="module")
def mamba_with_bytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a user could give: its tokenizer has byte tokens."""
    return write_tiny_mamba(tmp_path_factory.mktemp("bytes") / "mamba.gguf", seed=5)


WRITERS = [write_tiny_mamba, write_tiny_hybrid, *(partial(write_hybrid, arch=arch) for arch in HYBRIDS)]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("max_rows", "max_back"), [(MAX_K + 1, None), (1, MAX_K), (1, 40), (1, 0)])
def test_the_estimate_counts_what_is_kept(
    tmp_path: Path, write: Callable[..., Path], max_rows: int, max_back: int | None
) -> None:
    path = write(tmp_path / "model.gguf", seed=5)
    settings = ContextSettings(**EXACT, max_rows=max_rows, max_back=max_back)
    facts = model_facts(read_model(path))
    expected = cache_bytes(facts, settings)
    with LlamaModel(ModelSettings(path)) as model, LlamaSession(model, settings) as s:
        if s.rewind.name == "snapshots":  # two copies are not llama.cpp's
            expected -= 2 * sum(facts.state_bytes)
        assert s.cache_bytes == pytest.approx(expected, abs=0.015 * 2**20), "llama.cpp's log rounds to 0.01 MiB"


# --- liars ----------------------------------------------------------------------------------------------


def lie(self: rewind.Checkpoints, keep: int, distance: int) -> int:
    """The position goes back, the state stays."""
    rewind.llama_cpp.llama_memory_seq_add(self._memory, 0, 0, -1, -distance)
    return keep


def test_a_memory_that_only_says_it_went_back_is_found_out(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewind.Checkpoints, "back", lie)
    s = opened("mamba")
    assert s.rewind.name == "start over"
    assert not s.can_rewind


def test_one_that_does_nothing_is_found_out(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewind.Crop, "back", lambda _self, keep, _distance: keep)
    assert opened("gemma3").rewind.name == "start over"


def test_stale_snapshots_are_found_out(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp gives snapshots of an older pass without a word; a trial of one pass alone would not show it."""
    monkeypatch.setattr(rewind.Snapshots, "after", lambda self, _n: setattr(self, "_reach", self._settings.n_back))
    s, tokens = opened("lfm2"), ids(40)
    for n in range(30, 41):
        rows(s, tokens[:n])
    wrong = np.abs(rows(s, [*tokens[:35], 5]) - rows(opened("lfm2", max_rows=1), [*tokens[:35], 5])).max()
    assert wrong > 0.05, "this is why the reach of a pass is its own width"


# --- what it costs --------------------------------------------------------------------------------------


def test_the_speedup_by_hand() -> None:
    cost = RewindCost(k=1, plain=1.0, verify=1.2, again=1.6)
    assert cost.speedup(1.0) == pytest.approx(2 / 1.2)
    assert cost.speedup(0.0) == pytest.approx(1 / 1.6)
    assert cost.speedup(0.5) == pytest.approx(1.5 / 1.4)
    assert cost.break_even == pytest.approx(0.6 / 1.4, abs=1e-4)  # 1 + a = 1.2 a + 1.6 (1 - a)
    assert RewindCost(1, plain=1.0, verify=2.1, again=3.0).break_even is None


class Clockwork:
    """A target whose passes take as long as their width says, and a second more after a rejection."""

    n_ctx = 512
    n_vocab = 10

    def __init__(self) -> None:
        self.now = 0.0
        self.before: list[int] = []

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        is_longer = list(tokens[: len(self.before)]) == self.before
        self.now += (1.0 if n_last == 1 else 1.5) + (0.0 if is_longer else 1.0)
        self.before = list(tokens)
        return np.zeros((n_last, self.n_vocab), np.float32)


@pytest.mark.parametrize(("k", "measured"), [(1, 1), (3, 3), (8, 3)])
def test_costs_are_measured_with_rejections(k: int, measured: int) -> None:
    target = Clockwork()
    found = rewind_cost(target, k, lambda: target.now)
    assert found == RewindCost(measured, 1.0, 1.5, 2.5)


def test_a_context_too_short_to_measure_in_is_not_measured() -> None:
    target = Clockwork()
    target.n_ctx = 16
    assert rewind_cost(target, 3, lambda: target.now) is None


@pytest.mark.parametrize(("again", "pays"), [(2.0, True), (20.0, False)])
def test_what_does_not_pay_is_not_drafted(
    mamba_with_bytes: Path, monkeypatch: pytest.MonkeyPatch, again: float, pays: bool
) -> None:
    monkeypatch.setattr("specdec_cli.generation.pair.rewind_cost", lambda *_: RewindCost(3, 1.0, 1.5, again))
    notes: list[str] = []
    request = PairRequest(mamba_with_bytes, Drafting("ngram", 4), Sampling(seed=0), Placement(n_ctx=256))
    with open_pair(request, say=notes.append, abort=AbortFlag()) as pair:
        found = drafter_for(pair, "ngram", pair.rule, 0.0).propose([1, 2, 3], 4)
        assert (found.off_reason is None) == pays
        if pays:
            assert any("restores a checkpoint" in note and "pays from acceptance" in note for note in notes)
        else:
            assert "costs this target more than drafts can save" in str(found.off_reason)
        assert drafter_for(pair, "none", pair.rule, 0.0).propose([1], 1).off_reason == "--draft none"
