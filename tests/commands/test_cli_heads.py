"""Heads on the command line: run, chat, check, plan, bench, audit."""

import json
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.prompts import conversation
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits, Writer, Written
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.token_batch import TokenBatch
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.ui.silent import SilentView
from tests.cli import HEADS, N_VOCAB, VOCAB, Models, inside, json_inside, specdec
from tests.heads import by_token, write_dflash, write_eagle3, write_mtp
from tests.medusa import heads_of, write_safetensors
from tests.planted import BYTES, UNK, Chain, random_chain, write_planted, write_tiny_hybrid, write_tiny_mamba


class Heads(Models):
    """The planted targets, and heads for them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        chain = self._chain
        self.target = self._write("target", chain, n_layers=3)
        self.eagle3 = write_eagle3(folder / "eagle3.gguf", N_VOCAB, tensors=by_token(chain))
        self.no_tokenizer = write_eagle3(folder / "no-tokenizer.gguf", N_VOCAB, vocab=N_VOCAB)
        self.dspark = write_dflash(folder / "dspark.gguf", N_VOCAB, "dspark", chain=chain)
        self.mtp = write_mtp(folder / "mtp.gguf", chain, reads="token")
        self.chain: Chain = chain


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Heads:
    return Heads(tmp_path_factory.mktemp("cli-heads"))


FLAGS = ("--raw", "-n", 24, "--seed", 4, "-k", 3, "--ban", VOCAB.eos)


def test_a_run_with_a_head(models: Heads) -> None:
    plain = json_inside(models.target, "a b c", "--draft", "none", *FLAGS).document["token_ids"]
    done = specdec("run", models.target, "a b c", "--draft", models.eagle3, "--json", "--threads", 1, *FLAGS)

    assert done.document["token_ids"] == plain
    assert done.document["models"]["drafter"] == "eagle3"
    assert done.document["models"]["draft"]["weights_bytes"] > 0
    assert done.document["stats"]["accepted"] >= 15
    assert "head: eagle3.gguf is a trained head (eagle3), reads layers 0, 1, 2 of the target" in done.err
    assert "tokenizers match" in done.err


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_the_other_rules(models: Heads, verify: str) -> None:
    for head in (models.eagle3, models.no_tokenizer, models.dspark):
        document = json_inside(models.target, "a b", "--draft", head, "--verify", verify, *FLAGS).document
        assert len(document["token_ids"]) == 24
        assert document["stats"]["drafted"] > 10


SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 8, "maxLength": 12}, "colour": {"enum": ["red", "blue"]}},
    "required": ["word", "colour"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("kind", ["eagle3", "eagle3, random", "dspark", "mtp", "medusa"])
def test_json_by_a_schema_is_that_of_plain_decoding(
    models: Heads, tmp_path: Path, kind: str, temperature: float
) -> None:
    """Where the schema leaves a choice the head drafts, under the same mask as the target."""
    heads: dict[str, object] = {
        "eagle3": models.eagle3,
        "eagle3, random": models.no_tokenizer,
        "dspark": models.dspark,
        "mtp": "mtp",
        "medusa": write_safetensors(tmp_path / "heads.safetensors", heads_of(models.chain, 2)),
    }
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    target = models.mtp if kind == "mtp" else models.target
    asked = ("--json-schema", tmp_path / "schema.json", "--raw", "-n", 90, "--seed", 4, "--temp", temperature)
    plain = json_inside(target, "a b c", "--draft", "none", *asked).document
    assert set(json.loads(plain["text"])) == {"word", "colour"}
    for k in (1, 4):
        found = json_inside(target, "a b c", "--draft", heads[kind], "--no-ngram", "-k", k, *asked).document
        stats = found["stats"]
        forced = stats["sources"]["grammar"]
        assert found["token_ids"] == plain["token_ids"]
        assert forced["drafted"] > 20
        assert stats["drafted"] > forced["drafted"]
        if kind in ("eagle3", "mtp"):
            assert stats["accepted"] > forced["accepted"]


def test_strict(models: Heads) -> None:
    plain = json_inside(models.target, "a b c", "--draft", "none", *FLAGS).document["token_ids"]
    done = json_inside(models.target, "a b c", "--draft", models.eagle3, "--strict", *FLAGS)
    assert done.document["token_ids"] == plain


def test_mtp(models: Heads) -> None:
    plain = json_inside(models.mtp, "a b c", "--draft", "none", *FLAGS).document
    done = json_inside(models.mtp, "a b c", "--draft", "mtp", *FLAGS)

    assert done.document["token_ids"] == plain["token_ids"]
    assert done.document["models"]["drafter"] == "mtp"
    assert done.document["stats"]["accepted"] >= 15
    assert "head: mtp, the target's own MTP layers" in done.err

    done = json_inside(models.mtp, "a b c", "--draft", "mtp", *FLAGS, "-k", "auto")
    assert done.document["token_ids"] == plain["token_ids"]
    assert done.document["models"]["drafter"] == "ngram+mtp"


def test_a_head_beside_a_target_with_recurrent_layers(models: Heads, tmp_path: Path) -> None:
    hybrid = write_tiny_hybrid(tmp_path / "hybrid.gguf", seed=5, n_vocab=N_VOCAB)
    head = write_eagle3(tmp_path / "head.gguf", N_VOCAB, layers=(0, 1, 1))
    done = json_inside(hybrid, "a b c", "--draft", head, *FLAGS)
    assert done.document["token_ids"] == json_inside(hybrid, "a b c", "--draft", "none", *FLAGS).document["token_ids"]
    assert done.document["stats"]["drafted"] > 0
    mamba = write_tiny_mamba(tmp_path / "mamba.gguf", seed=5, n_vocab=N_VOCAB)
    done = inside("run", mamba, "a", "--draft", models.eagle3)
    assert (done.code, done.out) == (3, "")
    assert "does not expose for mamba" in done.err


def test_check_says_what_the_head_is(models: Heads) -> None:
    done = inside("check", models.target, models.eagle3)
    assert done.code == 0
    assert "tokenizers match: SPM, 320 tokens" in done.out
    assert "(eagle3)" in done.err
    assert json.loads(inside("check", models.target, models.eagle3, "--json").out)["verdict"] == "match"

    done = inside("check", models.target, models.no_tokenizer)
    assert (done.code, done.out) == (0, "")
    assert "no-tokenizer.gguf is a trained head (eagle3)" in done.err
    done = inside("check", models.target, models.no_tokenizer, "--json")
    assert json.loads(done.out) == {"verdict": "match", "n_shared": N_VOCAB}

    assert inside("check", models.mtp, "mtp").code == 0
    done = inside("check", models.eagle3, models.target)
    assert done.code == 3
    assert "cannot generate text on its own" in done.err


def test_check_refuses_what_run_refuses(models: Heads) -> None:
    done = inside("check", models.ring, models.eagle3)
    assert done.code == 3
    assert "reads layer 1 of its target, which has layers 0 to 0" in done.err
    assert inside("check", models.target, "mtp").code == 3


def test_plan_counts_the_head(models: Heads) -> None:
    for draft in (models.no_tokenizer, "mtp"):
        target = models.mtp if draft == "mtp" else models.target
        done = inside("plan", target, "--draft", draft, "--json")
        assert done.code == 0, done.err
        document = json.loads(done.out)
        assert document["draft"]["weights"] > 100_000
        assert document["draft"]["cache"] > 0
    assert inside("plan", models.eagle3).code == 3


def test_bench_and_audit_know_heads(models: Heads, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a b c", encoding="utf-8")
    prompts = ("--prompts", tmp_path / "prompts.txt", "--threads", 1, "--drafter", "model")
    for target, draft in ((models.target, models.eagle3), (models.mtp, "mtp")):
        done = inside("bench", target, "--draft", draft, *prompts, "-n", 16, "-k", 2, "--temp", 0, "--repeats", 1)
        assert done.code == 0, done.err
        assert "Every text matches plain decoding, token by token, in all " in done.out
    few = ("--tokens", 16, "--draws", 100, "--places", 1, "-k", "2", "--budget", 5)
    for target, draft in ((models.target, models.eagle3), (models.target, models.dspark), (models.mtp, "mtp")):
        done = inside("audit", target, "--draft", draft, *prompts, *few, "--json", "-")
        assert done.code == 0, done.err + done.out
        document = json.loads(done.out)
        assert len(document["distributions"]) == 8
        assert all(row["drafted"] for row in document["texts"])


@pytest.mark.parametrize("kind", ["model", "mtp", "medusa"])
def test_a_note_says_what_was_left_out_beside_lookup(
    models: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("specdec_cli.lengths.policy._HOPELESS", float("inf"))
    medusa = write_safetensors(tmp_path / "heads.safetensors", heads_of(models.chain, 2))
    target = models.mtp if kind == "mtp" else models.words
    draft = {"model": models.draft, "mtp": "mtp", "medusa": medusa}[kind]
    done = json_inside(target, "a b c a b c", "--draft", draft, "--raw", "-n", 12, "--temp", 0)
    assert f"The draft ({kind}) was not used (a draft token takes" in done.err


@pytest.mark.parametrize("command", ["bench", "audit"])
def test_a_head_goes_by_no_other_heads_name(models: Heads, command: str) -> None:
    for draft, wrong, own in ((models.eagle3, "mtp", "eagle3"), ("mtp", "dspark", "mtp")):
        target = models.mtp if draft == "mtp" else models.target
        for drafter in (wrong, f"ngram+{wrong}"):
            done = inside(command, target, "--draft", draft, "--drafter", drafter, "-k", 2, "--threads", 1)
            assert (done.code, done.out) == (2, "")
            assert f"The trained head is {own}, not {wrong}." in done.err


def test_lookahead_beside_heads(models: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a head reads of a pass does not hold the trees beside the text."""
    place, trees = TokenBatch.place_tree, list[Any]()
    monkeypatch.setattr(TokenBatch, "place_tree", lambda *args: trees.append(args) or place(*args))
    (tmp_path / "prompts.txt").write_text("a b c a b c", encoding="utf-8")
    few = ("--tokens", 48, "--draws", 100, "--places", 1, "-k", 3, "--temp", "0,1", "--budget", 5)
    for target, draft in ((models.target, models.eagle3), (models.mtp, "mtp")):
        options = ("--draft", draft, "--drafter", "model,lookahead,lookahead+model", "--rules", "coupled,rejection")
        done = inside(
            "audit", target, *options, "--prompts", tmp_path / "prompts.txt", "--threads", 1, *few, "--json", "-"
        )
        assert done.code == 0, done.err + done.out
        assert len(trees) > 10
        trees.clear()
        drafted = {
            (row["rule"], row["drafter"], row["temperature"]): row["drafted"] for row in json.loads(done.out)["texts"]
        }
        assert all(drafted.values())


def test_a_head_is_no_target(models: Heads) -> None:
    for draft in ("none", "ngram", models.target):
        done = inside("run", models.eagle3, "a", "--draft", draft)
        assert done.code == 3
        assert done.out == ""
        assert "eagle3.gguf is a trained head (eagle3)" in done.err
        assert "Give that model as MODEL and this file with --draft." in done.err


def test_a_chat_of_several_turns(models: Heads, tmp_path: Path) -> None:
    """Turns whose texts part from what head and target have read, and one that was stopped in the middle."""
    chain = random_chain(N_VOCAB, seed=0, never=(UNK, VOCAB.bos, *BYTES))
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:"
    vocab = replace(VOCAB, chat_template=template)
    target = write_planted(tmp_path / "chat.gguf", chain, vocab=vocab, n_head=HEADS, n_layers=3, mixing=1.0)

    def turns(drafter: str, head: Path | None) -> tuple[list[Written], int]:
        request = PairRequest(
            target,
            Drafting(drafter, 4, head),
            Sampling(seed=1, params=SamplingParams()),
            Placement(n_ctx=512, n_batch=32, threads=1),
        )
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            writer = Writer(
                pair,
                Limits(max_tokens=20, stop_strings=(" q",)),
                open_view=lambda _: SilentView(print),
                trace=Trace(None),
                settings={},
                clock=time.perf_counter,
            )
            talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
            assert talk is not None
            found = [writer.reply_to(talk, text) for text in ("a b c", "d e", "f", "g h i j")]
            return found, pair.target.session.n_evaluated

    plain, _ = turns("none", None)
    drafted, n_evaluated = turns("model", models.eagle3)
    assert [w.reply.tokens for w in drafted] == [w.reply.tokens for w in plain]
    assert all(w.answer.stats.off_reason is None for w in drafted)
    n_drafted = sum(w.answer.stats.drafted for w in drafted)
    passes = sum(w.answer.stats.passes for w in drafted)
    # Beside drafts and passes: the new part of each prompt, and one token of the turn before where the text parts.
    new = drafted[-1].prompt_tokens - sum(len(w.reply.tokens) for w in drafted[:-1])
    assert n_evaluated <= n_drafted + passes + new + 3 * len(drafted)
