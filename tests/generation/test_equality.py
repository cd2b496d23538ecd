"""The promise: a seed gives the same text whoever drafts, and however long the drafts are.

One thread is the rule here. With more, llama.cpp reads a cache of 512 cells and more (that is, from 257
tokens on) by another kernel in passes of one token, and what is equal to the bit below is equal up to ties
above; the last tests are about that.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from specdec_cli.bench.compare_texts import distance
from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.strict import width_noise
from specdec_cli.decode.tokens import first_difference
from specdec_cli.decode.types import Draft, Drafter, Round
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.prompts import conversation
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.quantize import quantize
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import ContextSettings, ModelSettings
from specdec_cli.ui.silent import SilentView
from tests import planted, real_models
from tests.cli import run_json
from tests.planted import disturbed, random_chain, write_planted

GREEDY = SamplingParams(temperature=0)
WARM, HOT = SamplingParams(temperature=0.7), SamplingParams(temperature=1.0)
WARM_UNCUT = SamplingParams(temperature=0.7, top_k=0, top_p=1, min_p=0)
HOT_UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
NAMES = {GREEDY: "greedy", WARM: "0.7", HOT: "1.0", WARM_UNCUT: "0.7 uncut", HOT_UNCUT: "1.0 uncut"}

MAX_K = 16
Cell = tuple[SamplingParams, str, int]


class Informed:
    """Knows the text and proposes it, wrong wherever `spoilt` says so."""

    name = "informed"

    def __init__(self, text: Sequence[int], spoilt: Callable[[int], bool], n_vocab: int) -> None:
        self.text = text
        self.spoilt = spoilt
        self.n_vocab = n_vocab

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        places = range(len(tokens), min(len(tokens) + k, len(self.text)))
        return Draft(tuple((self.text[i] + self.spoilt(i)) % self.n_vocab for i in places))


class Bed:
    """A target and its drafters, opened once; sessions go from cell to cell and find their prefix."""

    def __init__(self, stack: ExitStack, target: Path, draft: Path, **settings: object) -> None:
        self._stack = stack
        self.settings = {"n_ctx": 1024, "threads": 1, **settings}
        self.model = stack.enter_context(LlamaModel(ModelSettings(target)))
        draft_model = stack.enter_context(LlamaModel(ModelSettings(draft)))
        self.target = self.open(self.model, MAX_K + 1)
        self.draft = self.open(draft_model, 1)
        self.twin = self.open(self.model, 1)
        self.end_tokens = self.model.end_tokens
        self.prompt: list[int] = []
        self.n = 0
        self._plain: dict[SamplingParams, list[int]] = {}

    def open(self, model: LlamaModel, max_rows: int) -> LlamaSession:
        return self._stack.enter_context(LlamaSession(model, ContextSettings(**self.settings, max_rows=max_rows)))

    def rule(self, params: SamplingParams) -> SharedNoise:
        """Texts never end: end tokens are banned."""
        return SharedNoise(Law(params, n_shared=self.model.n_vocab, banned=tuple(self.end_tokens)), seed=7)

    def plain(self, params: SamplingParams) -> list[int]:
        """Prompt and text without a draft."""
        if params not in self._plain:
            rounds = self.write(params, NoDrafter(), 0)
            assert len(rounds) == self.n
            self._plain[params] = self.prompt + [t for r in rounds for t in r.tokens]
        return self._plain[params]

    def drafter(self, name: str, params: SamplingParams) -> Drafter:
        if name == "ngram":
            return NgramDrafter()
        if name in ("model", "twin"):
            return ModelDrafter(self.draft if name == "model" else self.twin, self.rule(params), frozenset())
        spoilt = {"wrong": lambda _: True, "half": lambda i: i * 7 % 11 < 2}[name]
        return Informed(self.plain(params), spoilt, self.model.n_vocab)

    def write(self, params: SamplingParams, drafter: Drafter, k: int) -> list[Round]:
        return list(
            generate(
                self.target,
                drafter,
                FixedLength(k, give_up_after=10**9),
                self.rule(params),
                self.prompt,
                max_tokens=self.n,
                ends=lambda _: False,
                clock=time.perf_counter,
            )
        )

    def check(self, cell: Cell) -> None:
        """The text of a cell is the plain one, and the drafter did what its name says."""
        params, name, k = cell
        expected = self.plain(params)
        rounds = self.write(params, self.drafter(name, params), k)
        assert self.prompt + [t for r in rounds for t in r.tokens] == expected
        drafted, accepted = sum(len(r.drafted) for r in rounds), sum(r.n_accepted for r in rounds)
        if name == "wrong":
            assert drafted > accepted == 0
        elif name == "twin":
            assert drafted == accepted > 0
        elif name != "ngram":
            assert drafted > accepted > 0


def cell_name(cell: Cell) -> str:
    params, name, k = cell
    return f"{NAMES[params]} {name} k={k}"


# --- real models ----------------------------------------------------------------------------------------

QUESTION = "Tell me the story of a lighthouse keeper and his dog, then list five rules for sailors."


def chat_prompt(model: LlamaModel) -> list[int]:
    talk = conversation(model, system=None, thinking=None, now=datetime.now)
    assert talk is not None
    return talk.ask(QUESTION)


def smollm2(stack: ExitStack, target: str, draft: str, n: int, **settings: object) -> Bed:
    target_file, draft_file = (real_models.need(real_models.smollm2, quant) for quant in (target, draft))
    bed = Bed(stack, target_file, draft_file, **settings)
    bed.prompt, bed.n = chat_prompt(bed.model), n
    return bed


@pytest.fixture(scope="module")
def smollm2_q4() -> Iterator[Bed]:
    with ExitStack() as stack:
        yield smollm2(stack, "Q4_0", "Q2_K", 80)


@pytest.mark.parametrize(
    "cell",
    [
        (GREEDY, "model", 4),
        (GREEDY, "ngram", 11),
        (GREEDY, "half", 7),
        (WARM, "model", 2),
        (WARM, "half", 16),
        (WARM_UNCUT, "half", 13),
        (WARM_UNCUT, "twin", 10),
        (HOT, "half", 6),
        (HOT, "ngram", 8),
        (HOT, "half", 14),
        (HOT_UNCUT, "half", 5),
        (HOT_UNCUT, "wrong", 1),
        (HOT_UNCUT, "model", 3),
        (HOT_UNCUT, "half", 15),
    ],
    ids=cell_name,
)
def test_smollm2_q4_0(smollm2_q4: Bed, cell: Cell) -> None:
    smollm2_q4.check(cell)


def test_a_session_that_has_been_used_writes_what_a_new_one_writes(smollm2_q4: Bed) -> None:
    smollm2_q4.check((WARM, "half", 9))
    used, smollm2_q4.target = smollm2_q4.target, smollm2_q4.open(smollm2_q4.model, 13)
    try:
        smollm2_q4.check((WARM, "half", 12))
    finally:
        smollm2_q4.target.close()
        smollm2_q4.target = used


@pytest.fixture(scope="module")
def smollm2_q8() -> Iterator[Bed]:
    with ExitStack() as stack:
        yield smollm2(stack, "Q8_0", "Q4_0", 64)


@pytest.mark.parametrize(
    "cell",
    [(GREEDY, "half", 6), (WARM, "model", 3), (HOT_UNCUT, "half", 12), (HOT_UNCUT, "ngram", 5)],
    ids=cell_name,
)
def test_smollm2_q8_0(smollm2_q8: Bed, cell: Cell) -> None:
    smollm2_q8.check(cell)


@pytest.fixture(scope="module")
def gemma() -> Iterator[Bed]:
    """The prompt ends 36 tokens before the sliding window of 512 is full, the text 24 after."""
    with ExitStack() as stack:
        bed = Bed(stack, *(real_models.need(real_models.gemma3_270m, quant) for quant in ("Q4_0", "Q8_0")))
        assert bed.model.metadata("gemma3.attention.sliding_window") == "512"
        text = bed.model.tokenize(planted.__doc__ or "", add_special=True, parse_special=False)
        assert len(text) >= 476
        bed.prompt, bed.n = text[:476], 60
        yield bed


@pytest.mark.parametrize(
    "cell", [(GREEDY, "half", 7), (WARM, "half", 4), (HOT_UNCUT, "model", 2), (HOT_UNCUT, "wrong", 1)], ids=cell_name
)
def test_gemma_across_its_window(gemma: Bed, cell: Cell) -> None:
    gemma.check(cell)
    assert gemma.target.n_resets == 0


# --- files whose numbers depend on the width of a pass --------------------------------------------------


def assert_equal_up_to_ties(bed: Bed, params: SamplingParams, drafter: str, k: int, noise: float) -> None:
    """Where the texts part, if they do, `noise` must be able to turn the choice."""
    expected = bed.plain(params)
    rounds = bed.write(params, bed.drafter(drafter, params), k)
    found = bed.prompt + [t for r in rounds for t in r.tokens]
    at = first_difference(expected, found)
    if at is not None:
        needed = distance(bed.target, bed.rule(params), expected[:at], found[at])
        assert needed <= noise, f"token {at}: the logits would have to move by {needed:.3f}, but move by {noise:.3f}"


@pytest.mark.parametrize(("quant", "bound"), [("F32", 0.05), ("F16", 0.2), ("Q2_K", 2.0)], ids=lambda value: str(value))
def test_smollm2_with_noise(quant: str, bound: float) -> None:
    with ExitStack() as stack:
        bed = smollm2(stack, quant, "Q4_0", 32)
        noise = width_noise(bed.target, bed.plain(GREEDY), 16)
        assert 0 < noise < bound
        for params, k in ((GREEDY, 7), (HOT_UNCUT, 4)):
            assert_equal_up_to_ties(bed, params, "half", k, noise)


def test_gemma_q4_k_m_with_noise() -> None:
    with ExitStack() as stack:
        files = (real_models.need(real_models.gemma3_270m, quant) for quant in ("Q4_K_M", "Q4_0"))
        bed = Bed(stack, *files)
        bed.prompt = bed.model.tokenize("The history of the lighthouse", add_special=True, parse_special=False)
        bed.n = 32
        noise = width_noise(bed.target, bed.plain(GREEDY), 8)
        assert 0 < noise < 3
        for params, k in ((GREEDY, 7), (HOT_UNCUT, 3)):
            assert_equal_up_to_ties(bed, params, "half", k, noise)


# --- more threads than one ------------------------------------------------------------------------------


LONG = (planted.__doc__ or "")[:1300]


def written(prompt: str, *flags: object) -> tuple[int, list[int]]:
    """Tokens of the prompt, and the ids that the command writes after it with two threads.

    In a process of its own, whose threads do not spin: beside other work, that is ten times as fast.
    """
    files = [real_models.need(real_models.smollm2, quant) for quant in ("Q4_0", "Q2_K")]
    sampling = ("--temp", 1, "--top-k", 0, "--top-p", 1, "--min-p", 0, "--seed", 3)
    draft = () if "none" in flags else ("--draft", files[1], "--force")
    done = run_json(files[0], prompt, "--raw", "-n", 16, "--threads", 2, *sampling, *draft, *flags)
    return done.document["prompt_tokens"], done.document["token_ids"]


@pytest.mark.parametrize(("prompt", "cache_type"), [("The lighthouse", "f16"), (LONG, "bf16")])
def test_two_threads_where_width_changes_nothing(prompt: str, cache_type: str) -> None:
    """Up to 256 tokens of context, or with a cache that is neither f16 nor f32."""
    n_prompt, plain = written(prompt, "--kv", cache_type, "--draft", "none")
    assert (n_prompt > 256) == (prompt == LONG)
    assert written(prompt, "--kv", cache_type, "-k", 4) == (n_prompt, plain)


def test_two_threads_and_a_long_context_are_equal_up_to_ties() -> None:
    n_prompt, plain = written(LONG, "--draft", "none")
    _, drafted = written(LONG, "-k", 4)
    with ExitStack() as stack:
        bed = smollm2(stack, "Q4_0", "Q4_0", 1, threads=2)
        text = bed.model.tokenize(LONG, add_special=True, parse_special=True)
        assert len(text) == n_prompt
        noise = width_noise(bed.target, text, 6, (2, 3))
        assert 0 < noise < 3
        at = first_difference(plain, drafted)
        if at is not None:
            rule = SharedNoise(Law(HOT_UNCUT, n_shared=bed.model.n_vocab), seed=3)
            assert distance(bed.target, rule, text + plain[:at], drafted[at]) <= noise


# --- planted pairs --------------------------------------------------------------------------------------


def planted_bed(stack: ExitStack, folder: Path, arch: planted.Arch, amount: float, n: int) -> Bed:
    """Prefix-dependent models, quantised: a row of Q8_0 is the same in passes of any width."""
    chain = random_chain(256, 3)
    files = []
    for name, one in (("target", chain), ("draft", disturbed(chain, amount, 4))):
        written = write_planted(folder / f"{name}.gguf", one, arch=arch, mixing=0.7, seed=3)
        files.append(folder / f"{name}-q8.gguf")
        quantize(written, files[-1], "Q8_0", threads=1)
    bed = Bed(stack, *files, n_ctx=2304)
    bed.prompt, bed.n = [5, 6, 7, 8], n
    return bed


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("amount", [0.2, 0.7, 2.0])
def test_planted_pairs(tmp_path: Path, arch: planted.Arch, amount: float) -> None:
    """Every k on both architectures, with drafts that are often, seldom and hardly ever right."""
    with ExitStack() as stack:
        bed = planted_bed(stack, tmp_path, arch, amount, 128)
        for k in range([0.2, 0.7, 2.0].index(amount) + 1, MAX_K + 1, 3):
            bed.check((list(NAMES)[k % 5], "model", k))
        bed.check((HOT, "wrong", 3))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_pair_with_the_same_weights_accepts_everything(tmp_path: Path, arch: planted.Arch) -> None:
    with ExitStack() as stack:
        bed = planted_bed(stack, tmp_path, arch, 0.7, 2000)
        bed.check((HOT_UNCUT, "twin", 5))
        bed.n = 300
        bed.check((GREEDY, "twin", 16))


# --- chat -----------------------------------------------------------------------------------------------


def test_a_second_turn_evaluates_only_what_is_new_on_both_models(smollm2_q8_0: Path, smollm2_q4_0: Path) -> None:
    request = PairRequest(
        smollm2_q8_0, Drafting("model", 3, smollm2_q4_0), Sampling(seed=1), Placement(n_ctx=1024, threads=1)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        assert pair.draft is not None
        writer = Writer(
            pair,
            Limits(max_tokens=24),
            open_view=lambda _: SilentView(print),
            trace=Trace(None),
            settings={},
            clock=time.perf_counter,
        )
        talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
        assert talk is not None
        scored = [Scored(pair.target.session), Scored(pair.draft.session)]
        first = writer.reply_to(talk, QUESTION)
        assert first.answer.finish == "length", "no end token among the ids"
        known = first.prompt_tokens + len(first.reply.tokens)
        on_draft = scored[1].lists[-1]
        second = writer.reply_to(talk, "And who feeds the dog?")
        stats = second.answer.stats
        assert stats.target is not None

    prompt = scored[0].lists[first.answer.stats.passes]
    assert len(prompt) == second.prompt_tokens
    # The target: the last token of the answer was pending. Then its own token and the drafts of each pass.
    new = second.prompt_tokens - (known - 1)
    assert stats.target.read_tokens == new - 1
    assert stats.target.tokens == new + stats.drafted + stats.passes - 1
    # The draft: what it last saw of the first turn ends inside the answer, at most k + 1 tokens before its end.
    common = first_difference(on_draft, prompt) or 0
    assert known - 5 <= common < known
    first_draft = scored[1].lists[scored[1].n_before(prompt)]
    assert scored[1].costs[scored[1].n_before(prompt)] == len(first_draft) - common
    for one in scored:
        assert one.costs == one.expected_costs(), "no token was evaluated twice after the same prefix"


class Scored:
    """What a session was asked, and how many tokens it evaluated for it."""

    def __init__(self, session: LlamaSession) -> None:
        self.lists: list[list[int]] = []
        self.rows: list[int] = []
        self.costs: list[int] = []
        score = session.score

        def counted(tokens: Sequence[int], n_last: int) -> object:
            before = session.n_evaluated
            rows = score(tokens, n_last)
            self.lists.append(list(tokens))
            self.rows.append(n_last)
            self.costs.append(session.n_evaluated - before)
            return rows

        session.score = counted  # type: ignore[method-assign, assignment]

    def n_before(self, prompt: Sequence[int]) -> int:
        """Calls before the first that begins with `prompt`."""
        return next(i for i, one in enumerate(self.lists) if one[: len(prompt)] == prompt)

    def expected_costs(self) -> list[int]:
        """By the rule: all after the longest shared prefix with the list before, and the wanted rows."""
        costs, before = [], []
        for tokens, n_last in zip(self.lists, self.rows, strict=True):
            at = first_difference(before, tokens)
            shared = len(tokens) if at is None else at
            costs.append(len(tokens) - min(shared, len(tokens) - n_last))
            before = tokens
        return costs
