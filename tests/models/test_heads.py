"""What is believed of a head's header, and every pairing that llama.cpp would end the process over or get wrong."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_cli.errors import ModelError, VocabularyMismatch
from specdec_cli.generation.pair import open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.models.gguf import read_model
from specdec_cli.models.heads import HeadFacts, head_kind, own_head, read_head
from specdec_cli.models.memory import need
from specdec_cli.planning.plan import make_plan, size_up
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests.heads import write_dflash, write_eagle3, write_mtp
from tests.planted import Vocab, make_vocab, random_chain, write_planted, write_tiny_swa

N = 264
CHAIN = random_chain(N, seed=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planted(tmp_path_factory.mktemp("heads") / "target.gguf", CHAIN, n_layers=3)


def facts(head: Path, target: Path) -> HeadFacts | None:
    return read_head(read_model(head), read_model(target), head.name, head)


def opened(target: Path, head: Path | None, drafter: str = "model") -> str:
    """The name of the drafter that a run with this head has."""
    request = PairRequest(
        target, Drafting(drafter, 3, head, force=True), Sampling(seed=1), Placement(n_ctx=64, threads=1)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        return pair.decoding.drafter.name


def refusal(target: Path, head: Path | None, drafter: str = "model") -> str:
    with pytest.raises(ModelError) as error:
        opened(target, head, drafter)
    assert error.value.hint
    return str(error.value)


# --- what is a head ---------------------------------------------------------------------------------------


def test_heads_are_told_from_models(target: Path, tmp_path: Path) -> None:
    files = {
        "eagle3": write_eagle3(tmp_path / "eagle3.gguf", N),
        "dflash": write_dflash(tmp_path / "dflash.gguf", N),
        "dflash2": write_dflash(tmp_path / "dflash2.gguf", N, "dflash2"),
        "dspark": write_dflash(tmp_path / "dspark.gguf", N, "dspark"),
        "mtp": write_mtp(tmp_path / "mtp.gguf", CHAIN, part="head"),
        None: write_mtp(tmp_path / "both.gguf", CHAIN),
    }
    assert {head_kind(read_model(path)): path for path in files.values()} == files
    assert head_kind(read_model(target)) is None
    assert facts(target, target) is None


def test_the_facts_of_an_eagle3_head(target: Path, tmp_path: Path) -> None:
    head = write_eagle3(tmp_path / "head.gguf", N, layers=(0, 2, 1), vocab=N, drafted=np.arange(0, N, 2))
    assert facts(head, target) == HeadFacts("eagle3", (0, 2, 1), N, has_tokenizer=False)


@pytest.mark.parametrize(("anchored", "longest"), [(True, 6), (False, 5)])
def test_the_facts_of_a_dspark_head(target: Path, tmp_path: Path, anchored: bool, longest: int) -> None:
    anchor: dict[str, Any] = {} if anchored else {"dflash.sample_from_anchor": False}
    found = facts(write_dflash(tmp_path / "head.gguf", N, "dspark", mask=5, metadata=anchor), target)
    assert found == HeadFacts(
        "dspark", (0, 2), N, True, longest, mask=5, anchored=anchored, is_causal=False, has_confidence=True
    )


def test_the_facts_of_mtp_layers(tmp_path: Path) -> None:
    both = write_mtp(tmp_path / "both.gguf", CHAIN)
    assert own_head(read_model(both), both.name) == HeadFacts("mtp", (-1,), N, True, is_own=True)


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dflash2", "dspark"])
def test_a_head_is_opened_with_its_drafter(target: Path, tmp_path: Path, kind: str) -> None:
    write = write_eagle3 if kind == "eagle3" else lambda path, n: write_dflash(path, n, kind)  # type: ignore[arg-type]
    assert opened(target, write(tmp_path / "head.gguf", N)) == kind


def test_mtp_layers_are_opened_with_their_drafter(tmp_path: Path) -> None:
    both, trunk, head = (write_mtp(tmp_path / f"{part}.gguf", CHAIN, part=part) for part in ("both", "trunk", "head"))
    assert opened(both, None, "mtp") == "mtp"
    assert opened(trunk, head) == "mtp"
    assert opened(both, head) == "mtp"


def test_the_heads_memory_is_counted_and_its_batch_is_small(target: Path, tmp_path: Path) -> None:
    head = write_eagle3(tmp_path / "head.gguf", N)
    plan = make_plan(PairRequest(target, Drafting("model", 3, head), Sampling(seed=1)), lambda _: None)

    assert plan.draft_facts is not None
    assert plan.draft_facts.weights_bytes > 100_000
    assert plan.draft_facts.cache_elements == (2 * N,)
    assert plan.draft_context.n_batch == 64
    request = PairRequest(target, Drafting("model", 3, head), Sampling(seed=1))
    sized, with_head = size_up(request, plan.target_facts, plan.draft_facts, print, head=plan.head)
    without = need(plan.draft_facts, plan.draft_context)
    assert with_head is not None
    assert need(with_head.facts, with_head.context).ram - without.ram == 3 * sized.context.n_batch * 3 * N * 4
    assert plan.tokenizers == "tokenizers match: SPM, 264 tokens"


def test_a_head_has_its_targets_context(target: Path, tmp_path: Path) -> None:
    head = write_eagle3(tmp_path / "head.gguf", N, metadata={"eagle3.context_length": 32})
    for asked, n_ctx in ((None, 512), (0, 512), (100, 100)):
        request = PairRequest(
            target, Drafting("model", 3, head), Sampling(seed=1), Placement(n_ctx=512, n_ctx_draft=asked)
        )
        assert make_plan(request, lambda _: None).draft_context.n_ctx == n_ctx


def test_mtp_layers_are_counted_once(tmp_path: Path) -> None:
    both = write_mtp(tmp_path / "both.gguf", CHAIN)
    with_head = make_plan(PairRequest(both, Drafting("mtp", 3), Sampling(seed=1)), lambda _: None)
    without = make_plan(PairRequest(both, Drafting("none", 3), Sampling(seed=1)), lambda _: None)

    assert with_head.draft_facts is not None
    assert with_head.target_facts.n_layers == 2
    assert with_head.draft_facts.n_layers == 1
    assert (
        with_head.target_facts.weights_bytes + with_head.draft_facts.weights_bytes == without.target_facts.weights_bytes
    )
    assert (with_head.target.with_mtp, without.target.with_mtp) == (True, False)


# --- refusals ---------------------------------------------------------------------------------------------

Write = Callable[[Path], Path]


def eagle3(n: int = N, **options: Any) -> Write:
    return lambda path: write_eagle3(path, n, **options)


def dflash(kind: Any = "dflash", n: int = N, **options: Any) -> Write:
    return lambda path: write_dflash(path, n, kind, **options)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (eagle3(layers=(0, 1, 3)), "reads layer 3 of its target, which has layers 0 to 2"),
        (eagle3(layers=(0, 1, -2)), "reads layer -2"),
        (eagle3(layers=(0, 1, 70000)), "reads layer 70000"),
        (eagle3(layers=(0, 1)), "reads 2 layers"),
        (eagle3(metadata={"eagle3.target_layers": 3}), "does not say which target layers"),
        (eagle3(target_width=128, own_embeddings=True), "hidden size of 128; this one's is 264"),
        (eagle3(40, target_width=N, vocab=N), "has no token embeddings of its own and is 40 wide"),
        (eagle3(40, target_width=N, vocab=N, own_embeddings=True, own_output=False), "has no output matrix of its own"),
        (eagle3(vocab=N - 8), "has 256 tokens; the target has 264"),
        (eagle3(vocab=N - 8, own_embeddings=True), "has 256 tokens; the target has 264"),
        (eagle3(vocab=N, metadata={"eagle3.vocab_size": 0}), "has no vocabulary size"),
        (eagle3(own_output=False, drafted=np.arange(8)), "drafts 8 tokens, but its output matrix has 264 rows"),
        (eagle3(drafted=np.array([0, 5, N])), "drafts token 264, but there are 264"),
        (eagle3(drafted=np.array([0, -1, 5])), "drafts token -1"),
        (eagle3(drafted=np.arange(4), tensors={"d2t": np.arange(4, dtype=np.int32)}), "d2t) of the wrong type"),
        (eagle3(own_embeddings=True, tensors={"token_embd.weight": np.zeros((9, N), np.float32)}), "embeddings for 9"),
        (eagle3(metadata={"eagle3.block_count": 2}), "has 2 layers; an EAGLE-3 head has 1"),
        (eagle3(metadata={"eagle3.attention.value_length": 8}), "keys of size 66 and values of size 8"),
        (eagle3(metadata={"eagle3.attention.head_count_kv": 3}), "4 attention heads for 3 key-value heads"),
        (eagle3(metadata={"eagle3.attention.head_count": 0}), "0 attention heads"),
        (eagle3(metadata={"eagle3.rope.dimension_count": 7}), "rotates 7 dimensions of keys of size 66"),
        (eagle3(metadata={"eagle3.rope.dimension_count": 68}), "rotates 68 dimensions"),
        (eagle3(metadata={"eagle3.expert_used_count": 2}), "has experts"),
        (eagle3(metadata={"eagle3.nextn_predict_layers": 1}), "has MTP layers, which this kind"),
        (eagle3(metadata={"eagle3.embedding_length_out": 100}), "hidden states of a different width"),
        (eagle3(metadata={"eagle3.attention.layer_norm_rms_epsilon": -1.5}), "an invalid norm epsilon (-1.5)"),
        (eagle3(metadata={"eagle3.rope.scaling.type": "banana"}), "an unknown RoPE scaling ('banana')"),
        (eagle3(tensors={"output_norm.weight": np.ones(N, np.float16)}), "has the tensor output_norm.weight as F16"),
        (eagle3(tensors={"blk.0.attn_q.weight": np.ones((N, 2 * N), np.int32)}), "blk.0.attn_q.weight as I32"),
        (eagle3(metadata={"eagle3.norm_before_fc": True}), "Cannot load"),
        (eagle3(tensors={"fc.weight": np.zeros((N, N), np.float32)}), "Cannot load"),
        (dflash(layers=(0, 3)), "reads layer 3 of its target"),
        (dflash(n=320), "hidden size of 320; this one's is 264"),
        (dflash(mask=None), "has no mask token"),
        (dflash(mask=N), "has no mask token"),
        (dflash(block=1), "has no block size"),
        (dflash("dspark", metadata={"dflash.block_size": 0}), "has no block size"),
        (dflash(metadata={"dflash.hyper_connection_count": 4}), "DeepSeek V4"),
        (dflash(metadata={"dflash.attention.sliding_window": 8}), "sliding window but no layer"),
        (dflash("dflash2", metadata={"dflash.selector_top_k": 60}), "chooses among 60 tokens"),
        (dflash(drafted=np.array([3, 900])), "drafts token 900"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_words(target: Path, tmp_path: Path, write: Write, words: str) -> None:
    head = write(tmp_path / "head.gguf")
    told = refusal(target, head)
    assert words in told
    assert told.startswith(("head.gguf ", "Cannot load head.gguf: "))
    assert "\n" not in told


def test_a_head_of_another_tokenizer_is_refused_as_any_draft_is(target: Path, tmp_path: Path) -> None:
    other = make_vocab(N).renamed({260: "other", 261: "another"})
    head = write_eagle3(tmp_path / "head.gguf", N, vocab=other)
    with pytest.raises(VocabularyMismatch, match="differs from that of"):
        opened(target, head)


def test_an_architecture_that_does_not_tell_its_layers(tmp_path: Path) -> None:
    target = write_tiny_swa(tmp_path / "target.gguf", seed=1, n_vocab=N)
    told = refusal(target, write_eagle3(tmp_path / "head.gguf", N, layers=(0, 0, 1)))
    assert told == ("head.gguf reads hidden states of inner layers, which llama.cpp does not expose for gemma3.")


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp"])
def test_a_head_as_target(target: Path, tmp_path: Path, kind: str) -> None:
    head = tmp_path / "head.gguf"
    if kind == "mtp":
        write_mtp(head, CHAIN, part="head")
    else:
        {"eagle3": write_eagle3, "dflash": write_dflash}[kind](head, N)
    for draft, drafter in ((None, "none"), (None, "ngram"), (target, "model"), (head, "model")):
        assert f"head.gguf is a trained head ({kind})" in refusal(head, draft, drafter)


def test_a_head_inside_its_targets_cache(target: Path, tmp_path: Path) -> None:
    head = write_eagle3(tmp_path / "head.gguf", N)
    data = head.read_bytes().replace(struct.pack("<Q", 6) + b"eagle3", struct.pack("<Q", 16) + b"gemma4-assistant", 1)
    head.write_bytes(data + bytes(64))
    assert "gemma4-assistant" in refusal(target, head)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part": "trunk"}, "declares MTP layers but lacks blk.2.nextn.eh_proj.weight"),
        ({"without": "blk.2.nextn.hnorm.weight"}, "lacks blk.2.nextn.hnorm.weight"),
        ({"without": "blk.2.ffn_gate_inp.weight"}, "lacks blk.2.ffn_gate_inp.weight"),
        ({"n_nextn": 2}, "has 2 MTP layers; llama.cpp supports one for glm4moe"),
        ({"without": "blk.2.attn_q.weight"}, "Cannot load"),
        ({"metadata": {"glm4moe.nextn_predict_layers": 0}}, "has no multi-token prediction layers"),
    ],
)
def test_mtp_layers_that_are_not_there(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    assert words in refusal(write_mtp(tmp_path / "target.gguf", CHAIN, **options), None, "mtp")


def test_mtp_without_such_layers(target: Path) -> None:
    assert refusal(target, None, "mtp") == "target.gguf has no multi-token prediction layers (MTP, NextN)."


def test_mtp_layers_beside_another_target(target: Path, tmp_path: Path) -> None:
    head = write_mtp(tmp_path / "head.gguf", CHAIN, part="head")
    assert refusal(target, head) == "head.gguf is a head for glm4moe; the target is llama."
    wide = write_mtp(tmp_path / "wide.gguf", random_chain(320, seed=2), part="trunk")
    assert "hidden size of 264; this one's is 320" in refusal(wide, head)


def test_mtp_layers_that_are_described_otherwise_than_their_target(tmp_path: Path) -> None:
    trunk = write_mtp(tmp_path / "trunk.gguf", CHAIN, part="trunk")
    head = write_mtp(tmp_path / "head.gguf", CHAIN, part="head", metadata={"glm4moe.expert_used_count": 2})
    assert (
        refusal(trunk, head)
        == "head.gguf was made for another target: glm4moe.expert_used_count is 2 here and 1 there."
    )
    head = write_mtp(tmp_path / "head.gguf", CHAIN, part="head", metadata={"glm4moe.rope.dimension_count": 0})
    assert refusal(trunk, head).endswith("glm4moe.rope.dimension_count is 0 here and not given there.")
    head = write_mtp(tmp_path / "head.gguf", CHAIN, part="head", half=True)
    assert refusal(trunk, head) == "head.gguf has the tensor output_norm.weight as F16."
    both = write_mtp(tmp_path / "both.gguf", CHAIN, half=True)
    assert refusal(both, None, "mtp") == "both.gguf has the tensor blk.2.attn_norm.weight as F16."


@pytest.mark.parametrize("share", [0.05, 0.5, 0.97])
@pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp"])
def test_a_head_that_was_cut_short(target: Path, tmp_path: Path, share: float, kind: str) -> None:
    head = tmp_path / "head.gguf"
    if kind == "mtp":
        target = write_mtp(tmp_path / "trunk.gguf", CHAIN, part="trunk")
        write_mtp(head, CHAIN, part="head")
    else:
        {"eagle3": write_eagle3, "dflash": write_dflash}[kind](head, N)
    data = head.read_bytes()
    head.write_bytes(data[: int(share * len(data))])
    assert "ends" in refusal(target, head)


def test_a_tokenizer_without_end(target: Path, tmp_path: Path) -> None:
    """A vocabulary of another size is padding where the head has its own ends, and a refusal where it borrows them."""
    longer: Vocab = make_vocab(N).padded(8)
    own = {"vocab": longer, "own_embeddings": True}
    assert opened(target, write_eagle3(tmp_path / "own.gguf", N, **own)) == "eagle3"  # type: ignore[arg-type]
    assert "has 272 tokens" in refusal(target, write_eagle3(tmp_path / "head.gguf", N, vocab=longer))
