"""Trained heads through real llama.cpp: the text is plain decoding's, and a head that is right is never wrong.

The heads of `heads` that cannot be wrong find every error in how tokens, hidden states and positions are put
together; a head that was used is held against a new one for what is kept, taken back and read again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Drafter, Round
from specdec_cli.drafters.head import HeadDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, Interrupted
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.head import LlamaHead
from specdec_cli.llama.head_kinds import open_head
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.gguf import read_model
from specdec_cli.models.heads import own_head, read_head
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.heads import by_state, by_token, permutation_chain, write_dflash, write_eagle3, write_mtp
from tests.planted import BYTES, EOS, N_SPECIAL, Chain, random_chain, write_planted

N = 264
BEGIN = N_SPECIAL + len(BYTES)
SOFT = random_chain(N, seed=3)
CIRCLE, FOLLOWS = permutation_chain(N, seed=1)
HALF = np.arange(1, N, 2)
PROMPT = [1, *range(3, 43), *range(20, 60)]
GREEDY, WARM = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
TARGET = ContextSettings(n_ctx=256, n_batch=32, n_ubatch=16, threads=1, max_rows=9)
HEAD = ContextSettings(n_ctx=256, n_batch=16, n_ubatch=16, threads=1, max_rows=16)


class Bed:
    """A target and heads on sessions of its own making."""

    def __init__(self, stack: ExitStack, target: Path, head: Path | None) -> None:
        self._stack = stack
        headers = read_model(target)
        facts = own_head(headers, "own") if head is None else read_head(read_model(head), headers, head.name, head)
        assert facts is not None
        self.facts = facts
        self.model = stack.enter_context(LlamaModel(ModelSettings(target, with_mtp=facts.is_own)))
        self.head_model = self.model
        if head is not None:
            settings = ModelSettings(head, is_head=True, with_mtp=facts.kind == "mtp")
            self.head_model = stack.enter_context(LlamaModel(settings))
        self.target, self.head = self.open()

    def open(self, abort: AbortFlag | None = None, settings: ContextSettings = HEAD) -> tuple[LlamaSession, LlamaHead]:
        target = self._stack.enter_context(LlamaSession(self.model, TARGET, abort=abort))
        return target, self._stack.enter_context(open_head(self.head_model, self.facts, target, settings, abort))

    def write(
        self, params: SamplingParams, k: int, *, drafter: Drafter | None = None, prompt: Sequence[int] = PROMPT
    ) -> list[Round]:
        rule = SharedNoise(Law(params, n_shared=N, banned=(EOS,)), seed=5)
        drafter = drafter or (HeadDrafter(self.head, rule, frozenset()) if k else NoDrafter())
        length = FixedLength(k, give_up_after=10**9)
        return list(
            generate(
                self.target, drafter, length, rule, prompt, max_tokens=30, ends=lambda _: False, clock=time.perf_counter
            )
        )


@contextmanager
def bed(target: Path, head: Path | None) -> Iterator[Bed]:
    with ExitStack() as stack:
        yield Bed(stack, target, head)


def text(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


def counts(rounds: Sequence[Round]) -> tuple[int, int]:
    return sum(len(r.drafted) for r in rounds), sum(r.n_accepted for r in rounds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


def planted(folder: Path, chain: Chain = SOFT, mixing: float = 0.0) -> Path:
    name = f"{'circle' if chain is CIRCLE else 'soft'}-{mixing}.gguf"
    path = folder / name
    return path if path.exists() else write_planted(path, chain, n_layers=3, mixing=mixing)


Files = Callable[[Path], tuple[Path, Path | None]]

RANDOM: dict[str, Files] = {
    "eagle3": lambda d: (planted(d, mixing=1.0), write_eagle3(d / "a.gguf", N)),
    "eagle3 half": lambda d: (planted(d, mixing=1.0), write_eagle3(d / "b.gguf", N, drafted=HALF, vocab=N)),
    "eagle3 own": lambda d: (planted(d), write_eagle3(d / "c.gguf", 40, target_width=N, vocab=N, own_embeddings=True)),
    "eagle3 borrowed": lambda d: (planted(d), write_eagle3(d / "d.gguf", N, own_output=False)),
    "mtp": lambda d: (write_mtp(d / "e.gguf", SOFT, mixing=1.0), None),
    "dflash": lambda d: (planted(d, mixing=1.0), write_dflash(d / "f.gguf", N, drafted=HALF)),
    "dflash2": lambda d: (planted(d, mixing=1.0), write_dflash(d / "g.gguf", N, "dflash2")),
    "dspark": lambda d: (planted(d, mixing=1.0), write_dflash(d / "h.gguf", N, "dspark")),
}
"""Heads that know nothing, on targets whose logits depend on the whole text."""

ANCHOR = {"dflash.sample_from_anchor": False}
RIGHT: dict[str, Files] = {
    "eagle3 by token": lambda d: (planted(d), write_eagle3(d / "i.gguf", N, tensors=by_token(SOFT))),
    "eagle3 by state": lambda d: (
        planted(d, CIRCLE),
        write_eagle3(d / "j.gguf", N, tensors=by_state(CIRCLE, FOLLOWS)),
    ),
    "mtp by token": lambda d: (write_mtp(d / "k.gguf", SOFT, reads="token"), None),
    "mtp by state": lambda d: (write_mtp(d / "l.gguf", CIRCLE, reads="state", follows=FOLLOWS), None),
    "mtp beside": lambda d: (
        write_mtp(d / "m.gguf", CIRCLE, part="trunk"),
        write_mtp(d / "n.gguf", CIRCLE, part="head", reads="state", follows=FOLLOWS),
    ),
    "dspark": lambda d: (planted(d), write_dflash(d / "o.gguf", N, "dspark", chain=SOFT, block=8)),
    "dspark, no anchor": lambda d: (
        planted(d),
        write_dflash(d / "p.gguf", N, "dspark", chain=SOFT, block=9, confidence=False, metadata=ANCHOR),
    ),
}
"""Heads that are never wrong."""


@pytest.mark.parametrize("name", RANDOM)
def test_the_text_is_plain_decodings(folder: Path, name: str) -> None:
    with bed(*RANDOM[name](folder)) as one:
        for params in (GREEDY, WARM):
            plain = text(one.write(params, 0))
            for k in (1, 4, 8) if params is WARM else (2, 5):
                rounds = one.write(params, k)
                assert text(rounds) == plain
                assert counts(rounds)[0] > 25
                assert all(round_.off_reason is None for round_ in rounds)
        assert one.target.n_resets == 0


@pytest.mark.parametrize("name", RIGHT)
def test_a_head_that_is_right_is_never_wrong(folder: Path, name: str) -> None:
    with bed(*RIGHT[name](folder)) as one:
        for params in (GREEDY, WARM):
            plain = text(one.write(params, 0))
            for k in (1, 2, 4, 8):
                rounds = one.write(params, k)
                assert text(rounds) == plain
                drafted, accepted = counts(rounds)
                # A DSpark head draws inside llama.cpp, greedily; the others leave a thousandth of a logit.
                if params is GREEDY or k == 1 or "dspark" not in name:
                    assert drafted - 1 <= accepted > 10


def test_a_dspark_head_that_is_astray_says_so(folder: Path) -> None:
    """What follows a token that is not its likeliest was drafted for another text; p-min ends the draft there."""
    with bed(*RIGHT["dspark, no anchor"](folder)) as one:
        rule = SharedNoise(Law(WARM, n_shared=N, banned=(EOS,)), seed=5)
        rounds = one.write(WARM, 8, drafter=HeadDrafter(one.head, rule, frozenset(), p_min=1e-9))
        drafted, accepted = counts(rounds)
        assert drafted == accepted > 10
        one.head.start(PROMPT, 3)
        assert one.head.confidence is None
        one.head.advance(int(SOFT[PROMPT[-1]].argmax()))
        assert one.head.confidence is None
        one.head.advance(3)
        assert one.head.confidence == 0.0


def test_nothing_is_read_twice_and_no_state_of_a_rejected_token(folder: Path) -> None:
    with bed(*RANDOM["eagle3"](folder)) as one:
        rounds = one.write(GREEDY, 4)
        read = one.head.n_evaluated - sum(max(len(r.drafted) - 1, 0) for r in rounds)
        before_last = rounds[: max(i for i, r in enumerate(rounds) if r.k)]
        assert read == len(PROMPT) + len(text(before_last)) - 1
        assert one.target.n_evaluated == len(PROMPT) + sum(len(r.drafted) + 1 for r in rounds[1:])


# --- what is kept, taken back and read again --------------------------------------------------------------


def rows_after(head: LlamaHead, tokens: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
    rows = [head.start(tokens, len(drafted) + 1).copy()]
    rows += [head.advance(token).copy() for token in drafted]
    return np.array(rows)


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash", "dflash2", "dspark"])
def test_a_used_head_says_what_a_new_one_says(folder: Path, name: str) -> None:
    """Texts that go on, end early, change in the middle, and come again."""
    rng = np.random.default_rng(1)
    with bed(*RANDOM[name](folder)) as one:
        tokens = PROMPT
        for step in range(14):
            drafted = [int(HALF[i]) for i in rng.integers(len(HALF), size=3)]
            used = rows_after(one.head, tokens, drafted)
            target, fresh = one.open()
            new = rows_after(fresh, tokens, drafted)
            fresh.close()
            target.close()
            assert np.isfinite(new).any(axis=1).all()
            np.testing.assert_array_equal(np.isfinite(used), np.isfinite(new))
            np.testing.assert_allclose(
                np.where(np.isfinite(used), used, 0), np.where(np.isfinite(new), new, 0), atol=0.06
            )
            # As a round leaves it: the target has evaluated the draft too, some of it is kept.
            one.target.score([*tokens, *drafted], 4)
            accepted = drafted[: int(rng.integers(4))]
            ways = [
                [*tokens, *accepted, int(rng.integers(3, N))],
                [*tokens, *accepted, int(rng.integers(3, N))],
                [*tokens[: int(rng.integers(2, len(tokens)))], *rng.integers(3, N, size=int(rng.integers(1, 40)))],
                list(tokens),
            ]
            tokens = [int(token) for token in ways[step % len(ways)]]
    assert one.head.n_evaluated > 0


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash", "dflash2", "dspark"])
def test_a_head_with_a_kept_state_says_what_one_that_read_all_says(folder: Path, name: str) -> None:
    """After the same text, one that goes on, one that ends early, and one that parts from it."""
    with bed(*RANDOM[name](folder)) as one:
        one.write(WARM, 4)
        n = len(PROMPT) - 1
        kept = one.target.snapshot(n), one.head.snapshot(n)
        assert [tokens for tokens, _ in kept] == [PROMPT[:n]] * 2
        for tokens in ([*PROMPT, 7], [*PROMPT, *range(30, 170)], PROMPT[:50], [*PROMPT[:40], *range(90, 100)]):
            target, head = one.open()
            assert target.restore(*kept[0])
            assert head.restore(*kept[1])
            restored = rows_after(head, tokens, [5, 9, 11])
            n_known = min(len(tokens) - 1, 40 if tokens[-1] == 99 else n)
            assert target.n_evaluated == len(tokens) - 1 - (n_known - 1), "the last token they share is read again"
            assert head.n_evaluated < len(tokens) - n_known + 10
            target.close()
            head.close()
            target, head = one.open()
            whole = rows_after(head, tokens, [5, 9, 11])
            target.close()
            head.close()
            np.testing.assert_array_equal(np.isfinite(restored), np.isfinite(whole))
            np.testing.assert_allclose(
                np.where(np.isfinite(whole), restored, 0), np.where(np.isfinite(whole), whole, 0), atol=0.06
            )


def test_a_state_that_is_not_accepted_leaves_a_new_head(folder: Path) -> None:
    with bed(*RANDOM["eagle3"](folder)) as one:
        rounds = one.write(WARM, 4)
        n = len(PROMPT) - 1
        (tokens, state), (_, draft_state) = one.target.snapshot(n), one.head.snapshot(n)
        for bad_tokens, bad_state in ((tokens, draft_state[:-8]), (tokens[:-1], draft_state), (tokens, state)):
            one.target, one.head = one.open()
            assert one.target.restore(tokens, state)
            assert not one.head.restore(bad_tokens, bad_state)
            again = one.write(WARM, 4)
            assert text(again) == text(rounds)
            assert counts(again)[0] > 25
            assert one.head._begin == n - 1
            assert one.head.snapshot(n) == ([], pytest.approx([])), "it does not know the beginning"


def test_a_head_that_was_not_asked_reads_before_its_state_is_kept(folder: Path) -> None:
    with bed(*RANDOM["eagle3"](folder)) as one:
        one.write(WARM, 0)
        assert one.head.n_evaluated < len(PROMPT)
        n = len(PROMPT) - 1
        one.target.snapshot(n)
        tokens, _ = one.head.snapshot(n)
        assert tokens == PROMPT[:n]
        abort = AbortFlag()
        one.target, one.head = one.open(abort)
        one.write(WARM, 0)
        abort.set(2)
        one.target.snapshot(n)
        assert len(one.head.snapshot(n)[0]) < n, "nothing is read once Ctrl-C was pressed"


def test_a_head_that_was_not_asked_for_long_keeps_up_in_little_memory(folder: Path) -> None:
    with bed(*RANDOM["eagle3"](folder)) as one:
        one.target.score(PROMPT[:3], 1)
        for n in range(4, 240):
            one.target.score([*PROMPT, *range(3, N)][:n], 1)
        assert 0 < one.head.n_evaluated < 239
        tokens = [*PROMPT, *range(3, N)][:239]
        one.head.start(tokens, 1)
        assert one.head.n_evaluated == 238
        assert one.head._hidden._rows.shape == (64, 3, N)


def test_a_head_whose_states_are_gone_starts_afresh(folder: Path) -> None:
    """The rows of a part of the text were dropped unread: the head goes on with what there is."""
    with bed(*RIGHT["eagle3 by token"](folder)) as one:
        one.head._hidden.read = lambda _: None
        tokens = [*PROMPT, *range(3, 100)]
        plain = text(one.write(WARM, 0, prompt=tokens))
        rounds = one.write(WARM, 4, prompt=tokens)
        assert text(rounds) == plain
        assert one.head._begin > 60
        drafted, accepted = counts(rounds)
        assert drafted - 1 <= accepted > 10


def test_a_head_whose_context_is_full_says_so_and_comes_back(folder: Path) -> None:
    target, head = RANDOM["eagle3"](folder)
    with bed(target, head) as one:
        one.target, one.head = one.open(
            settings=ContextSettings(n_ctx=100, n_batch=16, n_ubatch=16, threads=1, max_rows=16)
        )
        rounds = one.write(GREEDY, 3)
        assert len(text(rounds)) == 30
        assert rounds[-1].off_reason == "the head's context of 100 tokens is full (--ctx-draft)"
        again = one.write(GREEDY, 3, prompt=PROMPT[:30])
        assert again[-1].off_reason is None
        assert counts(again)[0] > 25


# --- Ctrl-C and faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash"])
def test_an_interrupted_head_goes_on_as_if_nothing_had_been(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in any of the head's passes, while the prompt is read or while it drafts."""
    abort = AbortFlag()
    calls = 0
    real = {call: getattr(llama_cpp, call) for call in ("llama_decode", "llama_encode")}
    with bed(*RANDOM[name](folder)) as one:
        one.target, one.head = one.open(abort)
        plain = text(one.write(WARM, 4))

        def interrupt_at(n: int) -> None:
            nonlocal calls
            calls = 0

            def counted(call: str) -> Callable[..., int]:
                def run(context: object, batch: object) -> int:
                    nonlocal calls
                    calls += context == one.head._context
                    if calls == n and context == one.head._context:
                        abort.set(2)
                    return int(real[call](context, batch))

                return run

            for call in real:
                monkeypatch.setattr(llama_cpp, call, counted(call))

        for n in (1, 2, 5, 8, 14, 17):
            prompt = [1, *range(3 + n, 83 + n)]
            interrupt_at(n)
            with pytest.raises(Interrupted):
                one.write(WARM, 4, prompt=prompt)
            abort.clear()
            monkeypatch.undo()
            rounds = one.write(WARM, 4, prompt=prompt)
            assert text(rounds) == text(one.write(WARM, 0, prompt=prompt))
            assert rounds[-1].off_reason is None
        assert text(one.write(WARM, 4)) == plain


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dspark"])
@pytest.mark.parametrize("n", [1, 2, 6, 9])
def test_a_head_that_llama_cpp_cannot_run_does_not_end_the_text(
    folder: Path, name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bed(*RANDOM[name](folder)) as one:
        plain = text(one.write(WARM, 0))
        one.target, one.head = one.open()
        real, calls = llama_cpp.llama_decode, 0

        def failing(context: object, batch: object) -> int:
            nonlocal calls
            calls += context == one.head._context
            return -3 if calls >= n and context == one.head._context else int(real(context, batch))

        monkeypatch.setattr(llama_cpp, "llama_decode", failing)
        rounds = one.write(WARM, 4)
        assert text(rounds) == plain
        assert (rounds[-1].off_reason or "").startswith("the head failed: llama.cpp could not evaluate a head's batch")


def test_logits_that_are_no_numbers_end_drafting(folder: Path) -> None:
    broken = {"output_norm.weight": np.full(N, np.nan, np.float32)}
    with bed(planted(folder), write_eagle3(folder / "nan.gguf", N, tensors=broken)) as one:
        rounds = one.write(WARM, 4)
        assert text(rounds) == text(one.write(WARM, 0))
        assert "contains NaN" in (rounds[-1].off_reason or "")


def test_a_target_that_fails_is_not_the_heads_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bed(*RANDOM["eagle3"](folder)) as one:
        plain = text(one.write(WARM, 4))
        real = llama_cpp.llama_decode
        fails = iter([False] * 12 + [True])

        def failing(context: object, batch: object) -> int:
            if context == one.target._context and next(fails, False):
                return -3
            return int(real(context, batch))

        monkeypatch.setattr(llama_cpp, "llama_decode", failing)
        with pytest.raises(DecodeFailed, match="could not evaluate a batch"):
            one.write(WARM, 4, prompt=[1, *range(9, 99)])
        assert text(one.write(WARM, 4)) == plain


# --- the hidden states themselves ---------------------------------------------------------------------------


def test_the_states_are_those_of_the_tokens(folder: Path) -> None:
    """A planted target carries one-hot vectors through all its layers."""
    with bed(*RIGHT["eagle3 by token"](folder)) as one:
        tokens = [*PROMPT[:20], 7, 9]
        one.target.score(tokens, 3)
        one.target.score([*PROMPT[:20], 8, 10, 12], 2)
        hidden = one.head._hidden
        rows = hidden.rows(0, 23).reshape(23, 3, N)
        assert rows.argmax(axis=2).T.tolist() == [[*PROMPT[:20], 8, 10, 12]] * 3
        assert np.abs(rows.sum(axis=2) - 1).max() < 1e-5


def test_a_dflash_head_is_what_its_paper_says(folder: Path) -> None:
    """Against the same arithmetic in numpy: states into keys and values, masks that see all of both."""
    target, head = planted(folder, mixing=1.0), write_dflash(folder / "q.gguf", N, mask=5, seed=4)
    tensors = _read(head)
    with bed(target, head) as one:
        tokens = PROMPT[:30]
        one.target.evaluate(tokens[:-1])
        states = one.head._hidden.rows(0, 29).copy()
        ours = _dflash(tensors, _read(target)["token_embd.weight"], states, [tokens[-1], 5, 5, 5])
        theirs = [one.head.start(tokens, 3).copy(), one.head.advance(0).copy(), one.head.advance(0).copy()]
        np.testing.assert_allclose(theirs, ours[1:], atol=0.05)


def _read(path: Path) -> dict[str, np.ndarray]:
    import gguf

    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def _dflash(w: dict[str, np.ndarray], embedding: np.ndarray, states: np.ndarray, block: list[int]) -> np.ndarray:
    def normed(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), 4, -1)

    def turned(x: np.ndarray, start: int) -> np.ndarray:
        half = x.shape[2] // 2
        angle = (start + np.arange(len(x)))[:, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=2)

    fused = normed(states @ w["fc.weight"].T)
    x = embedding[block]
    noise = normed(x)
    seen = np.vstack([fused, noise])
    q = turned(normed(heads(noise @ w["blk.0.attn_q.weight"].T)), len(states))
    k = turned(normed(heads(seen @ w["blk.0.attn_k.weight"].T)), 0)
    v = heads(seen @ w["blk.0.attn_v.weight"].T)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[2])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1) @ w["blk.0.attn_output.weight"].T
    inner = normed(x)
    gate = inner @ w["blk.0.ffn_gate.weight"].T
    up = inner @ w["blk.0.ffn_up.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["blk.0.ffn_down.weight"].T
    return normed(x) @ w["output.weight"].T
