"""A file that kills llama.cpp is an error in words: it is opened in a process of its own first, once."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gguf
import llama_cpp
import pytest

from specdec_cli.errors import ModelError
from specdec_cli.generation.pair import open_pair, reopened
from specdec_cli.llama import amx, trial
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.native_process import Apart
from specdec_cli.llama.trial import Trial, try_out
from specdec_cli.planning.request import PairRequest, Placement
from specdec_cli.settings import ModelSettings
from tests.cli import CALM, HEADS, N_VOCAB, Models, inside, specdec
from tests.heads import write_dflash, write_eagle3, write_mtp
from tests.hybrids import write_hybrid
from tests.mutated import Number, with_format, with_numbers
from tests.planted import make_vocab, random_chain, write_planted

TRIED = {**CALM, "SPECDEC_TRUST": "0"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def sources(models: Models) -> dict[str, Path]:
    hybrids = ("granitehybrid", "qwen35", "nemotron_h")
    return {"llama": models.ring, **{name: write_hybrid(models.folder / f"{name}.gguf", name) for name in hybrids}}


@pytest.fixture(autouse=True)
def no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_TRUST")


class Children:
    """Counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[list[str]] = []
        monkeypatch.setattr(Apart, "call", self._call)

    def _call(self, _function: object, new: list[Trial], *_: object) -> list[Trial]:
        self.tried.append([trial.path.name for trial in new])
        return new


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(monkeypatch)


# --- what kills llama.cpp --------------------------------------------------------------------------------

KILLERS: list[tuple[str, str, Number, str]] = [
    *(("granitehybrid", "rope.dimension_count", n, r"n_dims") for n in (1, 7, 255)),
    *(("qwen35", "rope.dimension_count", n, r"n_dims") for n in (1, 7, 255)),
    ("llama", "expert_count", 65536, "LLAMA_MAX_EXPERTS"),
    ("llama", "expert_used_count", 1, "n_expert"),
    ("qwen35", "expert_used_count", 3, "n_expert"),
    ("granitehybrid", "embedding_length", 255, "n_embd"),
    ("llama", "nextn_predict_layers", 3, "n_layer_nextn"),
    ("nemotron_h", "attention.layer_norm_rms_epsilon", float("-inf"), "eps >= 0"),
    ("llama", "attention.head_count", 320, "n_dims"),
]


@pytest.mark.parametrize(("architecture", "key", "value", "reason"), KILLERS)
def test_a_number_that_kills_llama_cpp_is_told_in_a_sentence(
    sources: dict[str, Path], tmp_path: Path, architecture: str, key: str, value: Number, reason: str
) -> None:
    path = with_numbers(sources[architecture], tmp_path / "made.gguf", {f"{architecture}.{key}": value})
    words = (
        rf"^llama\.cpp crashed while \w[\w ]+ made\.gguf \(SIGABRT\): \S+:\d+: GGML_ASSERT\(.*{reason}.*\) failed\.$"
    )
    with pytest.raises(ModelError, match=words) as caught:
        try_out([Trial(path)], threads=1)
    assert (caught.value.exit_code, bool(caught.value.hint)) == (3, True)


def test_a_format_that_kernels_do_not_know_is_told_in_a_sentence(models: Models, tmp_path: Path) -> None:
    path = with_format(models.ring, tmp_path / "made.gguf", "blk.0.ffn_up.weight", 26)
    with pytest.raises(ModelError, match=r"crashed while evaluating 1 token with made\.gguf \(SIG"):
        try_out([Trial(path)], threads=1)


def test_a_draft_that_kills_llama_cpp_is_named(models: Models, tmp_path: Path) -> None:
    path = with_numbers(models.ring_draft, tmp_path / "made.gguf", {"llama.expert_used_count": 1})
    with pytest.raises(ModelError, match=r"loading made\.gguf \(SIGABRT\)"):
        try_out([Trial(models.ring), Trial(path, models.ring)], threads=1)


@pytest.mark.parametrize("command", ["run", "bench", "audit"])
def test_every_command_ends_with_words(models: Models, tmp_path: Path, command: str) -> None:
    path = with_numbers(models.ring, tmp_path / "made.gguf", {"llama.nextn_predict_layers": 3})
    more = ("hi", "-n", 4) if command == "run" else ()
    done = specdec(command, path, *more, env=TRIED)
    assert (done.code, done.out) == (3, "")
    assert [line.partition(":")[0] for line in done.err.splitlines()[-2:]] == ["Error", "Hint"]
    assert "GGML_ASSERT" in done.err.splitlines()[-2]


def test_trim_tries_the_draft_that_it_is_given(models: Models, tmp_path: Path) -> None:
    path = with_numbers(models.ring_draft, tmp_path / "made.gguf", {"llama.expert_used_count": 1})
    given = ("draft", "trim", path, "--target", models.ring, "--out", tmp_path / "out.gguf", "-n", 8)
    done = specdec(*given, env={**TRIED, "SPECDEC_CACHE": str(tmp_path / "cache")})
    assert (done.code, done.out) == (3, ""), done.err
    assert "loading made.gguf (SIGABRT)" in done.err


# --- what goes well, or is refused in words --------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "granitehybrid", "qwen35", "nemotron_h"])
def test_what_went_well_is_remembered(
    sources: dict[str, Path], models: Models, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trials = [Trial(sources[name], branches=4), Trial(sources[name], models.ring, "f32", "off")]
    try_out(trials, threads=1)
    children = Children(monkeypatch)
    try_out(trials, threads=1)
    assert children.tried == []


def test_a_head_is_tried_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = random_chain(N_VOCAB, 0)
    target = write_planted(tmp_path / "target.gguf", chain, n_layers=3, n_head=HEADS)
    heads = [
        write_eagle3(tmp_path / "eagle3.gguf", N_VOCAB),
        write_dflash(tmp_path / "dspark.gguf", N_VOCAB, "dspark", chain=chain),
    ]
    mtp = write_mtp(tmp_path / "mtp.gguf", chain, reads="token")
    trials = [*(Trial(head, target) for head in heads), Trial(mtp), Trial(mtp, mtp, is_own=True)]
    try_out(trials, threads=1)
    children = Children(monkeypatch)
    try_out(trials, threads=1)
    assert children.tried == [], "they drafted, and did not only load"


def test_other_files_settings_and_programs_are_tried_anew(
    models: Models, tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(models.ring.read_bytes())
    usual = Trial(path)

    def n_children(*trials: Trial) -> int:
        before = len(children.tried)
        try_out(trials, threads=1)
        return len(children.tried) - before

    assert [n_children(usual), n_children(usual)] == [1, 0]
    assert n_children(usual, Trial(path, cache_type="q8_0")) == 1
    assert children.tried[-1] == ["model.gguf"], "only the new one"
    assert n_children(Trial(path, flash_attention="on")) == 1
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert [n_children(usual), n_children(usual)] == [1, 0]
    path.replace(tmp_path / "old.gguf")
    path.write_bytes(models.ring.read_bytes())
    assert n_children(usual) == 1
    monkeypatch.setattr(trial, "__version__", "another")
    assert n_children(usual) == 1


def test_a_split_model_is_all_of_its_files(tmp_path: Path, children: Children) -> None:
    parts = [tmp_path / f"model-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    for n in (1, 1):
        try_out([Trial(parts[0])], threads=1)
        assert len(children.tried) == n
    parts[1].write_bytes(b"GGUF, another")
    try_out([Trial(parts[0])], threads=1)
    assert len(children.tried) == 2


def test_a_refusal_in_words_is_the_one_that_opening_gives(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (models.ring, "hi", "-n", 2, "--kv", "q4_0", "--flash-attn", "off")
    tried = inside("run", *asked)
    monkeypatch.setenv("SPECDEC_TRUST", "1")
    trusted = inside("run", *asked)
    assert (tried.code, tried.err) == (trusted.code, trusted.err)
    assert tried.code == 2


def test_a_file_that_is_not_there_is_left_to_whoever_opens_it(
    models: Models, tmp_path: Path, children: Children
) -> None:
    missing = Trial(tmp_path / "none.gguf")
    try_out([missing], threads=1)
    assert children.tried == []
    try_out([Trial(models.ring), missing], threads=1)
    assert children.tried == [["ring.gguf"]]


def test_a_trusted_file_is_not_tried(models: Models, children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("run", models.ring, "hi", "-n", 2, "--draft", "none")
    assert inside(*asked, "--trust").code == 0
    assert children.tried == []
    assert inside(*asked).code == 0
    assert children.tried == [["ring.gguf"]]
    monkeypatch.setenv("SPECDEC_TRUST", "1")
    assert inside(*asked, "--kv", "f32").code == 0
    assert len(children.tried) == 1


@pytest.mark.parametrize("trust", [True, False])
def test_more_contexts_of_a_trusted_pair_are_not_tried_either(models: Models, children: Children, trust: bool) -> None:
    request = PairRequest(models.ring, placement=Placement(threads=1, trust=trust))
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        children.tried.clear()
        with reopened(pair, replace(pair.target.context, cache_type="bf16"), None, abort=AbortFlag()):
            assert children.tried == ([] if trust else [["ring.gguf"]])


def test_a_cache_folder_that_takes_nothing_is_no_failure(
    models: Models, children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    for n in (1, 2):
        try_out([Trial(models.ring)], threads=1)
        assert len(children.tried) == n


def test_the_oldest_trials_are_forgotten(
    models: Models, children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(trial, "_MAX_REMEMBERED", 2)
    for branches in range(4):
        try_out([Trial(models.ring, branches=branches)], threads=1)
    assert len(list((tmp_path / "opened").iterdir())) == 2
    try_out([Trial(models.ring, branches=3)], threads=1)
    assert len(children.tried) == 4


def test_a_model_larger_than_memory_is_not_computed_with(models: Models, tmp_path: Path) -> None:
    """Its kernels would fail, which is what shows that they did not run."""
    path = with_format(models.ring, tmp_path / "made.gguf", "blk.0.ffn_up.weight", 26)
    try_out([Trial(path)], threads=1, free_bytes=path.stat().st_size - 1)
    with pytest.raises(ModelError, match="crashed while evaluating"):
        try_out([Trial(path, cache_type="f32")], threads=1, free_bytes=path.stat().st_size)


def test_a_head_is_as_large_as_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it opens beside itself counts: for the time it may take, and for whether it fits."""
    chain = random_chain(N_VOCAB, 0)
    target = write_planted(tmp_path / "target.gguf", chain, n_layers=3, n_head=HEADS)
    head = Trial(write_eagle3(tmp_path / "eagle3.gguf", N_VOCAB), target)
    drafted: list[list[int]] = []
    some_tokens = trial._some_tokens

    def told(model: LlamaModel) -> list[int]:
        drafted.append(some_tokens(model))
        return drafted[-1]

    monkeypatch.setattr(trial, "_some_tokens", told)
    for free_bytes in (head.size - 1, head.size):
        assert trial._open_each([head], free_bytes, 1) == [head]
    assert (len(drafted), head.size) == (1, head.path.stat().st_size + target.stat().st_size)
    patience: list[float | None] = []

    def call(apart: Apart, *_: object) -> list[Trial]:
        patience.append(apart._patience)
        return []

    monkeypatch.setattr(Apart, "call", call)
    monkeypatch.setattr(trial, "_BYTES_PER_SECOND", 1.0)
    try_out([head], threads=1)
    assert patience[0] is not None
    assert patience[0] > head.size


# --- what does not come to an end ------------------------------------------------------------------------


def hang(*_: object) -> list[Trial]:
    while True:
        time.sleep(1)


def test_a_file_that_hangs_is_told_in_a_sentence(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_open_each", hang)
    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(ModelError, match=r"did not finish opening a model within \d+ seconds of CPU time"):
        try_out([Trial(models.ring)], threads=1)


def wait_for_child(pid: int) -> None:
    """Until the process has one, which has begun to read its call."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not children.read_text(encoding="ascii").split():
        time.sleep(0.05)
    time.sleep(0.5)


HANGING = f"""
import sys
from specdec_cli import app
from specdec_cli.llama import amx, trial
from specdec_cli.llama.model import LlamaModel
from {__name__} import hang

trial._open_each = hang
sys.argv = ["specdec", *sys.argv[1:]]
app.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_trial_at_once(models: Models, number: signal.Signals) -> None:
    command = [sys.executable, "-c", HANGING, "run", models.ring, "hi", "-n", "2"]
    env = {**os.environ, **TRIED}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, env=env, start_new_session=True)
    wait_for_child(process.pid)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, b"Traceback" in err) == (128 + number, b"", False)
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


# --- tokenizers ------------------------------------------------------------------------------------------


def test_check_survives_a_tokenizer_that_kills_llama_cpp(models: Models, tmp_path: Path) -> None:
    """Gemma 4's kind wants a token for the beginning of a text."""
    path, vocab = tmp_path / "made.gguf", make_vocab(N_VOCAB, "gpt2")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(vocab.tokens)
    writer.add_token_types([int(kind) for kind in vocab.types])
    writer.add_token_merges(vocab.merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    done = specdec("check", path, models.ring, env=TRIED)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("Error: llama.cpp crashed while reading the tokenizer of made.gguf (SIGABRT): ")
    assert "GGML_ASSERT" in done.err


# --- kernels that kill llama.cpp --------------------------------------------------------------------------


def amx_that_crashes(monkeypatch: pytest.MonkeyPatch, *, everywhere: bool = False) -> list[bool]:
    """llama.cpp as it is where a wide pass of reordered weights ends the process: whether each child reordered."""
    reordered: list[bool] = []

    def call(_self: Apart, _function: object, trials: list[Trial], *_: object) -> list[Trial]:
        reordered.append(any(trial.repack for trial in trials))
        if reordered[-1] or everywhere:
            raise ModelError("llama.cpp crashed while evaluating 4 tokens (SIGSEGV).")
        return trials

    monkeypatch.setattr(amx, "versions", lambda: {"llama_cpp_features": "CPU : AVX2 = 1 | AMX_INT8 = 1 | "})
    monkeypatch.setattr(Apart, "call", call)
    return reordered


def test_amx_kernels_that_crash_stay_off(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    reordered = amx_that_crashes(monkeypatch)
    assert not amx.crashes()
    try_out([Trial(models.ring)], threads=1)
    assert (reordered, amx.crashes()) == ([True, False], True)
    try_out([Trial(models.ring), Trial(models.ring_draft, models.ring)], threads=1)
    assert reordered == [True, False, False]  # and is not tried again


def test_weights_are_not_reordered_where_that_crashed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    amx_that_crashes(monkeypatch)
    amx.remember_crash()
    asked: list[bool] = []
    load = llama_cpp.llama_model_load_from_file

    def loads(path: bytes, params: llama_cpp.llama_model_params) -> object:
        asked.append(params.use_extra_bufts)
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", loads)
    LlamaModel(ModelSettings(models.ring)).close()
    assert asked == [False]


def test_a_file_that_crashes_without_amx_as_well_is_damaged(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    reordered = amx_that_crashes(monkeypatch, everywhere=True)
    with pytest.raises(ModelError, match="SIGSEGV"):
        try_out([Trial(models.ring)], threads=1)
    assert (reordered, amx.crashes()) == ([True, False], False)


def test_other_builds_are_tried_as_before(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    reordered = amx_that_crashes(monkeypatch)
    monkeypatch.setattr(amx, "versions", lambda: {"llama_cpp_features": "CPU : AVX2 = 1 | AMX_INT8 = 0 | "})
    try_out([Trial(models.ring)], threads=1)
    assert (reordered, amx.crashes()) == ([False], False)
