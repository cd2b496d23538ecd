"""`specdec run`: context, batches, caches, threads, devices. This build of llama.cpp knows no GPU."""

from pathlib import Path

import pytest

from specdec_cli.planning.machine import usable_cores
from tests.cli import HEADS, VOCAB, Models, inside, json_inside, ring, specdec, unknown_architecture, word
from tests.planted import write_planted

TEXT = " c d e a"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("placement"))


@pytest.fixture(scope="module", autouse=True)
def no_gpu() -> None:
    from specdec_cli.llama.devices import built_for_gpu, gpu_devices

    if built_for_gpu() or gpu_devices():
        pytest.skip("the answers are those of a build and a machine without a GPU")


# --- context and batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ctx", "n_ctx"), [((), 512), (("--ctx", 0), 512), (("--ctx", 100), 100)])
def test_context_of_both_models(models: Models, ctx: tuple[object, ...], n_ctx: int) -> None:
    done = json_inside(models.ring, "a b", "-n", 1, *ctx, "--draft", models.ring_draft)
    assert [done.document["models"][m]["n_ctx"] for m in ("target", "draft")] == [n_ctx, n_ctx]
    assert "The context of" not in done.err


def test_context_stays_within_what_the_model_was_trained_for(models: Models) -> None:
    done = json_inside(models.ring, "a b", "-n", 1, "--ctx", 9999)
    assert done.document["models"]["target"]["n_ctx"] == 512
    assert "The context of the target is limited to 512 tokens, which it was trained for, instead of 9999." in done.err


def test_default_context_is_4096(models: Models) -> None:
    assert json_inside(models.endless, "a b", "-n", 1).document["models"]["target"]["n_ctx"] == 4096


@pytest.mark.parametrize("batch", [("--batch", 5), ("--batch", 64, "--ubatch", 5)])
def test_prompt_longer_than_a_batch(models: Models, batch: tuple[object, ...]) -> None:
    """5 tokens in a pass: prompts of 5, 6 and 23 tokens come in one piece and several, to both models."""
    for n in (4, 5, 22):
        prompt = " ".join("abcde"[i % 5] for i in range(n))
        document = json_inside(models.ring, prompt, "-n", 6, *batch, "--draft", models.ring_draft).document
        assert document["prompt_tokens"] == n + 1
        assert document["settings"]["n_batch"] == batch[1]
        assert document["text"] == "".join(f" {'abcde'[i % 5]}" for i in range(n, n + 6))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-k", 4, "--batch", 4), "A draft of 4 tokens does not fit in a pass of 4 tokens (--ubatch)."),
        (("-k", 4, "--ubatch", 4), "A draft of 4 tokens does not fit in a pass of 4 tokens (--ubatch)."),
        (("--batch", 8, "--ubatch", 16), "--ubatch (16) must be between 1 and --batch (8)."),
        (("--batch", 0), "Give 1 or more."),
        (("--ctx", -1), "Give 0 or more."),
    ],
)
def test_sizes_that_do_not_fit_are_refused(models: Models, flags: tuple[object, ...], words: str) -> None:
    done = inside("run", models.ring, "a b", *flags)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


# --- caches -----------------------------------------------------------------------------------------------


def test_cache_types(models: Models) -> None:
    def cache_bytes(*flags: object) -> list[int]:
        done = json_inside(models.ring, "a b", "-n", 4, *flags, "--draft", models.ring_draft)
        assert done.document["text"] == TEXT
        assert ("often halves acceptance" in done.err) == ("q4_0" in flags)
        return [done.document["models"][m]["cache_bytes"] for m in ("target", "draft")]

    target, draft = cache_bytes()
    smaller = [pytest.approx(target * 34 / 64, rel=0.05), pytest.approx(draft * 18 / 64, rel=0.05)]
    assert cache_bytes("--kv", "q8_0", "--kv-draft", "q4_0") == smaller
    assert cache_bytes("--kv", "f32") == [pytest.approx(2 * target, rel=0.05), draft]


@pytest.mark.parametrize("option", ["--kv", "--kv-draft"])
def test_cache_type_that_does_not_exist(models: Models, option: str) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, option, "q9_9", "--draft", models.ring_draft)
    assert (done.code, done.out) == (2, "")
    assert "Invalid cache type: 'q9_9'." in done.err
    assert "q8_0" in done.err


def test_cache_type_that_the_model_cannot_have(tmp_path: Path) -> None:
    path = write_planted(tmp_path / "m.gguf", ring(word("a"), word("b")), n_head=4)  # heads of 80
    done = inside("run", path, "a", "-n", 4, "--kv", "q8_0")
    assert (done.code, done.out) == (2, "")
    assert "does not work with a KV cache of type q8_0: K cache type q8_0 with block size 32" in done.err
    assert "f16" in done.err


def test_quantized_cache_without_flash_attention(models: Models) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, "--kv", "q8_0", "--flash-attn", "off")
    assert (done.code, done.out) == (2, "")
    assert "--flash-attn on" in done.err


@pytest.mark.parametrize(("asked", "logged"), [("on", "enabled"), ("off", "disabled"), ("auto", "auto")])
def test_flash_attention_reaches_llama_cpp(models: Models, tmp_path: Path, asked: str, logged: str) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, "--flash-attn", asked, "--log", tmp_path / "log")
    assert done.out == TEXT
    assert f"flash_attn            = {logged}" in (tmp_path / "log").read_text()


def test_flash_attention_takes_three_words(models: Models) -> None:
    done = inside("run", models.ring, "a b", "--flash-attn", "maybe")
    assert done.code == 2
    assert "auto" in done.err


# --- files, memory, log -----------------------------------------------------------------------------------


def test_log_goes_to_the_file_and_nowhere_else(models: Models, tmp_path: Path) -> None:
    log = tmp_path / "llama.log"
    flags = (models.words, "a b", "-n", 4, "--draft", models.draft, "-k", 2, "--seed", 1)
    with_log, without = inside("run", *flags, "--log", log), inside("run", *flags)
    text = log.read_text(encoding="utf-8")
    assert "llama_model_loader: loaded meta data" in text
    assert "draft.gguf" in text
    assert len(with_log.err.splitlines()) == len(without.err.splitlines())
    assert "llama_" not in with_log.err + with_log.out


@pytest.mark.parametrize("option", ["--log", "--jsonl"])
def test_file_that_cannot_be_written(models: Models, option: str) -> None:
    done = inside("run", models.ring, "a b", option, "/nowhere/file")
    assert (done.code, done.out) == (2, "")
    assert "Cannot write to /nowhere/file." in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_under_the_log_ends_only_the_log(models: Models) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, "--log", "/dev/full")
    assert (done.code, done.out) == (0, TEXT)
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("flags", "mmap", "mlock"), [((), True, False), (("--no-mmap",), False, False), (("--mmap", "--mlock"), True, True)]
)
def test_mmap_and_mlock(models: Models, tmp_path: Path, flags: tuple[str, ...], mmap: bool, mlock: bool) -> None:
    log = tmp_path / "log"
    done = json_inside(models.ring, "a b", "-n", 4, *flags, "--log", log)
    assert done.document["text"] == TEXT
    assert (done.document["settings"]["mmap"], done.document["settings"]["mlock"]) == (mmap, mlock)
    assert ("CPU_Mapped model buffer" in log.read_text()) == mmap


def test_out_of_memory_is_told(tmp_path: Path) -> None:
    """Two million tokens of context are 2.6 GB, and the process may have 2 GB."""
    chain = ring(word("a"), word("b"))
    path = write_planted(tmp_path / "far.gguf", chain, n_head=HEADS, n_ctx_train=2_000_000)
    done = specdec("run", path, "a", "-n", 4, "--ctx", 0, memory=2 << 30)
    assert (done.code, done.out) == (5, "")
    assert "could not create a context of 2000000 tokens for far.gguf" in done.err
    assert "--ctx" in done.err


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "File not found: /nowhere/model.gguf."),
        ("folder", "is not a file."),
        ("text", "is not a GGUF file (it begins with '<htm')."),
        ("truncated", "ends before the end of its tensor"),
        ("unknown", "unknown model architecture: 'lhama'"),
        ("no weights", "vocab.gguf"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_model_that_does_not_load(models: Models, tmp_path: Path, case: str, words: str, role: str) -> None:
    from tests.planted import write_vocab_only

    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    path = {
        "missing": lambda: Path("/nowhere/model.gguf"),
        "folder": lambda: tmp_path,
        "text": lambda: page,
        "truncated": lambda: models.truncated,
        "unknown": lambda: unknown_architecture(models.ring, tmp_path / "u.gguf"),
        "no weights": lambda: write_vocab_only(tmp_path / "vocab.gguf", VOCAB),
    }[case]()
    pair = (path, "a b") if role == "target" else (models.words, "a b", "--draft", path)
    done = inside("run", *pair, "-n", 4)
    assert (done.code, done.out) == (3, "")
    if (case, role) == ("folder", "draft"):  # it may hold heads
        words = "holds no safetensors files"
    assert words in done.err
    assert "Hint: " in done.err
    assert "Traceback" not in done.err


def test_reasons_of_the_file_itself_are_not_obeyed(models: Models, tmp_path: Path) -> None:
    """A file may hold what a terminal obeys where llama.cpp quotes it."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(models.ring.read_bytes().replace(b"llama", b"l\x1b[2m"))
    done = inside("run", path, "a")
    assert done.code == 3
    assert "'l␛[2m'" in done.err


def test_unknown_name_finds_the_nearest_preset() -> None:
    near = inside("run", "demmo", "a")
    assert (near.code, near.out) == (2, "")
    assert "No file or preset is called 'demmo'.\nHint: Did you mean 'demo'?" in near.err
    assert "specdec presets lists them" in inside("run", "nothing-like-it", "a").err


def test_names_that_are_not_ascii(models: Models, tmp_path: Path) -> None:
    path = tmp_path / "mödèl 漢.gguf"
    path.write_bytes(models.ring.read_bytes())
    done = json_inside(path, "a b", "-n", 4, "--jsonl", tmp_path / "trace")
    assert (done.document["text"], done.document["models"]["target"]["path"]) == (TEXT, str(path))


# --- threads and devices ----------------------------------------------------------------------------------


def test_threads_are_clamped_with_a_notice(models: Models) -> None:
    cores = usable_cores()
    done = json_inside(models.ring, "a b", "-n", 4, "--threads", cores + 62, "--draft", models.ring_draft)
    assert f"Using {cores} threads instead of {cores + 62}: there are only {cores} usable cores." in done.err
    assert [done.document["models"][m]["threads"] for m in ("target", "draft")] == [cores, cores]


def test_threads_of_each_model(models: Models) -> None:
    def threads(*flags: object) -> list[int]:
        done = inside("run", models.ring, "a b", "-n", 1, *flags, "--draft", models.ring_draft, "--json")
        document = done.document
        return [document["models"][m]["threads"] for m in ("target", "draft")]

    cores = usable_cores()
    assert threads() == [cores, cores]
    assert threads("--threads", 1) == [1, 1]
    assert threads("--threads-draft", 1) == [cores, 1]


@pytest.mark.parametrize("flags", [("--ngl", 5), ("--ngl", "all"), ("--ngl-draft", 5)])
def test_build_without_gpu_warns_once_and_goes_on(models: Models, flags: tuple[object, ...]) -> None:
    done = json_inside(models.words, "a b", "-n", 1, *flags, "--draft", models.draft)
    assert done.err.count("built without GPU support") == 1
    assert "CMAKE_ARGS" in done.err
    assert [done.document["models"][m]["layers_on_gpu"] for m in ("target", "draft")] == [0, 0]


@pytest.mark.parametrize("flags", [(), ("--ngl", 0), ("--ngl-draft", 0), ("--device", "cpu", "--ngl", 5)])
def test_no_gpu_wanted_no_warning(models: Models, flags: tuple[object, ...]) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, *flags)
    assert (done.code, done.out) == (0, TEXT)
    assert "GPU" not in done.err


def test_require_gpu_fails_before_a_token(models: Models) -> None:
    done = inside("run", models.ring, "a b", "-n", 4, "--require-gpu")
    assert (done.code, done.out) == (6, "")
    assert "CMAKE_ARGS" in done.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--ngl", "some"), "Invalid --ngl: 'some'."),
        (("--ngl-draft", "-1"), "Invalid --ngl-draft: '-1'."),
        (("--device", "nonsense"), "Unknown device: 'nonsense'.\nHint: Available devices: CPU."),
        (("--tensor-split", "3:1"), "Invalid --tensor-split: '3:1'."),
        (("--tensor-split", "1,-1"), "Invalid --tensor-split: '1,-1'."),
        (("--tensor-split", "nan"), "Invalid --tensor-split: 'nan'."),
        (("--tensor-split", "0,0"), "Invalid --tensor-split: '0,0'."),
        (("--tensor-split", ",".join(["1"] * 99)), "--tensor-split has 99 values; llama.cpp supports at most"),
        (("--main-gpu", -1), "Give 0 or more."),
    ],
)
def test_placement_that_cannot_be(models: Models, flags: tuple[object, ...], words: str) -> None:
    done = inside("run", models.ring, "a b", *flags)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_placement_is_told(models: Models) -> None:
    flags = ("--ngl", 0, "--ngl-draft", 0, "--device", "cpu", "--main-gpu", 1, "--tensor-split", "3,1")
    settings = json_inside(models.ring, "a b", "-n", 1, *flags).document["settings"]
    assert (settings["gpu_layers"], settings["gpu_layers_draft"]) == ("0", "0")
    assert (settings["devices"], settings["main_gpu"], settings["tensor_split"]) == (["cpu"], 1, [3.0, 1.0])


def test_rpc_of_a_build_without_it(models: Models) -> None:
    done = inside("run", models.ring, "a b", "--rpc", "127.0.0.1:1", "-n", 1)
    assert (done.code, done.out) == (3, "")
    assert "RPC" in done.err
