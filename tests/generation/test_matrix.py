"""Drafters x samplers x k, raw and in a chat: the text is that of plain decoding, token for token.

The models are planted, quantised to Q8_0 (a row is the same in passes of any width) and look at the whole
prefix, so that a sampler that saw a rejected token, or a row of the wrong prefix, writes something else.
What the rejection rules promise, the distribution, is in `test_distribution` and `test_rejection`.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.penalties import breakers_from
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Draft, Drafter, Grammar
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.mixed import MixedDrafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.chat import Conversation
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.prompts import conversation
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.grammar import LlamaGrammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.quantize import quantize
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import ContextSettings, ModelSettings
from specdec_cli.structured.source import GrammarSource
from specdec_cli.ui.silent import SilentView
from tests.cli import text_of
from tests.planted import EOS, disturbed, make_vocab, random_chain, write_planted

N_VOCAB = 320
N = 48
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
GREEDY = SamplingParams(temperature=0)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "colour": {"enum": ["red", "blue"]}},
        "required": ["name", "colour"],
        "additionalProperties": {"type": "integer"},
    }
)
GRAMMAR = 'root ::= (" " [a-z] | " a" [a-z])*'

SAMPLERS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "uncut": UNCUT,
    "defaults": SamplingParams(),
    "typical": replace(UNCUT, typical=0.7),
    "top-n-sigma": replace(UNCUT, top_n_sigma=0.05, temperature=1.5),
    "penalties": replace(SamplingParams(), repeat_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3),
    "greedy penalties": replace(GREEDY, repeat_penalty=1.5, frequency_penalty=1.0, repeat_last_n=20),
    "DRY": replace(UNCUT, temperature=0.4, dry_multiplier=1.5, dry_allowed_length=1),
    "greedy DRY": replace(GREEDY, dry_multiplier=2.0, dry_allowed_length=0),
    "all": replace(
        SamplingParams(temperature=1.2, top_k=30, top_p=0.98, min_p=0.01, typical=0.95, top_n_sigma=0.08),
        repeat_penalty=1.2,
        presence_penalty=0.2,
        dry_multiplier=1.0,
    ),
    "greedy grammar": GREEDY,
    "grammar": SamplingParams(),
    "uncut grammar": UNCUT,
    "greedy schema": GREEDY,
    "schema": SamplingParams(),
    "uncut schema": UNCUT,
}


class HalfRight:
    """Proposes the plain text, wrong at every third place or so: there is a rejection in most rounds."""

    name = "half right"

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        places = range(len(tokens), min(len(tokens) + k, len(self.text)))
        return Draft(tuple(self.text[i] + (i * 7 % 11 < 3) for i in places))


class Bed:
    """The pair, opened once, and its plain texts."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack = stack
        chain = random_chain(N_VOCAB, 3, never=(0, 1, EOS, *range(3, 259)))
        models = []
        for name, one in (("target", chain), ("draft", disturbed(chain, 0.5, 4))):
            written = write_planted(folder / f"{name}.gguf", one, mixing=0.5, seed=3, n_head=5)
            quantize(written, folder / f"{name}-q8.gguf", "Q8_0", threads=1)
            models.append(stack.enter_context(LlamaModel(ModelSettings(folder / f"{name}-q8.gguf"))))
        self.model = models[0]
        settings = ContextSettings(n_ctx=512, threads=1, max_rows=10)
        self.target, self.draft = (stack.enter_context(LlamaSession(model, settings)) for model in models)
        self.prompt = [270, 271, 272, 270, 271, 272, 280]
        self.rules: dict[tuple[str, int], SharedNoise] = {}
        self.plain: dict[str, list[int]] = {}

    def grammar(self, name: str) -> Grammar | None:
        if "schema" in name:
            return open_grammar(GrammarSource("json-schema", SCHEMA), self.model, print, self.stack)
        return self.stack.enter_context(LlamaGrammar(self.model, GRAMMAR)) if "grammar" in name else None

    def rule(self, name: str, *, most_forced: int = 9) -> SharedNoise:
        """Nothing is forced in the plain texts, so that drafts by the grammar are compared as well."""
        if (name, most_forced) not in self.rules:
            pieces = [self.model.marked_bytes(token) for token in range(N_VOCAB)]
            grammar = self.grammar(name)
            law = Law(
                SAMPLERS[name],
                n_shared=N_VOCAB,
                banned=() if grammar else (EOS,),
                bias={265: 1.5, 266: -2.0},
                breakers=breakers_from([" c"], pieces, lambda _: []),
                grammar=grammar,
                most_forced=most_forced,
            )
            self.rules[name, most_forced] = SharedNoise(law, seed=11)
        return self.rules[name, most_forced]

    def write(self, name: str, drafter: Drafter, k: int, *, most_forced: int = 9) -> tuple[list[int], int, int]:
        """Text with its prompt, tokens drafted and accepted."""
        rounds = list(
            generate(
                self.target,
                drafter,
                FixedLength(k, give_up_after=10**9),
                self.rule(name, most_forced=most_forced),
                self.prompt,
                max_tokens=N,
                ends=lambda token: token == EOS,
                clock=time.perf_counter,
            )
        )
        text = [*self.prompt, *(t for r in rounds for t in r.tokens)]
        return text, sum(len(r.drafted) for r in rounds), sum(r.n_accepted for r in rounds)

    def plain_text(self, name: str) -> list[int]:
        if name not in self.plain:
            self.plain[name] = self.write(name, NoDrafter(), 0, most_forced=0)[0]
        return self.plain[name]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with ExitStack() as stack:
        yield Bed(stack, tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("k", [1, 4, 9])
@pytest.mark.parametrize("drafter", ["model", "ngram", "ngram+model", "lookahead", "half right"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_text_is_that_of_plain_decoding(bed: Bed, name: str, drafter: str, k: int) -> None:
    plain = bed.plain_text(name)
    drafters: dict[str, Drafter] = {
        "model": ModelDrafter(bed.draft, bed.rule(name), frozenset({EOS})),
        "ngram": NgramDrafter(least_chance=0),
        "ngram+model": MixedDrafter(NgramDrafter(), ModelDrafter(bed.draft, bed.rule(name), frozenset({EOS})), None),
        "lookahead": LookaheadDrafter(N_VOCAB),
        "half right": HalfRight(plain),
    }
    text, drafted, accepted = bed.write(name, drafters[drafter], k)

    assert text == plain
    if drafter in ("model", "half right") and "schema" not in name:
        assert drafted > accepted > 0


@pytest.mark.parametrize("name", ["greedy schema", "schema", "uncut schema"])
def test_what_a_schema_forces_is_drafted_without_a_drafter(bed: Bed, name: str) -> None:
    text, drafted, accepted = bed.write(name, NoDrafter(), 0)
    assert text == bed.plain_text(name)
    assert drafted == accepted > 20


def test_the_samplers_write_different_texts(bed: Bed) -> None:
    """Else a cell of the matrix might show nothing."""
    texts = {name: tuple(bed.plain_text(name)) for name in SAMPLERS}
    assert len(set(texts.values())) == len(texts)
    assert min(map(len, texts.values())) > len(bed.prompt) + 3


# --- chat -------------------------------------------------------------------------------------------------

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TURNS = (" a b c a b c", " d e", " a b c d")


def chat(folder: Path, k: int, sampling: Sampling) -> list[list[int]]:
    """The ids of every answer of one conversation, whose turns share both caches."""
    vocab = replace(make_vocab(N_VOCAB), chat_template=TEMPLATE)
    files = []
    chain = random_chain(N_VOCAB, 3, never=(0, 1, *range(3, 259)), p_eos=0.02)
    for name, one, n_ff in (("target", chain, 640), ("draft", disturbed(chain, 0.5, 4), 320)):
        files.append(folder / f"{name}.gguf")
        if not files[-1].exists():
            whole = write_planted(
                folder / f"{name}-f32.gguf", one, mixing=0.5, seed=3, n_head=5, n_ff=n_ff, vocab=vocab
            )
            quantize(whole, files[-1], "Q8_0", threads=1)
    drafter = "model" if k else "none"
    asked = PairRequest(
        files[0], Drafting(drafter, k, files[1] if k else None), sampling, Placement(n_ctx=512, threads=1)
    )
    with open_pair(asked, say=lambda _: None, abort=AbortFlag()) as pair:
        writer = Writer(
            pair,
            Limits(max_tokens=20),
            open_view=lambda _: SilentView(print),
            trace=Trace(None),
            settings={},
            clock=time.perf_counter,
        )
        talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
        assert isinstance(talk, Conversation)
        return [writer.reply_to(talk, turn).reply.tokens for turn in TURNS]


CHATS = {
    "penalties": Sampling(SAMPLERS["penalties"], seed=6),
    "all": Sampling(SAMPLERS["all"], seed=6),
    "greedy DRY": Sampling(SAMPLERS["greedy DRY"], seed=6, ignore_end=True),
    "grammar": Sampling(SAMPLERS["grammar"], seed=6, grammar=GrammarSource("gbnf", GRAMMAR)),
    "schema": Sampling(SAMPLERS["schema"], seed=6, grammar=GrammarSource("json-schema", SCHEMA)),
}


@pytest.mark.parametrize("name", CHATS)
def test_every_turn_of_a_chat_is_that_of_plain_decoding(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "matrix-chat"
    folder.mkdir(exist_ok=True)
    plain = chat(folder, 0, CHATS[name])
    assert all(map(len, plain))
    assert len(set(map(tuple, plain))) == len(TURNS)
    for k in (2, 7):
        assert chat(folder, k, CHATS[name]) == plain


def test_a_grammar_begins_anew_with_every_turn(tmp_path: Path) -> None:
    answers = chat(tmp_path, 3, Sampling(GREEDY, seed=6, grammar=GrammarSource("gbnf", 'root ::= " b" " c" " d"')))
    assert [text_of(answer) for answer in answers] == [" b c d</s>"] * len(TURNS)
