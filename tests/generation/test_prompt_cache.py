"""A prompt that was evaluated before is not evaluated again, and the text is what it would be without."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_cli.generation.pair import OpenModel, open_pair, reopened
from specdec_cli.generation.prompt_cache import PromptCache, fetch, key_of
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.request import Drafting, PairRequest
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.cli import HEADS, N_VOCAB, Done, Models, json_inside
from tests.heads import write_dflash, write_eagle3, write_mtp
from tests.medusa import heads_of, write_safetensors
from tests.planted import BYTES, N_SPECIAL, disturbed, random_chain, write_planted, write_tiny_hybrid

PROMPT = "the house on the hill has a door and no window, so whoever lives there must like the dark. " * 3
CHAIN = random_chain(N_VOCAB, 3, never=(0, 1, 2, *BYTES))
KINDS: dict[str, tuple[dict[str, Any], tuple[object, ...]]] = {
    "plain": ({}, ()),
    "q8_0 cache": ({}, ("--kv", "q8_0", "--kv-draft", "q8_0", "--flash-attn", "on")),
    "no flash attention": ({}, ("--flash-attn", "off")),
    "sliding window": ({"arch": "gemma3", "window": 16}, ()),
}


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[object, ...]]:
    """Arguments for a target and a draft whose logits depend on all that came before."""
    folder = tmp_path_factory.mktemp("prompt-cache")

    def make(kind: str) -> tuple[object, ...]:
        options, arguments = KINDS[kind]
        target, draft = (
            write_planted(
                folder / f"{name} {kind}.gguf",
                chain,
                mixing=1.0,
                n_head=HEADS,
                seed=5,
                **{**options, **({"n_layers": 2} if name == "draft" else {})},
            )
            for name, chain in (("target", CHAIN), ("draft", disturbed(CHAIN, 0.1, 1)))
        )
        return target, "--draft", draft, "--force", "-n", 24, "-k", 4, "--seed", 1, "--raw", *arguments

    return make


def run(pair: tuple[object, ...], prompt: str, *more: object) -> Done:
    target, *options = pair
    done = json_inside(target, prompt, *options, *more)
    assert done.code == 0, done.err
    return done


def read(done: Done) -> tuple[int, int]:
    return done.stats["target_read_tokens"], done.stats["draft_read_tokens"]


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_with_a_cache_is_that_without(
    pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path, kind: str, temperature: float
) -> None:
    cache, pair = tmp_path / "p.cache", (*pair_of(kind), "--temp", temperature)
    without = run(pair, PROMPT)
    n = without.document["prompt_tokens"]

    first = run(pair, PROMPT, "--prompt-cache", cache)
    assert first.document["token_ids"] == without.document["token_ids"]
    assert f"Prompt cache: {n - 1} tokens" in first.err
    assert "written" in first.err
    assert "loaded" not in first.err

    before = [path.read_bytes() for path in (cache, tmp_path / "p.cache.draft")]
    second = run(pair, PROMPT, "--prompt-cache", cache)
    assert second.document["token_ids"] == without.document["token_ids"]
    assert read(second)[0] == 0
    assert read(second)[1] < read(without)[1] - (n - 2)
    assert "loaded" in second.err
    assert "written" not in second.err
    assert before == [path.read_bytes() for path in (cache, tmp_path / "p.cache.draft")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.cache", "p.cache.draft"]

    longer = PROMPT + "And then one day, someone knocked."
    without = run(pair, longer)
    third = run(pair, longer, "--prompt-cache", cache)
    assert third.document["token_ids"] == without.document["token_ids"]
    assert read(third)[0] == third.document["prompt_tokens"] - n, "the last token of the first prompt, and what "
    "follows"
    assert "written" in third.err, "it holds more than what was there"

    other = PROMPT[: len(PROMPT) // 2] + "Or so they said."
    without = run(pair, other)
    fourth = run(pair, other, "--prompt-cache", cache)
    assert fourth.document["token_ids"] == without.document["token_ids"]
    assert 0 < read(fourth)[0] < read(without)[0] / 2, "the half that is the same is not read again"
    assert "holds another prompt of at least this length and is left unchanged" in fourth.err


@pytest.fixture
def kept(pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path) -> tuple[tuple[object, ...], Path, Done]:
    """A pair, a cache of its prompt, and what it writes."""
    pair = pair_of("plain")
    return pair, tmp_path / "p.cache", run(pair, PROMPT, "--prompt-cache", tmp_path / "p.cache")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def of_another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"prompt cache 1", b"prompt cache 9", 1))


def without_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))


def nested(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"{", b"[" * 50_000, 1))


def with_negative_count(path: Path) -> None:
    magic, header, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(
        b"\n".join([magic, json.dumps({**json.loads(header), "tokens": -1, "bytes": 4 + len(rest)}).encode(), rest])
    )


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)
    path.chmod(0o644)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip, "p.cache is damaged"),
        (cut, "p.cache is truncated"),
        (without_header, "p.cache is damaged"),
        (nested, "p.cache is damaged"),
        (with_negative_count, "p.cache is truncated"),
        (of_another_user, "p.cache belongs to another user"),
        (of_another_version, "p.cache was written by another version of specdec"),
        (lambda path: path.write_bytes(b""), ""),
    ],
)
def test_a_spoilt_file_is_told_of_and_replaced(
    kept: tuple[tuple[object, ...], Path, Done], spoil: Callable[[Path], None], reason: str
) -> None:
    pair, cache, expected = kept
    good = cache.read_bytes()
    spoil(cache)
    spoilt = cache.read_bytes()
    left = run(pair, PROMPT, "--prompt-cache", cache, "--prompt-cache-ro")
    assert left.document["token_ids"] == expected.document["token_ids"]
    assert cache.read_bytes() == spoilt

    done = run(pair, PROMPT, "--prompt-cache", cache)
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert (f"{reason}: not used and will be replaced." in done.err) == bool(reason)
    assert read(done)[0] == read(expected)[0]
    assert cache.read_bytes() == good
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600


def test_a_cache_of_another_model_of_the_same_name_and_size_is_not_used(
    kept: tuple[tuple[object, ...], Path, Done], tmp_path: Path
) -> None:
    (target, *options), cache, _ = kept
    other = tmp_path / "other" / Path(str(target)).name
    write_planted(other, random_chain(N_VOCAB, 4, never=(0, 1, 2, *BYTES)), mixing=1.0, n_head=HEADS, seed=5)
    assert other.stat().st_size == Path(str(target)).stat().st_size
    expected = run((other, *options), PROMPT)
    done = run((other, *options), PROMPT, "--prompt-cache", cache)
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert "p.cache was made with a different weights: not used and will be replaced." in done.err
    assert read(done)[1] < read(expected)[1], "the draft is the same"


@pytest.mark.parametrize(
    ("more", "what"),
    [(("--kv", "f32"), "cache type"), (("--flash-attn", "off"), "flash attention")],
)
def test_a_cache_made_with_other_settings_is_not_used(
    kept: tuple[tuple[object, ...], Path, Done], more: tuple[object, ...], what: str
) -> None:
    pair, cache, _ = kept
    expected = run(pair, PROMPT, *more)
    done = run(pair, PROMPT, *more, "--prompt-cache", cache, "--prompt-cache-ro")
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert f"p.cache was made with a different {what}: not used." in done.err


def test_a_cache_that_does_not_fit_the_context_is_not_used(kept: tuple[tuple[object, ...], Path, Done]) -> None:
    pair, cache, _ = kept
    expected = run(pair, "the house", "--ctx", 64)
    done = run(pair, "the house", "--ctx", 64, "--prompt-cache", cache, "--prompt-cache-ro")
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert "which do not fit this context of 64: not used." in done.err


def refused(pair: tuple[object, ...], *more: object) -> str:
    target, *options = pair
    done = json_inside(target, PROMPT, *options, *more)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    return done.err


def test_places_where_no_cache_can_be_are_refused_before_anything_is_loaded(
    pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path
) -> None:
    pair, letter = pair_of("plain"), tmp_path / "letter.txt"
    letter.write_text("Dear all,")
    assert "is not a prompt cache" in refused(pair, "--prompt-cache", letter)
    assert letter.read_text() == "Dear all,"
    assert "is not a prompt cache" in refused(pair, "--prompt-cache", tmp_path)
    assert "Cannot write to" in refused(pair, "--prompt-cache", tmp_path / "nowhere" / "p.cache")
    assert "does not exist" in refused(pair, "--prompt-cache", tmp_path / "p.cache", "--prompt-cache-ro")
    assert "needs a cache file" in refused(pair, "--prompt-cache-ro")


def test_a_full_disk_costs_the_cache_and_not_the_text(
    pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    pair = pair_of("plain")
    expected = run(pair, PROMPT)
    monkeypatch.setattr("specdec_cli.paths.os.fsync", full)
    done = run(pair, PROMPT, "--prompt-cache", tmp_path / "p.cache")
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert "Cannot write p.cache: No space left on device. The prompt is not saved." in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_drafts_file_is_never_written_over_something_else(
    pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path
) -> None:
    letter = tmp_path / "p.cache.draft"
    letter.write_text("Dear all,")
    assert "p.cache.draft is not a prompt cache" in refused(pair_of("plain"), "--prompt-cache", tmp_path / "p.cache")
    assert letter.read_text() == "Dear all,"


def test_who_drafts_without_a_model_uses_one_cache(
    pair_of: Callable[[str], tuple[object, ...]], tmp_path: Path
) -> None:
    """Medusa heads have no memory, and branches leave nothing in the target's."""
    target, _, _, *options = pair_of("plain")
    heads = write_safetensors(tmp_path / "heads.safetensors", heads_of(CHAIN, 3))
    drafters = (heads, "lookahead", "ngram", "none")
    without = {draft: run((target, "--draft", draft, *options), PROMPT) for draft in drafters}
    for writer in drafters:
        cache = tmp_path / f"{Path(str(writer)).stem}.cache"
        for reader in (writer, *drafters):
            done = run((target, "--draft", reader, *options), PROMPT, "--prompt-cache", cache)
            assert done.document["token_ids"] == without["none"].document["token_ids"]
            assert done.stats["drafted"] == without[reader].stats["drafted"]
            assert ("written" in done.err) == (done.stats["target_read_tokens"] > 0)
        assert done.stats["target_read_tokens"] == 0


UNCUT = ("--top-k", 0, "--top-p", 1, "--min-p", 0)
HEAD_KINDS: dict[str, Callable[[Path], tuple[Path, Path | str]]] = {
    "eagle3": lambda d: (with_layers(d), write_eagle3(d / "eagle3.gguf", N_VOCAB)),
    "mtp": lambda d: (write_mtp(d / "mtp.gguf", CHAIN, mixing=1.0), "mtp"),
    "mtp beside": lambda d: (
        write_mtp(d / "trunk.gguf", CHAIN, mixing=1.0, part="trunk"),
        write_mtp(d / "mtp-head.gguf", CHAIN, mixing=1.0, part="head"),
    ),
    "dflash": lambda d: (with_layers(d), write_dflash(d / "dflash.gguf", N_VOCAB)),
    "dflash2": lambda d: (with_layers(d), write_dflash(d / "dflash2.gguf", N_VOCAB, "dflash2")),
    "dspark": lambda d: (with_layers(d), write_dflash(d / "dspark.gguf", N_VOCAB, "dspark")),
}


def with_layers(folder: Path, seed: int = 5) -> Path:
    return write_planted(folder / "three.gguf", CHAIN, mixing=1.0, n_head=HEADS, seed=seed, n_layers=3)


def with_head(target: Path, head: Path | str, *more: object) -> tuple[object, ...]:
    """At a temperature at which a head that knows nothing is right at times."""
    return target, "--draft", head, "-n", 48, "-k", 4, "--seed", 1, "--raw", "--temp", 4, *UNCUT, *more


def same(done: Done, expected: Done) -> bool:
    """Whether the text is the same, and as many tokens were drafted and accepted."""
    names = "drafted", "accepted"
    ids = [one.document["token_ids"] for one in (done, expected)]
    return ids[0] == ids[1] and [done.stats[name] for name in names] == [expected.stats[name] for name in names]


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_trained_head_keeps_what_it_has_read(tmp_path: Path, kind: str) -> None:
    pair, cache = with_head(*HEAD_KINDS[kind](tmp_path)), tmp_path / "p.cache"
    without = run(pair, PROMPT)
    n = without.document["prompt_tokens"]
    assert without.stats["accepted"] > 0 or kind == "dflash2", "of its four best none is right"

    first = run(pair, PROMPT, "--prompt-cache", cache)
    assert same(first, without)
    assert f"Prompt cache: {n - 1} tokens" in first.err
    before = [path.read_bytes() for path in (cache, tmp_path / "p.cache.draft")]

    second = run(pair, PROMPT, "--prompt-cache", cache)
    assert same(second, without)
    assert second.stats["target_read_tokens"] == 1, "the head needs a state of it"
    assert "loaded" in second.err
    assert "written" not in second.err
    assert "has not read" not in second.err
    assert before == [path.read_bytes() for path in (cache, tmp_path / "p.cache.draft")]

    other = PROMPT[: len(PROMPT) // 2] + "Or so they said."
    without = run(pair, other)
    third = run(pair, other, "--prompt-cache", cache)
    assert same(third, without)
    assert 0 < third.stats["target_read_tokens"] < without.stats["target_read_tokens"] / 2
    assert "p.cache.draft holds another prompt of at least this length and is left unchanged" in third.err

    longer = PROMPT + "And then one day, someone knocked."
    without = run(pair, longer)
    for n_read in (without.document["prompt_tokens"] - n + 1, 1):
        done = run(pair, longer, "--prompt-cache", cache)
        assert same(done, without)
        assert done.stats["target_read_tokens"] == n_read
    assert before[1] != (tmp_path / "p.cache.draft").read_bytes()


def test_a_head_without_its_file_starts_afresh(tmp_path: Path) -> None:
    target, head = HEAD_KINDS["eagle3"](tmp_path)
    pair, cache, beside = with_head(target, head), tmp_path / "p.cache", tmp_path / "p.cache.draft"
    expected = run(pair, PROMPT, "--prompt-cache", cache)
    good = beside.read_bytes()
    for spoil, reason in (
        (flip, "p.cache.draft is damaged: not used."),
        (lambda path: path.write_bytes(cache.read_bytes()), "p.cache.draft was made with a different model"),
        (lambda path: path.unlink(), ""),
    ):
        spoil(beside)
        spoilt = beside.read_bytes() if beside.exists() else None
        done = run(pair, PROMPT, "--prompt-cache", cache)
        assert done.document["token_ids"] == expected.document["token_ids"]
        assert done.stats["drafted"] > 0
        assert reason in done.err
        assert "The head has not read the cached prompt" in done.err
        assert done.stats["target_read_tokens"] == 1
        assert (beside.read_bytes() if beside.exists() else None) == spoilt, "of the beginning it knows nothing"
        beside.write_bytes(good)

    flip(cache)
    done = run(pair, PROMPT, "--prompt-cache", cache)
    assert same(done, expected)
    assert "The head has not read" not in done.err
    assert done.stats["target_read_tokens"] == expected.stats["target_read_tokens"]


def test_a_heads_file_belongs_to_the_head_and_the_target(tmp_path: Path) -> None:
    target, head = HEAD_KINDS["eagle3"](tmp_path)
    cache = tmp_path / "p.cache"
    run(with_head(target, head), PROMPT, "--prompt-cache", cache)

    other = write_eagle3(tmp_path / "other" / Path(head).name, N_VOCAB, seed=1)
    expected = run(with_head(target, other), PROMPT)
    done = run(with_head(target, other), PROMPT, "--prompt-cache", cache)
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert "p.cache.draft was made with a different weights: not used." in done.err
    assert done.stats["target_read_tokens"] == 1

    tuned = with_layers(tmp_path / "other", seed=6)
    expected = run(with_head(tuned, head), PROMPT)
    done = run(with_head(tuned, head), PROMPT, "--prompt-cache", cache)
    assert same(done, expected)
    for file in ("p.cache", "p.cache.draft"):
        assert f"{file} was made with a different weights: not used and will be replaced." in done.err
    assert same(run(with_head(tuned, head), PROMPT, "--prompt-cache", cache), expected)

    lookup = run((tuned, "--draft", "ngram", *with_head(tuned, head)[3:]), PROMPT, "--prompt-cache", cache)
    assert lookup.document["token_ids"] == expected.document["token_ids"]
    assert lookup.stats["target_read_tokens"] == 0


def test_a_head_beside_a_hybrid_target_keeps_its_own_state_alone(tmp_path: Path) -> None:
    hybrid = write_tiny_hybrid(tmp_path / "hybrid.gguf", seed=5, n_vocab=N_VOCAB)
    pair = with_head(hybrid, write_eagle3(tmp_path / "head.gguf", N_VOCAB, layers=(0, 1, 1)))
    without = run(pair, PROMPT)
    for _ in range(2):
        done = run(pair, PROMPT, "--prompt-cache", tmp_path / "p.cache")
        assert same(done, without)
        assert "--prompt-cache has no effect for hybrid.gguf" in done.err
    assert "loaded" in done.err
    assert [path.name for path in tmp_path.glob("p.cache*")] == ["p.cache.draft"]


def test_a_recurrent_model_has_no_use_for_it(tmp_path: Path) -> None:
    mamba = Models(tmp_path).mamba
    arguments = (mamba, "--draft", "none", "-n", 8, "-k", 4, "--seed", 1, "--raw")
    expected = json_inside(mamba, PROMPT, *arguments[1:])
    done = json_inside(mamba, PROMPT, *arguments[1:], "--prompt-cache", tmp_path / "p.cache")
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert "--prompt-cache has no effect for mamba.gguf" in done.err
    assert not (tmp_path / "p.cache").exists()


@pytest.mark.parametrize("kind", ["plain", "sliding window"])
def test_rows_after_a_restored_state_are_those_of_the_session_it_came_from(
    pair_of: Callable[[str], tuple[object, ...]], kind: str
) -> None:
    path = Path(str(pair_of(kind)[0]))
    tokens = np.random.default_rng(0).integers(N_SPECIAL, N_VOCAB, size=120).tolist()
    settings = ContextSettings(n_ctx=256, max_rows=4)
    with LlamaModel(ModelSettings(path)) as model, LlamaSession(model, settings) as one:
        one.score(tokens, 1)
        kept, state = one.snapshot(100)
        assert kept == tokens[:100]
        rows = one.score(tokens, 4).copy()
        with LlamaSession(model, settings) as other:
            other.score(tokens[50:90], 1)
            assert other.restore(kept, state)
            before = other.n_evaluated
            assert np.array_equal(other.score(tokens, 4), rows)
            assert other.n_evaluated - before == 20
            for end in (99, 90, 60, 20):  # a window of 16 needs what lies before it
                assert other.restore(kept, state)
                before = other.n_evaluated
                assert np.array_equal(other.score(tokens[:end], 4), one.score(tokens[:end], 4))
                assert (other.n_evaluated - before, other.n_resets) == (4, 0)
            assert not other.restore(kept, state[:-8]), "llama.cpp refuses what is too short"
            assert not other.restore(kept[:-1], state)
            assert np.abs(other.score(tokens, 4) - rows).max() < 0.05, "it starts over"


def test_real_models_write_the_same_with_a_cache(
    smollm2_q4_0: Path, smollm2_q8_0: Path, gemma_q4_0: Path, tmp_path: Path
) -> None:
    """A longer prompt is read in other batches than without a cache: without flash attention that moves no bit here."""
    text = "\n".join(f"Line {i} of a list says that {i} and {i + 1} make {2 * i + 1}." for i in range(20))
    pairs: dict[str, tuple[object, ...]] = {
        "two": (smollm2_q8_0, "--draft", smollm2_q4_0, "--force", "--flash-attn", "off"),
        "quantized": (smollm2_q4_0, "--draft", "none", "--kv", "q8_0", "--flash-attn", "on"),
        "windows": (gemma_q4_0, "--draft", "none"),
    }
    for name, arguments in pairs.items():
        pair, cache = (*arguments, "-n", 8, "-k", 4, "--seed", 1, "--raw"), tmp_path / f"{name}.cache"
        expected = run(pair, text[:250], "--prompt-cache", cache)
        done = run(pair, text[:250], "--prompt-cache", cache)
        assert done.document["token_ids"] == expected.document["token_ids"]
        assert done.stats["target_read_tokens"] == 0
    pair = (*pairs["two"], "-n", 8, "-k", 4, "--seed", 1, "--raw")
    expected = run(pair, text[:300])
    done = run(pair, text[:300], "--prompt-cache", tmp_path / "two.cache")
    assert done.document["token_ids"] == expected.document["token_ids"]
    assert done.stats["target_read_tokens"] < expected.stats["target_read_tokens"] / 3


def test_a_chat_that_opened_other_contexts_keeps_what_they_read(tmp_path: Path) -> None:
    """The session that the cache was loaded into is closed by then: llama.cpp would read freed memory."""
    model = write_planted(tmp_path / "model.gguf", CHAIN, mixing=1.0, n_head=HEADS, seed=5)
    text, file = [1, *range(270, 310)], tmp_path / "p.cache"
    with open_pair(PairRequest(model), say=lambda _: None, abort=AbortFlag()) as pair:
        cache = PromptCache(file, pair, writes=True, say=lambda _: None)
        with reopened(pair, pair.target.context, None, abort=AbortFlag()) as other:
            other.target.session.score(text, 1)
            pair.target.session.close()
            cache.save(len(text), other)
            tokens, _ = fetch(file, key_of(other.target), 4096)
    assert tokens == text


def test_another_draft_does_not_write_over_the_states_of_the_first(tmp_path: Path) -> None:
    target, first, second = (
        write_planted(tmp_path / f"{name}.gguf", CHAIN, mixing=1.0, n_head=HEADS, seed=seed)
        for name, seed in (("target", 5), ("first", 6), ("second", 7))
    )
    text, file = [1, *range(270, 310)], tmp_path / "p.cache"
    for draft, n in ((first, 20), (second, len(text))):
        request = PairRequest(target, Drafting("model", 4, draft, force=True))
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            assert isinstance(pair.draft, OpenModel)
            for session in (pair.target.session, pair.draft.session):
                session.score(text[:n], 1)
            if draft is first:
                cache = PromptCache(file, pair, writes=True, say=lambda _: None)
            cache.save(n, pair)
    stored = json.loads(file.with_name("p.cache.draft").read_bytes().split(b"\n")[1])
    assert stored["key"]["model"] == "first.gguf"
    assert stored["tokens"] == 20
    assert json.loads(file.read_bytes().split(b"\n")[1])["tokens"] == len(text)
