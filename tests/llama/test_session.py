"""A session is handed whole lists: it evaluates what is new, once, and gives the rows of a fresh evaluation."""

import ctypes
import mmap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.tokens import Tokens, shared_prefix
from specdec_cli.decode.types import Draft, Logits, Round
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, Interrupted, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import random_chain, write_planted, write_tiny_hybrid, write_tiny_mamba, write_tiny_swa

N_VOCAB = 64
NEAR = 4e-3
"""Largest difference of a logit between evaluations in other widths, flash attention off (measured: 1.4e-3).
A single wrong token in the last six moves some logit by 0.05 and more."""

MODELS = {
    "plain": lambda path: write_planted(path, random_chain(N_VOCAB, 0), mixing=1.0),
    "swa": lambda path: write_tiny_swa(path, seed=5, n_vocab=N_VOCAB),
    "mamba": lambda path: write_tiny_mamba(path, seed=5, n_vocab=N_VOCAB),
    "hybrid": lambda path: write_tiny_hybrid(path, seed=5, n_vocab=N_VOCAB),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("session")
    return {name: write(folder / f"{name}.gguf") for name, write in MODELS.items()}


@pytest.fixture(scope="module")
def models(files: dict[str, Path]) -> Iterator[dict[str, LlamaModel]]:
    opened = {name: LlamaModel(ModelSettings(path)) for name, path in files.items()}
    yield opened
    for model in opened.values():
        model.close()


@contextmanager
def session(model: LlamaModel, *, abort: AbortFlag | None = None, **settings: object) -> Iterator[LlamaSession]:
    plain = {"n_ctx": 1024, "n_batch": 64, "n_ubatch": 64, "max_rows": 16}
    exact = {"cache_type": "f32", "flash_attention": "off"}
    with LlamaSession(model, ContextSettings(**{**plain, **exact, **settings}), abort=abort) as opened:
        yield opened


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, N_VOCAB, size=n).tolist()


def fresh(model: LlamaModel, tokens: Sequence[int], n_last: int = 1) -> Logits:
    """The same rows from a session that has seen nothing else, one row at a time."""
    with session(model) as other:
        ends = range(len(tokens) - n_last + 1, len(tokens) + 1)
        return np.array([other.score(tokens[:end], 1)[0].copy() for end in ends])


def assert_near(rows: Logits, expected: Logits) -> None:
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() < NEAR


# --- every token once -----------------------------------------------------------------------------------


def test_a_growing_list_evaluates_every_token_once(models: dict[str, LlamaModel]) -> None:
    tokens = ids(40)
    with session(models["plain"]) as s:
        for end in range(1, 41):
            s.score(tokens[:end], 1)
        assert (s.n_evaluated, s.n_passes, s.unscored_tokens, s.n_resets) == (40, 40, 0, 0)


def test_after_a_rejection_only_the_new_tokens_are_evaluated(models: dict[str, LlamaModel]) -> None:
    prompt, draft, correction, then = ids(20), ids(4, 1), 7, ids(4, 2)
    draft[2] = 9
    with session(models["plain"]) as s:
        s.score(prompt, 1)
        s.score(prompt + draft, 5)
        before = s.n_evaluated
        tokens = [*prompt, *draft[:2], correction]  # draft[2] was refused
        rows = s.score(tokens + then, 5).copy()
        assert s.n_evaluated - before == 5
        assert_near(rows, fresh(models["plain"], tokens + then, 5))


def test_after_full_acceptance_the_target_is_owed_one_token_and_the_draft_two(models: dict[str, LlamaModel]) -> None:
    prompt, draft, bonus = ids(20), ids(4, 1), 7
    with session(models["plain"]) as target, session(models["plain"]) as drafting:
        target.score(prompt, 1)
        target.score(prompt + draft, 4)
        for i in range(4):
            drafting.score(prompt + draft[:i], 1)
        before = target.n_evaluated, drafting.n_evaluated, drafting.unscored_tokens
        tokens = [*prompt, *draft, bonus]
        assert_near(target.score(tokens, 1), fresh(models["plain"], tokens))
        assert_near(drafting.score(tokens, 1), fresh(models["plain"], tokens))
        after = target.n_evaluated, drafting.n_evaluated, drafting.unscored_tokens
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 2, 1]


def test_a_second_turn_evaluates_the_pending_token_and_what_follows_it(models: dict[str, LlamaModel]) -> None:
    first, answer, question = ids(30), ids(12, 1), ids(100, 2)
    with session(models["plain"]) as s:
        s.score(first, 1)
        for end in range(1, len(answer)):  # the last token of an answer stays pending
            s.score(first + answer[:end], 1)
        before = s.n_evaluated, s.unscored_tokens
        rows = s.score(first + answer + question, 1)
        assert s.n_evaluated - before[0] == 1 + len(question)
        assert s.unscored_tokens - before[1] == len(question)
        assert_near(rows, fresh(models["plain"], first + answer + question))


class Guess:
    """Proposes what follows in `text`, spoilt at some places: accepted and refused drafts of all lengths."""

    name = "guess"

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        here = range(len(tokens), min(len(tokens) + k, len(self.text)))
        return Draft(tuple(self.text[i] ^ (i % 5 == 3) for i in here))


def write(target: LlamaSession, drafter: object, prompt: Sequence[int], n: int, k: int) -> list[Round]:
    rule = SharedNoise(Law(SamplingParams(temperature=1.0), n_shared=target.n_vocab), seed=1)
    length = FixedLength(k, give_up_after=10**9)
    return list(
        generate(target, drafter, length, rule, prompt, max_tokens=n, ends=lambda _: False, clock=time.perf_counter)
    )


@pytest.mark.parametrize("k", [1, 2, 3, 7, 15])
def test_generating_evaluates_the_prompt_and_each_verified_token_once(models: dict[str, LlamaModel], k: int) -> None:
    prompt = ids(150)
    with session(models["plain"]) as s:
        text = prompt + [t for r in write(s, NoDrafter(), prompt, 120, 0) for t in r.tokens]
        assert s.n_evaluated == len(text) - 1, "the last token stays pending"
    with session(models["plain"]) as s:
        rounds = write(s, Guess(text), prompt, 120, k)
        assert prompt + [t for r in rounds for t in r.tokens] == text
        assert 0 < sum(r.n_accepted for r in rounds) < sum(len(r.drafted) for r in rounds)
        assert s.n_evaluated == len(prompt) + sum(len(r.drafted) + 1 for r in rounds[1:])
        assert (s.unscored_tokens, s.n_resets) == (len(prompt) - 1, 0)
        assert s.n_passes == 3 + len(rounds), "149 prompt tokens are three batches of 64"


@pytest.mark.parametrize("name", MODELS)
def test_tokens_that_share_a_text_are_never_taken_for_one_another(models: dict[str, LlamaModel], name: str) -> None:
    rng = np.random.default_rng(7)
    known = [Tokens(ids(60))]
    with session(models[name]) as s:
        for _ in range(30):
            tokens = known[int(rng.integers(len(known)))]
            more = rng.integers(3, N_VOCAB, size=int(rng.integers(1, 9))).tolist()
            tokens = tokens.grown(more) if rng.random() < 0.5 else tokens.then(more)
            known.append(tokens)
            asked = list(tokens) if rng.random() < 0.2 else tokens
            assert_near(s.score(asked, 1), fresh(models[name], list(tokens)))


# --- batches and rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 66, 128, 192, 193])
@pytest.mark.parametrize("n_ubatch", [64, 16])
def test_prompts_around_the_batch_size(models: dict[str, LlamaModel], length: int, n_ubatch: int) -> None:
    tokens = ids(length)
    with session(models["plain"], n_ubatch=n_ubatch) as s, session(models["plain"], n_batch=512, n_ubatch=512) as one:
        assert_near(s.score(tokens, 1), one.score(tokens, 1))
        assert s.n_evaluated == length
        assert s.n_passes == -(-(length - 1) // 64) + 1


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_rows_equals_single_rows(models: dict[str, LlamaModel], name: str) -> None:
    tokens = ids(24)
    expected = fresh(models[name], tokens, 16)
    for n_last in range(1, 17):
        with session(models[name]) as s:
            assert_near(s.score(tokens, n_last), expected[16 - n_last :])


@pytest.mark.parametrize("k", [1, 8, 64, 511])
def test_every_draft_length_has_its_rows(models: dict[str, LlamaModel], k: int) -> None:
    tokens = ids(k + 40)
    with session(models["plain"], n_batch=512, n_ubatch=512, max_rows=k + 1) as s:
        rows = s.score(tokens, k + 1).copy()
        assert rows.shape == (k + 1, N_VOCAB)
        for i in (0, k // 2, k):
            assert_near(rows[[i]], fresh(models["plain"], tokens[: 40 + i]))
        with pytest.raises(UsageError, match=f"{k + 2} rows"):
            s.score(tokens, k + 2)


def test_a_draft_that_does_not_fit_one_pass_is_refused_by_the_settings() -> None:
    with pytest.raises(UsageError, match="A draft of 512 tokens does not fit in a pass of 512"):
        ContextSettings(max_rows=513)
    with pytest.raises(UsageError, match="does not fit in a pass of 64"):
        ContextSettings(n_ubatch=64, max_rows=65)


def test_batches_of_one_token(models: dict[str, LlamaModel]) -> None:
    tokens = ids(10)
    with session(models["plain"], n_batch=1, n_ubatch=1, max_rows=1) as s:
        assert s.can_rewind
        assert_near(s.score(tokens, 1), fresh(models["plain"], tokens))
        assert (s.n_evaluated, s.n_passes) == (10, 10)


@pytest.mark.parametrize("n_last", [0, 4, -1])
def test_rows_that_are_not_there_are_refused(models: dict[str, LlamaModel], n_last: int) -> None:
    with session(models["plain"]) as s, pytest.raises(UsageError, match="gives 1 to 3"):
        s.score(ids(3), n_last)


@pytest.mark.parametrize("n_ctx", [1, 2, 100, 256, 300])
@pytest.mark.parametrize("name", ["plain", "swa"])
def test_the_context_can_be_filled_to_the_last_token_and_no_further(
    models: dict[str, LlamaModel], name: str, n_ctx: int
) -> None:
    tokens = ids(n_ctx + 1)
    with session(models[name], n_ctx=n_ctx) as s:
        assert s.n_ctx == n_ctx
        assert_near(s.score(tokens[:-1], 1), fresh(models[name], tokens[:-1]))
        with pytest.raises(UsageError, match=f"{n_ctx + 1} tokens do not fit a context of {n_ctx}"):
            s.score(tokens, 1)
        assert_near(s.score(tokens[:-1], 1), fresh(models[name], tokens[:-1]))


# --- rewinding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_any_list_after_any_other(models: dict[str, LlamaModel], name: str) -> None:
    rng = np.random.default_rng(3)
    tokens = ids(200)
    with session(models[name]) as s:
        for _ in range(25):
            keep, new = int(rng.integers(0, len(tokens))), int(rng.integers(1, 40))
            tokens = tokens[:keep] + rng.integers(3, N_VOCAB, size=new).tolist()
            n_last = int(rng.integers(1, min(len(tokens), 16) + 1))
            assert_near(s.score(tokens, n_last), fresh(models[name], tokens, n_last))


@pytest.mark.parametrize("name", ["plain", "swa"])
def test_rewinding_costs_only_the_wanted_rows(models: dict[str, LlamaModel], name: str) -> None:
    tokens = ids(300)
    with session(models[name]) as s:
        s.score(tokens, 1)
        for end, n_last, cost in ((300, 1, 1), (300, 16, 16), (40, 3, 3), (1, 1, 1), (20, 2, 19)):
            before = s.n_evaluated
            assert_near(s.score(tokens[:end], n_last), fresh(models[name], tokens[:end], n_last))
            assert s.n_evaluated - before == cost
        assert s.n_resets == 0


def test_a_window_is_crossed_with_every_draft_refused(models: dict[str, LlamaModel]) -> None:
    """The window is 16 tokens; drafts of 7 are taken back at each of 120 steps."""
    model, tokens, wrong = models["swa"], ids(180), ids(180, 1)
    with session(model) as s:
        for end in range(60, 180):
            rows = s.score(tokens[:end] + wrong[end : end + 7], 8)[:1].copy()
            if end % 10 == 0:
                assert_near(rows, fresh(model, tokens[:end]))
        assert s.can_rewind
        assert (s.n_evaluated, s.n_resets) == (60 + 7 + 119 * 8, 0)


@pytest.mark.parametrize("name", ["mamba", "hybrid"])
def test_a_memory_that_cannot_be_taken_back_starts_over(models: dict[str, LlamaModel], name: str) -> None:
    """Of a session that is asked for one row at a time, nothing is kept."""
    tokens = ids(30)
    with session(models[name], max_rows=1) as s:
        assert not s.can_rewind
        for end in range(20, 30):
            s.score(tokens[:end], 1)
        assert (s.n_evaluated, s.n_resets) == (29, 0), "a list that only grows needs no rewinding"
        other = [*tokens[:25], 5, 6]
        assert_near(s.score(other, 1), fresh(models[name], other))
        assert (s.n_evaluated, s.n_resets) == (29 + 27, 1)
        assert_near(s.score([*other, 8], 1), fresh(models[name], [*other, 8]))
        assert (s.n_evaluated, s.n_resets) == (29 + 28, 1)


def test_memories_that_can_be_taken_back_say_so(models: dict[str, LlamaModel]) -> None:
    for name in MODELS:
        with session(models[name]) as s:
            assert s.can_rewind
            assert s.n_evaluated == s.n_passes == s.n_resets == 0, "trying it out is not counted"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_prefix(a: list[int], b: list[int]) -> None:
    n = shared_prefix(a, b)
    assert a[:n] == b[:n]
    assert a[n : n + 1] != b[n : n + 1] or n == len(a) == len(b)


def test_evaluating_wants_no_logits(models: dict[str, LlamaModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one token neither: the matrix of a large vocabulary is a good part of a small model's pass."""
    with session(models["plain"]) as s:
        wanted, decode = list[list[int]](), llama_cpp.llama_decode

        def seen(context: object, batch: llama_cpp.llama_batch) -> int:
            wanted.append([batch.logits[i] for i in range(batch.n_tokens)])
            return decode(context, batch)

        monkeypatch.setattr("specdec_cli.llama.session.llama_cpp.llama_decode", seen)
        s.evaluate(ids(1))
        s.score(ids(2), 1)
        s.evaluate(ids(4))
        s.evaluate(ids(5))
        assert wanted == [[0], [1], [0, 0], [0]]


# --- failures -------------------------------------------------------------------------------------------


def test_an_id_that_the_model_does_not_have_is_an_error_with_its_own_reason(models: dict[str, LlamaModel]) -> None:
    tokens = ids(10)
    with session(models["plain"]) as s:
        s.score(tokens, 1)
        for wrong in (N_VOCAB, -5):
            with pytest.raises(DecodeFailed, match=rf"invalid token\[0\] = {wrong}\b"):
                s.score([*tokens, wrong], 1)
        before = s.n_evaluated
        assert_near(s.score([*tokens, 4], 1), fresh(models["plain"], [*tokens, 4]))
        assert s.n_evaluated - before == 1, "nothing that was right is evaluated again"


def test_a_pass_without_rows_is_an_error_and_the_next_one_has_them_again(
    models: dict[str, LlamaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(models["plain"]) as s:
        expected = s.score(ids(5), 1).copy()
        with monkeypatch.context() as broken:
            broken.setattr("specdec_cli.llama.session._logits_address", lambda _: None)
            with pytest.raises(DecodeFailed, match=r"no logits"):
                s.score(ids(6), 1)
        assert_near(s.score(ids(5), 1), expected)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cache_type": "q8_0", "flash_attention": "on"}, "block size 32 does not divide"),
        ({"cache_type": "q8_0"}, "quantized V cache requires flash_attn"),
    ],
)
def test_a_cache_type_that_does_not_fit_is_no_lack_of_memory(
    models: dict[str, LlamaModel], settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason), session(models["plain"], **settings):
        pass


# --- stopping -------------------------------------------------------------------------------------------


def test_a_long_prompt_can_be_stopped_from_another_thread(smollm2_q4_0: Path) -> None:
    tokens = np.random.default_rng(0).integers(100, 40_000, size=4000).tolist()
    abort = AbortFlag()
    settings = ContextSettings(n_ctx=4096, n_batch=2048, n_ubatch=512, threads=1)
    with (
        LlamaModel(ModelSettings(smollm2_q4_0)) as model,
        LlamaSession(model, settings, abort=abort) as s,
        LlamaSession(model, settings) as other,
    ):
        set_at = 0.0

        def stop() -> None:
            nonlocal set_at
            set_at = time.perf_counter()
            abort.set(2)

        timer = threading.Timer(0.4, stop)
        timer.start()
        with pytest.raises(Interrupted) as caught:
            s.score(tokens, 1)
        assert time.perf_counter() - set_at < 1.0
        assert set_at > 0, "the prompt was over before the flag was set"
        timer.join()
        assert caught.value.exit_code == 130
        with pytest.raises(Interrupted):  # a set flag stops coming passes too
            s.score(tokens[:5], 1)
        abort.clear()
        assert np.array_equal(s.score(tokens[:300], 1), other.score(tokens[:300], 1))
        changed = tokens[:300] + tokens[600:640]
        assert np.array_equal(s.score(changed, 1), other.score(changed, 1))


@pytest.mark.parametrize("name", MODELS)
def test_a_stopped_pass_leaves_nothing_behind(models: dict[str, LlamaModel], name: str) -> None:
    """One batch of many micro-batches, stopped at a random place: finished ones are in llama.cpp's memory."""
    abort = AbortFlag()
    tokens, start = ids(4000), ids(10, 1)
    with session(models[name], abort=abort, n_ctx=4096, n_batch=4096, n_ubatch=32) as s:
        for delay in (0.0005, 0.001, 0.002, 0.004, 0.008):
            s.score(start, 1)
            timer = threading.Timer(delay, abort.set, [2])
            timer.start()
            with pytest.raises(Interrupted):
                s.score(start + tokens, 1)
            timer.join()
            abort.clear()
            assert_near(s.score([*start, *tokens[:3]], 1), fresh(models[name], [*start, *tokens[:3]]))


def test_a_session_that_is_stopped_while_it_opens_frees_its_context(
    models: dict[str, LlamaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = []
    monkeypatch.setattr("specdec_cli.llama.session.llama_cpp.llama_free", freed.append)
    abort = AbortFlag()
    abort.set(15)
    with pytest.raises(Interrupted) as caught, session(models["plain"], abort=abort):
        pass
    assert caught.value.exit_code == 143
    assert len(freed) == 1


def test_closing_twice(files: dict[str, Path]) -> None:
    model = LlamaModel(ModelSettings(files["plain"]))
    s = LlamaSession(model, ContextSettings(n_ctx=256))
    s.score(ids(3), 1)
    for _ in range(2):
        s.close()
        model.close()


# --- memory ---------------------------------------------------------------------------------------------


def memory() -> NDArray[np.int64]:
    """(virtual, resident) bytes of this process."""
    return np.array(Path("/proc/self/statm").read_text().split()[:2], np.int64) * mmap.PAGESIZE


def return_free_memory() -> None:
    """The C library keeps freed memory for itself: hundreds of megabytes come and go with its moods."""
    ctypes.CDLL(None).malloc_trim(0)


linux = pytest.mark.skipif(
    not (Path("/proc/self/statm").exists() and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="memory is measured by /proc and glibc's malloc_trim",
)


@linux
def test_closing_gives_the_memory_back(smollm2_q4_0: Path) -> None:
    settings = ContextSettings(n_ctx=2048, threads=1, max_rows=8)

    def open_and_close() -> tuple[int, int]:
        """Resident bytes while it is open, and afterwards."""
        with LlamaModel(ModelSettings(smollm2_q4_0, mmap=False)) as model, LlamaSession(model, settings) as s:
            s.score(ids(100), 8)
            while_open = memory()[1]
        return_free_memory()
        return int(while_open), int(memory()[1])

    _, before = open_and_close()
    while_open, _ = open_and_close()
    assert while_open - before > smollm2_q4_0.stat().st_size, "the weights are in memory, and show"
    for _ in range(4):
        _, after = open_and_close()
    assert after < before * 1.1


@linux
def test_a_long_context_does_not_hold_a_row_of_logits_for_every_token(tmp_path: Path) -> None:
    n_vocab, n_ctx = 152_064, 32_768
    chain = random_chain(N_VOCAB, 0)
    path = write_planted(tmp_path / "wide.gguf", chain, n_vocab_pad=n_vocab - N_VOCAB, n_ctx_train=n_ctx)
    before = memory()
    with (
        LlamaModel(ModelSettings(path)) as model,
        LlamaSession(model, ContextSettings(n_ctx=n_ctx, threads=1, max_rows=9)) as s,
    ):
        assert s.score(ids(600), 9).shape == (9, n_vocab)
        taken = memory() - before
    print(taken, path.stat().st_size)
    assert taken.max() < path.stat().st_size + 400e6, "n_ctx x n_vocab floats would be 20 GB"
