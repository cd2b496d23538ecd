"""Lookahead: branches beside the text in the same pass, what is learnt from them, and a text that stays the same."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Branches, Drafter, Logits, Round
from specdec_cli.drafters.lookahead import DEFAULT_LENGTH, DEFAULT_WINDOW, LookaheadDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import Interrupted
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.cli import inside, json_inside
from tests.fakes import FakeClock, FakeLM, HashLM, TableLM
from tests.planted import random_chain, write_pair, write_planted, write_tiny_hybrid, write_tiny_mamba, write_tiny_swa

GREEDY, WARM = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
PROMPT = (1, 2, 3)


def paths(branches: Branches) -> list[list[int]]:
    """The tokens from the root to each leaf."""
    found = []
    for i in range(len(branches.tokens)):
        if i not in branches.parents:
            path, at = [], i
            while at >= 0:
                path.insert(0, branches.tokens[at])
                at = branches.parents[at]
            found.append(path)
    return found


class Branching:
    """A fake target that evaluates trees; `trees` keeps them, with the text each grew from."""

    def __init__(self, lm: FakeLM) -> None:
        self.lm = lm
        self.n_ctx, self.n_vocab = lm.n_ctx, lm.n_vocab
        self.trees: list[tuple[list[int], Branches]] = []

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        return self.lm.score(tokens, n_last)

    def score_beside(self, tokens: Sequence[int], n_last: int, branches: Branches) -> Logits:
        text = list(tokens[: len(tokens) - n_last + 1])
        self.trees.append((text, branches))
        branches.take(np.array([self.lm.row([*text, *path]) for path in paths(branches)], np.float32))
        return self.lm.score(tokens, n_last)


def run(
    target: Any, drafter: Drafter, params: SamplingParams, *, k: int, n: int, prompt: Sequence[int] = PROMPT
) -> list[Round]:
    rule = SharedNoise(Law(params, n_shared=target.n_vocab), seed=2)
    length = FixedLength(k, give_up_after=10**9)
    ends = lambda _: False  # noqa: E731
    return list(generate(target, drafter, length, rule, prompt, max_tokens=n, ends=ends, clock=FakeClock()))


def emitted(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


def n_accepted(rounds: Sequence[Round]) -> int:
    return sum(round_.n_accepted for round_ in rounds)


# --- the drafter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "0.8"])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_text_is_that_of_plain_decoding(params: SamplingParams, k: int) -> None:
    for lm in (HashLM(12, seed=3), TableLM(12, seed=3, scale=4.0)):
        plain = emitted(run(lm, NoDrafter(), params, k=0, n=60))
        target = Branching(lm)
        rounds = run(target, LookaheadDrafter(12), params, k=k, n=60)
        assert emitted(rounds) == plain
        assert len(target.trees) == len([r for r in rounds if r.k])
        assert any(r.drafted for r in rounds)
        assert all(len(r.drafted) <= k for r in rounds)


def test_a_target_without_branches_gives_drafts_from_the_text_alone() -> None:
    lm = TableLM(12, seed=3, scale=4.0)
    rounds = run(lm, LookaheadDrafter(12), GREEDY, k=4, n=60)

    assert emitted(rounds) == emitted(run(lm, NoDrafter(), GREEDY, k=0, n=60))
    assert n_accepted(rounds) > 0


def test_the_tree_is_a_window_of_places_with_a_column_at_each() -> None:
    target = Branching(TableLM(50, seed=1))
    run(target, LookaheadDrafter(50, window=4, length=5), GREEDY, k=3, n=12)
    for _, tree in target.trees:
        branches = paths(tree)
        assert [len(path) for path in branches] == [3, 4, 5, 6]
        assert all(parent < i for i, parent in enumerate(tree.parents))
        assert len(tree.tokens) == 4 * 4 - 1
        # Column i begins with the first i guesses of the first level.
        first = branches[-1][:3]
        assert [path[:i] for i, path in enumerate(branches)] == [first[:i] for i in range(4)]


def test_each_level_moves_up_and_the_newest_guesses_become_the_last() -> None:
    lm = TableLM(50, seed=1)
    target = Branching(lm)
    run(target, LookaheadDrafter(50, window=4, length=4), GREEDY, k=3, n=12)
    levels = [[[path[i + j] for i, path in enumerate(paths(tree))] for j in range(2)] for _, tree in target.trees]
    for (text, tree), now, then in zip(target.trees, levels, levels[1:], strict=False):
        guesses = [int(lm.row([*text, *path]).argmax()) for path in paths(tree)]
        assert then[1] == guesses
        assert then[0][1:] == now[1][1:] or now[1] == guesses


def test_what_a_branch_said_is_drafted_when_the_text_comes_there() -> None:
    """On a chain without surprises the columns run on from wherever they began, and the text comes there later."""
    n, prompt = 400, (20, 60, 90, 3)
    lm = TableLM(n, seed=0)
    lm.table = np.roll(np.eye(n), 1, axis=1) * 20  # the token after s is s + 1
    target = Branching(lm)
    rounds = run(target, LookaheadDrafter(n), GREEDY, k=3, n=120, prompt=prompt)

    assert emitted(rounds) == [3 + i for i in range(1, 121)]
    assert n_accepted(rounds) > 40
    assert n_accepted(run(lm, LookaheadDrafter(n), GREEDY, k=3, n=120, prompt=prompt)) == 0, "the text has none of it"


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ("abcd", 3, ""),
        ("abcdxa", 3, "bcd"),
        ("abcdxa", 2, "bc"),
        ("abcdefgxyabc", 3, "def"),
        # Two tokens tell more than the newest occurrence of one.
        ("qabcdzaxyzqa", 3, "bcd"),
        # A draft goes on from its own end.
        ("abcdefgxa", 6, "bcdefg"),
        ("aaaa", 5, "aaaaa"),
        ("a", 3, ""),
        ("ab", 3, ""),
    ],
)
def test_text_by_hand(text: str, k: int, expected: str) -> None:
    assert "".join(map(chr, LookaheadDrafter(200).propose([ord(c) for c in text], k).tokens)) == expected


def test_it_stops_when_no_more_is_wanted_and_reads_another_text_anew() -> None:
    drafter = LookaheadDrafter(200)
    tokens = [ord(c) for c in "abcdefgxyabc"]
    assert len(drafter.propose(tokens, 3, lambda _: False).tokens) == 1
    other = [ord(c) for c in "pqrstp"]
    assert drafter.propose(other, 3).tokens == tuple(map(ord, "qrs"))


def test_ids_beyond_the_shared_ones_are_not_guessed() -> None:
    lm = TableLM(20, seed=1)
    lm.table[:, 12:] = 100
    target = Branching(lm)
    drafter = LookaheadDrafter(12)
    tokens = list(PROMPT)
    for _ in range(8):
        tree = drafter.propose(tokens, 4).beside
        assert tree is not None
        assert max(tree.tokens) < 12
        target.score_beside(tokens, 1, tree)
        tokens.append(5)


# --- through llama.cpp ----------------------------------------------------------------------------------

N_VOCAB = 64
NEAR = 4e-3
MODELS = {
    "plain": lambda path: write_planted(path, random_chain(N_VOCAB, 0), mixing=1.0),
    "window": lambda path: write_tiny_swa(path, seed=5, n_vocab=N_VOCAB),
}


class Beds:
    """Models by name, and sessions with and without branches."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.models = {
            name: stack.enter_context(LlamaModel(ModelSettings(write(folder / f"{name}.gguf"))))
            for name, write in MODELS.items()
        }

    def session(self, name: str, branches: int = DEFAULT_WINDOW, **settings: Any) -> LlamaSession:
        small = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "cache_type": "f32", "flash_attention": "off"}
        given = ContextSettings(**{**small, "max_rows": 9, "branches": branches, **settings})
        abort = AbortFlag()
        session = self.stack.enter_context(LlamaSession(self.models[name], given, abort=abort))
        session.flag = abort  # type: ignore[attr-defined]
        return session


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beds]:
    with ExitStack() as stack:
        yield Beds(tmp_path_factory.mktemp("lookahead"), stack)


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, N_VOCAB, size=n).tolist()


def random_tree(n: int, seed: int, take: Any) -> Branches:
    """Any tree: chains, forks, several at the root."""
    rng = np.random.default_rng(seed)
    parents = [int(rng.integers(max(-1, i - 4), i)) for i in range(n)]
    return Branches(tuple(ids(n, seed)), tuple(parents), take)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(6))
def test_rows_beside_are_those_of_the_same_tokens_as_a_text(beds: Beds, name: str, seed: int) -> None:
    """Past the sliding window of 16 as well, with a draft that the branches must not see, and the text unmoved."""
    session, alone = beds.session(name, 16), beds.session(name, 0)
    text, draft, taken = ids(30, seed), ids(3, seed + 50), []
    tree = random_tree(12, seed, lambda rows: taken.append(rows.copy()))
    rows = session.score_beside([*text, *draft], 4, tree).copy()

    np.testing.assert_allclose(rows, alone.score([*text, *draft], 4), atol=NEAR)
    (leaves,) = taken
    assert len(leaves) == len(paths(tree))
    for leaf, path in zip(leaves, paths(tree), strict=True):
        np.testing.assert_allclose(leaf, alone.score([*text, *path], 1)[0], atol=NEAR)
    # What comes after is not disturbed by what was beside, and the tree's cells are free again.
    longer = [*text, draft[0], *ids(20, seed + 90)]
    np.testing.assert_allclose(session.score(longer, 2), alone.score(longer, 2), atol=NEAR)


def test_the_tokens_of_a_text_are_evaluated_once_and_cells_do_not_run_out(beds: Beds) -> None:
    session, tokens = beds.session("plain", 8), ids(200)
    for end in range(1, 201):
        session.score_beside(tokens[:end], 1, random_tree(20, end, lambda _: None))
    n_trees = session.n_evaluated - 200
    assert n_trees % 20 == 0
    assert 0 < n_trees <= 20 * 200
    assert session.n_resets == 0
    assert session.n_passes == 200


@pytest.mark.parametrize("settings", [{"branches": 2}, {"n_batch": 16, "n_ubatch": 16}, {"n_ctx": 40}, {"branches": 0}])
def test_a_tree_without_room_is_left_out(beds: Beds, settings: dict[str, Any]) -> None:
    session, text = beds.session("plain", **settings), ids(30)
    rows = session.score_beside(text, 1, random_tree(20, 1, lambda _: pytest.fail("there is no room")))

    np.testing.assert_allclose(rows, beds.session("plain", 0).score(text, 1), atol=NEAR)
    assert session.n_evaluated == 30


def test_no_tree_is_no_tree(beds: Beds) -> None:
    session = beds.session("plain")
    empty = Branches((), (), lambda _: pytest.fail("there is none"))
    np.testing.assert_array_equal(session.score_beside(ids(9), 2, empty), beds.session("plain").score(ids(9), 2))


def test_ctrl_c_in_a_pass_with_branches_leaves_the_session_usable(beds: Beds) -> None:
    session, text = beds.session("plain"), ids(30)
    tree = random_tree(12, 0, lambda _: None)
    session.score_beside(text, 1, tree)
    session.flag.set(2)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        session.score_beside([*text, 5], 1, tree)
    session.flag.clear()  # type: ignore[attr-defined]
    rows = session.score_beside([*text, 5, 6], 2, tree)
    np.testing.assert_allclose(rows, beds.session("plain", 0).score([*text, 5, 6], 2), atol=NEAR)


def test_ctrl_c_inside_llama_cpp_leaves_nothing_of_the_branches(smollm2_q4_0: Path) -> None:
    abort, settings = AbortFlag(), {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "max_rows": 4}
    text, tree = ids(20), random_tree(40, 0, lambda _: None)
    with (
        LlamaModel(ModelSettings(smollm2_q4_0)) as model,
        LlamaSession(model, ContextSettings(**settings, branches=32), abort=abort) as session,
        LlamaSession(model, ContextSettings(**settings)) as alone,
    ):
        session.score(text, 1)
        timer = Timer(0.005, abort.set, (2,))
        timer.start()
        with suppress(Interrupted):  # a pass that was faster than the timer is none the worse
            session.score_beside([*text, 7, 8], 3, tree)
        timer.join()
        abort.clear()
        rows = session.score_beside([*text, 7, 8], 3, tree)
        np.testing.assert_array_equal(rows, alone.score([*text, 7, 8], 3))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "0.8"])
def test_a_session_with_branches_writes_the_plain_text(beds: Beds, name: str, params: SamplingParams) -> None:
    target = beds.session(name)
    plain = emitted(run(beds.session(name, 0), NoDrafter(), params, k=0, n=70, prompt=ids(20)))
    for k in range(1, 9):
        rounds = run(target, LookaheadDrafter(N_VOCAB), params, k=k, n=70, prompt=ids(20))
        assert emitted(rounds) == plain
        assert any(r.drafted for r in rounds)


def test_turns_of_a_chat_and_a_new_conversation(beds: Beds) -> None:
    target, plain = beds.session("plain"), beds.session("plain", 0)
    drafter, prompt = LookaheadDrafter(N_VOCAB), ids(20)
    for turn in range(3):
        text = emitted(run(target, drafter, WARM, k=4, n=30, prompt=prompt))
        assert text == emitted(run(plain, NoDrafter(), WARM, k=0, n=30, prompt=prompt))
        prompt = [*prompt, *text[:20], *ids(5, turn)] if turn < 1 else ids(12, 9)


def test_smollm2_writes_the_plain_text(smollm2_q4_0: Path) -> None:
    common = (smollm2_q4_0, "Count from one to thirty in words.", "-n", 30, "--temp", 0.8, "--seed", 3)
    plain = json_inside(*common, "--draft", "none").document
    done = json_inside(*common, "--draft", "lookahead", "-k", 4)
    assert done.document["text"] == plain["text"]
    assert done.stats["accepted"] > 0


def test_the_last_tokens_of_a_context_are_written_too(beds: Beds) -> None:
    target = beds.session("plain", n_ctx=60)
    rounds = run(target, LookaheadDrafter(N_VOCAB), GREEDY, k=4, n=100, prompt=ids(20))
    plain = run(beds.session("plain", 0, n_ctx=60), NoDrafter(), GREEDY, k=0, n=100, prompt=ids(20))
    assert emitted(rounds) == emitted(plain)
    assert rounds[-1].finish == "context"


# --- the command line -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair")).target


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_run_with_lookahead_writes_what_it_writes_without(target: Path, temperature: float) -> None:
    common = (target, " a b c", "-n", 60, "--temp", temperature, "--seed", 3)
    plain = json_inside(*common, "--draft", "none").document
    for options in (("-k", 3), ("-k", 7, "--batch", 8), ("--verify", "coupled", "-k", 1)):
        done = json_inside(*common, "--draft", "lookahead", *options)
        assert done.document["text"] == plain["text"]
        assert done.document["models"]["drafter"] == "lookahead"
        assert done.stats["drafted"] > 0


def test_an_ordinary_run_has_one_sequence_and_lookahead_one_more_for_each_place(target: Path, tmp_path: Path) -> None:
    for draft, n in (("ngram", 1), ("lookahead", 1 + DEFAULT_WINDOW)):
        log = tmp_path / draft
        assert inside("run", target, " a", "-n", 2, "--draft", draft, "--log", log, "--plain").code == 0
        text = log.read_text(encoding="utf-8")
        assert f"n_seq_max             = {n}\n" in text
        assert f"kv_unified            = {'true' if n > 1 else 'false'}\n" in text


@pytest.mark.parametrize("options", [("--draft", "lookahead"), ("--drafter", "lookahead,ngram")])
def test_bench_measures_lookahead(target: Path, tmp_path: Path, options: tuple[str, str]) -> None:
    (tmp_path / "prompt.txt").write_text(" a b c", encoding="utf-8")
    common = ("--prompts", tmp_path / "prompt.txt", "-n", 16, "--repeats", 1, "-k", 2, "--temp", 0, "--threads", 1)
    done = inside("bench", target, *options, *common)
    assert done.code == 0
    assert [line.split()[2] for line in done.out.splitlines() if line.startswith("own")] == ["lookahead", "ngram"]
    assert done.out.count(" same\n") == 2


def test_strict_and_lookahead_exclude_each_other(target: Path) -> None:
    done = inside("run", target, " a", "--draft", "lookahead", "--strict")
    assert done.code == 2
    assert "makes every pass wide" in done.err


@pytest.mark.parametrize("write", [write_tiny_mamba, write_tiny_hybrid])
def test_memory_that_cannot_be_taken_back_is_the_reason(tmp_path: Path, write: Any) -> None:
    done = json_inside(write(tmp_path / "target.gguf", seed=5), " a", "-n", 8, "--draft", "lookahead")
    assert done.stats["drafted"] == 0
    assert "lookahead does not work with" in done.stats["speculation_off_reason"]


def test_the_defaults_make_passes_that_small_models_bear() -> None:
    """From 64 tokens on, llama.cpp's flash attention is another kernel, with other roundings."""
    assert DEFAULT_WINDOW * (DEFAULT_LENGTH - 1) + 16 < 64


def test_what_is_learnt_is_bounded_and_the_newest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.drafters.lookahead.MOST_NGRAMS", 50)
    drafter = LookaheadDrafter(1000)
    text = list(range(300))
    drafter.propose(text, 4)
    assert len(drafter._follows) == 50
    assert drafter.propose([*text, 295, 296], 2).tokens == (297, 298)
    assert drafter.propose([*text, 295, 296, 5, 6], 2).tokens == ()
