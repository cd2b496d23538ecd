"""Medusa heads: damaged and foreign files, what a head computes, and the text that it must not change."""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Hidden, Logits, Round
from specdec_cli.drafters import DRAFTERS, DrafterParts
from specdec_cli.drafters.medusa.drafter import MedusaDrafter
from specdec_cli.drafters.medusa.heads import FILE_NAME, Head, Heads, TargetShape, read_heads
from specdec_cli.drafters.medusa.safetensors import read_safetensors
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import Interrupted, ModelError, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.weights import output_matrix
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.cli import inside, json_inside, traced
from tests.fakes import FakeClock, TableLM
from tests.medusa import Tensors, heads_of, write_safetensors
from tests.planted import (
    BOS,
    BYTES,
    UNK,
    log_chain,
    make_vocab,
    random_chain,
    write_planted,
    write_split,
    write_tiny_mamba,
    write_vocab_only,
)

GREEDY, WARM = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
N_VOCAB = 64


# --- files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "error"), [("F32", 0), ("F16", 1e-3), ("BF16", 8e-3)])
def test_tensors_come_back_as_float32(tmp_path: Path, dtype: str, error: float) -> None:
    written = {"a": np.random.default_rng(0).normal(size=(3, 5)), "b": np.array(2.5), "c": np.zeros((0, 4))}
    found = read_safetensors(write_safetensors(tmp_path / "x.safetensors", written, dtype))

    assert found.keys() == written.keys()
    for name, tensor in found.items():
        assert tensor.dtype == np.float32
        assert tensor.shape == written[name].shape
        np.testing.assert_allclose(tensor, written[name], rtol=error + 1e-7)


def damaged(header: object, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: object) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter than declared"),
        (b"\x02\0\0", "shorter than declared"),
        (struct.pack("<Q", 2**63) + b"{}", "shorter than declared"),
        (struct.pack("<Q", 3) + b"{}", "shorter than declared"),
        (struct.pack("<Q", 0), "shorter than declared"),
        (b"GGUF" + b"\0" * 100, "shorter than declared"),
        (damaged(b"no json"), "not JSON"),
        (damaged(b"\xff\xfe{}"), "not JSON"),
        (damaged(b"[" * 100_000), "not JSON"),
        (damaged([1]), "not a table"),
        (damaged({"t": 3}), "no description"),
        (damaged({"t": {}}), "of type None"),
        (damaged(entry(dtype="F8_E4M3")), "of type 'F8_E4M3'"),
        (damaged(entry(dtype=[])), "of type"),
        (damaged(entry(shape=None)), "no shape or offsets"),
        (damaged(entry(shape=[-2, -2])), "no shape or offsets"),
        (damaged(entry(shape=[True, 4])), "no shape or offsets"),
        (damaged(entry(shape=[2.0, 2])), "no shape or offsets"),
        (damaged(entry(data_offsets=[16])), "no shape or offsets"),
        (damaged(entry(data_offsets=[16, 0])), "lies outside"),
        (damaged(entry(data_offsets=[1, 17])), "lies outside"),
        (damaged(entry(data_offsets=[0, 12])), "lies outside"),
        (damaged(entry(shape=[2**40, 2**40])), "lies outside"),
        (damaged(entry(), b"\0" * 15), "lies outside"),
    ],
)
def test_a_damaged_file_is_one_error(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)

    with pytest.raises(ModelError, match=message):
        read_safetensors(path)


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_any_changed_or_missing_byte_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    data = bytearray(write_safetensors(path, heads_of(random_chain(8, 0), 1)).read_bytes())
    if cut:
        del data[at:]
    else:
        data[at] = value
    path.write_bytes(data)

    with suppress(ModelError):
        assert n_heads(read(path, shared=np.zeros((8, 8), np.float32))) == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Cannot read .*: No such file"):
        read_safetensors(tmp_path / "x.safetensors")


FITTING = TargetShape(8, 8, 8)


def read(path: Path, target: TargetShape = FITTING, shared: Any = None) -> Heads:
    return read_heads(path, target, lambda: shared)


def n_heads(heads: Heads) -> int:
    return len(list(heads.rows(np.ones(8, np.float32), 100)))


# --- heads ----------------------------------------------------------------------------------------------


def written(tmp_path: Path, tensors: Tensors) -> Path:
    return write_safetensors(tmp_path / "heads.safetensors", tensors)


def test_a_head_computes_what_the_paper_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(2, 6, 6))
    b1, b2 = rng.normal(size=(2, 6))
    output, state = rng.normal(size=(10, 6)), rng.normal(size=6)
    parts = {"0.linear.weight": w1, "0.linear.bias": b1, "1.linear.weight": w2, "1.linear.bias": b2, "2.weight": output}
    path = written(tmp_path, {f"medusa_head.0.{name}": part for name, part in parts.items()})

    heads = read(path, TargetShape(n_embd=6, n_shared=9, n_vocab=10))

    def block(x: NDArray[np.float64], w: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        inner = w @ x + b
        return x + inner / (1 + np.exp(-inner))

    expected = output[:9] @ block(block(state, w1, b1), w2, b2)
    (row,) = heads.rows(state.astype(np.float32), 5)
    np.testing.assert_allclose(row, expected, rtol=1e-4)


def test_a_head_bears_large_numbers() -> None:
    eye = np.eye(2, dtype=np.float32)
    heads = Heads((Head(((eye * 1e4, np.zeros(2, np.float32)),), eye),))
    with np.errstate(all="raise"):
        (row,) = heads.rows(np.array([-1, 1], np.float32), 1)
    np.testing.assert_allclose(row, [-1, 1 + 1e4])


def test_heads_without_a_matrix_use_the_targets(tmp_path: Path) -> None:
    """With one head the result is a product of one row, with more of several at once."""
    rng = np.random.default_rng(0)
    w, b, shared, state = rng.normal(size=(3, 6, 6)), rng.normal(size=(3, 6)), rng.normal(size=(10, 6)), np.ones(6)
    tensors = {f"{i}.0.linear.{kind}": part[i] for i in range(3) for kind, part in (("weight", w), ("bias", b))}
    heads = read(written(tmp_path, tensors), TargetShape(6, 9, 10), shared.astype(np.float32))

    for n in (1, 2, 3, 7):
        rows = list(heads.rows(state.astype(np.float32), n))
        assert len(rows) == min(n, 3)
        for i, row in enumerate(rows):
            inner = w[i] @ state + b[i]
            np.testing.assert_allclose(row, shared[:9] @ (state + inner / (1 + np.exp(-inner))), rtol=1e-4, atol=1e-5)


def test_a_folder_with_heads_is_as_good_as_the_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "some.safetensors", heads_of(random_chain(8, 0), 2))
    assert n_heads(read(tmp_path)) == 2
    write_safetensors(tmp_path / "other.safetensors", {})
    with pytest.raises(ModelError, match="holds 2 safetensors files"):
        read(tmp_path)
    write_safetensors(tmp_path / FILE_NAME, heads_of(random_chain(8, 0), 3))
    assert n_heads(read(tmp_path)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {}, "has no Medusa heads"),
        (lambda _: {"model.norm.weight": np.ones(8)}, "has no Medusa heads"),
        (lambda t: {name: x for name, x in t.items() if not name.startswith("0")}, "has heads 1, 2; some are missing"),
        (lambda t: {name: x for name, x in t.items() if name != "1.0.linear.bias"}, "no tensor 1.0.linear.bias"),
        (lambda t: {name: x for name, x in t.items() if name != "2.1.weight"}, "no tensor 2.0.weight"),
        (lambda t: {**t, "1.0.linear.weight": np.ones((9, 9))}, "expects hidden states of width 9"),
        (lambda t: {**t, "1.0.linear.bias": np.ones(9)}, "expects hidden states of width"),
        (lambda t: {**t, "1.1.weight": np.ones((8, 9))}, "expects hidden states of width 9"),
        (lambda t: {**t, "1.1.weight": np.ones(8)}, "expects hidden states of width 0"),
        (lambda t: {**t, "1.1.weight": np.ones((6, 8))}, "has 6 tokens; the target has 8"),
        (lambda t: {**t, "1.1.weight": np.ones((9, 8))}, "has 9 tokens; the target has 8"),
    ],
)
def test_heads_that_do_not_fit_are_one_error(tmp_path: Path, change: Any, message: str) -> None:
    path = written(tmp_path, change(heads_of(random_chain(8, 0), 3)))

    with pytest.raises(ModelError, match=message):
        read(path, TargetShape(8, 7, 8))


# --- what is drafted ------------------------------------------------------------------------------------


class OneHot(TableLM):
    """A target whose state after a token is that token's one-hot vector, shown if the last pass was asked for it."""

    forgets = False
    shows = True

    @property
    def n_embd(self) -> int:
        return self.n_vocab

    def score(self, tokens: Sequence[int], n_last: int, *, hidden: bool = False) -> Logits:
        self.shows = hidden
        return super().score(tokens, n_last)

    def hidden(self, tokens: Sequence[int]) -> Hidden | None:
        return None if self.forgets or not self.shows else np.eye(self.n_vocab, dtype=np.float32)[tokens[-1]]


def table_heads(table: NDArray[np.float64], n: int) -> Heads:
    return Heads(tuple(Head((), np.roll(table.T, i, axis=0).astype(np.float32)) for i in range(n)))


def run(target: Any, drafter: Any, rule: Rule, prompt: Sequence[int], *, k: int, n: int) -> list[Round]:
    length = FixedLength(k, give_up_after=10**9)
    ends = lambda _: False  # noqa: E731
    return list(generate(target, drafter, length, rule, prompt, max_tokens=n, ends=ends, clock=FakeClock()))


def emitted(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "0.8"])
@pytest.mark.parametrize("k", range(1, 9))
def test_any_heads_leave_the_text_as_it_is(params: SamplingParams, k: int) -> None:
    target = OneHot(20, seed=3)
    rule = SharedNoise(Law(params, n_shared=20), seed=1)
    rounds = run(
        target, MedusaDrafter(target, table_heads(target.table, 5), rule, frozenset()), rule, [1, 2], k=k, n=60
    )

    assert emitted(rounds) == emitted(run(target, NoDrafter(), rule, [1, 2], k=0, n=60))
    assert {len(r.drafted) for r in rounds[1:-8]} == {min(k, 5)}


def test_drafting_stops_at_an_end_at_the_last_head_and_when_no_more_is_wanted() -> None:
    target = OneHot(20, seed=3)
    rule = SharedNoise(Law(GREEDY, n_shared=20), seed=1)
    drafter = MedusaDrafter(target, table_heads(target.table, 3), rule, frozenset())
    all_ = drafter.propose([1, 2], 8).tokens
    assert len(all_) == 3

    told: list[float | None] = []
    drafter.propose([1, 2], 8, lambda confidence: not told.append(confidence) and len(told) < 2)
    assert len(told) == 2
    assert all(c is not None and 0.5 <= c <= 1 for c in told)
    ending = MedusaDrafter(target, table_heads(target.table, 3), rule, frozenset({all_[1]}))
    assert ending.propose([1, 2], 8).tokens == all_[:2]
    target.forgets = True
    assert drafter.propose([1, 2], 8).tokens == ()


def test_heads_that_give_no_numbers_do_not_end_the_run() -> None:
    target = OneHot(20, seed=3)
    rule = SharedNoise(Law(WARM, n_shared=20), seed=1)
    broken = Head((), np.full((20, 20), np.nan, np.float32))
    rounds = run(target, MedusaDrafter(target, Heads((broken,)), rule, frozenset()), rule, [1, 2], k=2, n=20)

    assert emitted(rounds) == emitted(run(target, NoDrafter(), rule, [1, 2], k=0, n=20))
    assert rounds[-1].off_reason is not None
    assert rounds[-1].off_reason.startswith("the heads failed: The model's output contains NaN")


@pytest.mark.parametrize("kind", [TokenRejection, BlockRejection])
def test_drafts_bring_the_q_that_rejection_needs(kind: type[TokenRejection]) -> None:
    target = OneHot(20, seed=3)
    rule = kind(Law(WARM, n_shared=20), seed=1)
    draft = MedusaDrafter(target, table_heads(target.table, 3), rule, frozenset()).propose([1, 2], 3)

    assert draft.probs is not None
    assert [len(q.ids) > 0 and abs(q.probs.sum() - 1) < 1e-9 for q in draft.probs] == [True] * 3
    rounds = run(
        target, MedusaDrafter(target, table_heads(target.table, 3), rule, frozenset()), rule, [1, 2], k=3, n=60
    )
    assert sum(r.n_accepted for r in rounds) > 0


def test_the_drafter_needs_heads_and_a_target() -> None:
    target = OneHot(20, seed=3)
    rule = SharedNoise(Law(GREEDY, n_shared=20), seed=1)
    for parts in (
        DrafterParts(rule, frozenset(), 0.0, None),
        DrafterParts(rule, frozenset(), 0.0, None, target),
        DrafterParts(rule, frozenset(), 0.0, None, None, Heads(())),
    ):
        with pytest.raises(UsageError, match="needs heads"):
            DRAFTERS["medusa"].make(parts)


# --- through llama.cpp ----------------------------------------------------------------------------------


class Planted:
    """A planted target, its exact heads, and a chain that repeats itself nearly always."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.chain = random_chain(N_VOCAB, 0, sharpness=4.0)
        self.file = write_planted(folder / "target.gguf", self.chain, n_vocab_pad=8)
        self.heads = write_safetensors(folder / "heads.safetensors", heads_of(self.chain, 4))
        self.model = stack.enter_context(LlamaModel(ModelSettings(self.file)))
        self.stack = stack

    def session(self, **settings: Any) -> LlamaSession:
        small = {"n_ctx": 512, "n_batch": 32, "n_ubatch": 32, "max_rows": 9}
        return self.stack.enter_context(LlamaSession(self.model, ContextSettings(**{**small, **settings})))

    def read(self) -> Heads:
        return read(self.heads, TargetShape(N_VOCAB, N_VOCAB, N_VOCAB + 8))


@pytest.fixture(scope="module")
def planted_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with ExitStack() as stack:
        yield Planted(tmp_path_factory.mktemp("medusa"), stack)


PROMPT = [1, *range(5, 60)]


def test_the_state_is_what_the_output_matrix_sees(planted_target: Planted) -> None:
    session = planted_target.session()
    assert session.score(PROMPT, 2) is not None
    assert session.hidden(PROMPT) is None, "nobody asked for states"

    session.score([*PROMPT, 7, 8, 9], 3, hidden=True)
    for token, text in ((7, [*PROMPT, 7]), (8, [*PROMPT, 7, 8]), (9, [*PROMPT, 7, 8, 9])):
        expected = np.zeros(N_VOCAB)
        expected[token] = np.sqrt(N_VOCAB)
        np.testing.assert_allclose(session.hidden(text), expected, atol=1e-4)
    for other in (PROMPT, [*PROMPT, 8], [*PROMPT, 7, 8, 9, 10], [5, *PROMPT[1:], 7], []):
        assert session.hidden(other) is None


def test_states_change_no_logit_and_are_not_asked_of_a_prompt(planted_target: Planted) -> None:
    """With states for every token the prompt's 56 rows would be made, which is what a prompt must not cost."""
    plain, other = planted_target.session(), planted_target.session()
    rows: list[Logits] = [s.score(PROMPT, 2, hidden=s is other).copy() for s in (plain, other)]
    np.testing.assert_array_equal(*rows)
    rows = [s.score([*PROMPT, 9, 9, 9], 3, hidden=s is other).copy() for s in (plain, other)]
    np.testing.assert_array_equal(*rows)
    assert other.n_passes == plain.n_passes


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "0.8"])
def test_exact_heads_draft_what_the_chain_says(planted_target: Planted, params: SamplingParams) -> None:
    """Every draft is what the powers of the chain give from the state before the text's last token."""
    target, chain = planted_target.session(), planted_target.chain
    rule = SharedNoise(Law(params, n_shared=N_VOCAB), seed=5)
    plain = emitted(run(target, NoDrafter(), rule, PROMPT, k=0, n=80))
    for k in (1, 2, 4, 8):
        drafter = MedusaDrafter(target, planted_target.read(), rule, frozenset())
        rounds = run(target, drafter, rule, PROMPT, k=k, n=80)
        assert emitted(rounds) == plain
        text = list(PROMPT)
        for i, round_ in enumerate(rounds):
            drafted = list(text)
            for head in range(len(round_.drafted)):
                row = log_chain(np.linalg.matrix_power(chain, head + 2))[text[-2]]
                drafted.append(rule.choose(row.astype(np.float32), drafted))
            assert tuple(drafted[len(text) :]) == round_.drafted
            assert len(round_.drafted) == (min(k, 4, len(PROMPT) + 80 - len(text) - 1) if i else 0)
            text += round_.tokens
        assert sum(r.n_accepted for r in rounds) > 10


def test_the_output_matrix_of_a_file_and_of_one_in_parts(tmp_path: Path) -> None:
    chain = random_chain(320, 0)
    expected = np.vstack([log_chain(chain).T / np.sqrt(320), np.zeros((8, 320))])
    whole = write_planted(tmp_path / "whole.gguf", chain, n_vocab_pad=8)
    for file in (whole, write_split(whole, tmp_path, "part")[0]):
        np.testing.assert_allclose(output_matrix(file), expected, rtol=1e-6)
    half = write_planted(tmp_path / "half.gguf", chain, n_vocab_pad=8, dtype=np.float16)
    np.testing.assert_allclose(output_matrix(half), expected, rtol=1e-3)


def test_quantized_matrices_are_unpacked_as_the_format_says(smollm2_q4_0: Path) -> None:
    (packed,) = (t for t in gguf.GGUFReader(smollm2_q4_0).tensors if t.name == "token_embd.weight")
    matrix = output_matrix(smollm2_q4_0)
    assert matrix.shape == (49152, 576)
    np.testing.assert_array_equal(matrix[-99:], gguf.dequantize(packed.data[-99:], packed.tensor_type))


def test_a_file_without_an_output_matrix(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no output matrix"):
        output_matrix(write_vocab_only(tmp_path / "vocab.gguf", make_vocab(320)))


def test_turns_of_a_chat_and_a_new_conversation(planted_target: Planted) -> None:
    target, plain = planted_target.session(), planted_target.session()
    rule = SharedNoise(Law(WARM, n_shared=N_VOCAB), seed=5)
    drafter, prompt = MedusaDrafter(target, planted_target.read(), rule, frozenset()), PROMPT
    for turn in range(3):
        rounds = run(target, drafter, rule, prompt, k=4, n=30)
        assert emitted(rounds) == emitted(run(plain, NoDrafter(), rule, prompt, k=0, n=30))
        assert sum(r.n_accepted for r in rounds) > 0
        prompt = [*prompt, *emitted(rounds)[:20], 9, 8, 7] if turn < 1 else [1, 9, 9]


def test_ctrl_c_in_a_pass_leaves_no_state_behind(planted_target: Planted) -> None:
    abort = AbortFlag()
    settings = ContextSettings(n_ctx=256, n_batch=32, n_ubatch=32, max_rows=4)
    with LlamaSession(planted_target.model, settings, abort=abort) as session:
        session.score(PROMPT, 1, hidden=True)
        abort.set(2)
        with pytest.raises(Interrupted):
            session.score([*PROMPT, 5], 1, hidden=True)
        assert session.hidden([*PROMPT, 5]) is None
        abort.clear()
        session.score([*PROMPT, 5], 1, hidden=True)
        assert session.hidden([*PROMPT, 5]) is not None


# --- the command line -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target_and_heads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, chain = tmp_path_factory.mktemp("heads"), random_chain(320, 0, sharpness=4.0, never=(UNK, BOS, *BYTES))
    heads = write_safetensors(folder / FILE_NAME, heads_of(chain, 2))
    return write_planted(folder / "target.gguf", chain), heads


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_run_with_heads_writes_what_it_writes_without(target_and_heads: tuple[Path, Path], temperature: float) -> None:
    target, heads = target_and_heads
    common = (target, " a b", "-n", 60, "--temp", temperature, "--seed", 3)
    plain = json_inside(*common, "--draft", "none").document
    for draft in (heads, heads.parent):
        done = json_inside(*common, "--draft", draft, "-k", 3)
        assert done.document["text"] == plain["text"]
        assert done.stats["drafted"] >= done.stats["accepted"] > 10
        assert done.document["models"]["drafter"] == "medusa"


def test_heads_without_a_matrix_draft_with_that_of_the_file(
    target_and_heads: tuple[Path, Path], tmp_path: Path
) -> None:
    """A block that adds nothing leaves the target's own logits, those that gave the text's last token."""
    target, _ = target_and_heads
    blocks = {"0.0.linear.weight": np.zeros((320, 320)), "0.0.linear.bias": np.zeros(320)}
    file = write_safetensors(tmp_path / "heads.safetensors", blocks, "F16")
    _, trace = traced(tmp_path / "trace", target, " a b", "-n", 20, "-k", 4, "--temp", 0, "--draft", file)

    text, drafts = list(trace[0]["prompt_ids"]), 0
    for round_ in (line for line in trace if line["type"] == "round"):
        assert round_["drafted"] in ([], [text[-1]])
        drafts += len(round_["drafted"])
        text += [*round_["drafted"][: round_["n_accepted"]], round_["own"]]
    assert drafts > 10


def test_heads_of_another_model_and_heads_that_are_none(target_and_heads: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = target_and_heads
    file = write_safetensors(tmp_path / FILE_NAME, heads_of(random_chain(32, 0), 2))
    done = inside("run", target, " a", "-n", 4, "--draft", tmp_path)
    assert (done.code, done.out) == (3, "")
    assert "hidden states of width 32; the target's have width 320" in done.err
    file.write_bytes(b"no")
    for draft in (file, tmp_path / "no.safetensors"):
        done = inside("run", target, " a", "-n", 4, "--draft", draft)
        assert (done.code, done.out) == (3, "")


def test_bench_measures_heads_and_keeps_their_profile_apart(
    target_and_heads: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target, heads = target_and_heads
    (tmp_path / "prompt.txt").write_text(" a b c", encoding="utf-8")
    common = ("--prompts", tmp_path / "prompt.txt", "-n", 16, "--repeats", 1, "-k", 2, "--threads", 1)
    done = inside("bench", target, "--draft", heads, *common, "--tune")
    assert done.code == 0
    assert [line.split()[2] for line in done.out.splitlines() if line.startswith("own")] == ["medusa", "ngram"]
    assert done.out.count(" same\n") == 2
    assert (
        "Using the tuned profile of this pair" in inside("run", target, " a", "-n", 2, "--draft", heads, "--plain").err
    )
    assert "Using the tuned profile of this pair" not in inside("run", target, " a", "-n", 2, "--plain").err
    done = inside("bench", target, "--drafter", "medusa", *common)
    assert (done.code, done.out) == (2, "")


def test_a_recurrent_target_is_drafted_for_and_keeps_its_text(tmp_path: Path) -> None:
    mamba = write_tiny_mamba(tmp_path / "mamba.gguf", seed=5)
    heads = write_safetensors(tmp_path / "heads.safetensors", heads_of(random_chain(320, 0), 2))
    common = (mamba, " a", "-n", 24, "--seed", 2)
    plain, drafted = json_inside(*common, "--draft", "none"), json_inside(*common, "--draft", heads, "-k", 2)
    assert drafted.document["token_ids"] == plain.document["token_ids"]
