"""Which file is meant: listings as they are found on the Hub."""

import pytest

from specdec_cli.errors import NotOnHub, UsageError
from specdec_cli.hub.choose_file import HubSpec, ModelFiles, models_in, parse_spec, pick, quant_of
from specdec_cli.hub.client import RemoteFile

REPO = "owner/name"


def listing(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 1000, "a" * 64) for path in paths]


def picked(choice: str | None, *paths: str) -> ModelFiles:
    return pick(REPO, listing(*paths), choice)


def refused(choice: str | None, *paths: str) -> tuple[str, str]:
    with pytest.raises(NotOnHub) as caught:
        picked(choice, *paths)
    return str(caught.value), str(caught.value.hint)


LLAMA = tuple(f"Llama-{quant}.gguf" for quant in ("Q2_K", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q8_0", "f16"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", HubSpec("a/b", None, "main")),
        ("a/b:Q4_K_M", HubSpec("a/b", "Q4_K_M", "main")),
        ("a/b.c-1:sub/x-Q4.gguf@v1", HubSpec("a/b.c-1", "sub/x-Q4.gguf", "v1")),
        ("a/b@refs/pr/1", HubSpec("a/b", None, "refs/pr/1")),
    ],
)
def test_what_is_typed(text: str, expected: HubSpec) -> None:
    assert parse_spec(text) == expected


@pytest.mark.parametrize(
    "text", ["a", "a/b/c", "a/b:", "a/b@", "a/b:x@y:z", "a/b@../../x", "a/b@/tmp/x", "../b", "a/b:../x", ""]
)
def test_what_is_no_model(text: str) -> None:
    with pytest.raises(UsageError, match="is not a model on the Hub"):
        parse_spec(text)


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("gpt2.Q8_0.gguf", "Q8_0"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("gemma-4-26B-A4B-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Llama-Q8_0/Llama-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Qwen2.5-72B-IQ4_XS.gguf", "IQ4_XS"),
        ("BF16/x-00001-of-00002.gguf", "BF16"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("model.gguf", None),
        ("Q-learning.gguf", None),
    ],
)
def test_the_quant_in_a_name(path: str, quant: str | None) -> None:
    assert quant_of(path) == quant


def test_a_quant_means_one_file_whatever_its_capitals() -> None:
    assert picked("q4_k_m", *LLAMA).path == "Llama-Q4_K_M.gguf"
    assert picked("F16", *LLAMA).path == "Llama-f16.gguf"
    assert picked("Llama-Q2_K.gguf", *LLAMA).path == "Llama-Q2_K.gguf"


def test_nothing_named_means_the_only_model_or_the_usual_quant() -> None:
    assert picked(None, "one.gguf", "README.md").path == "one.gguf"
    assert picked(None, *LLAMA).path == "Llama-Q4_K_M.gguf"
    words, hint = refused(None, "a-Q5_0.gguf", "a-Q8_0.gguf")
    assert words == "owner/name has several models: a-Q5_0.gguf, a-Q8_0.gguf."
    assert hint == "Give one, such as owner/name:Q5_0"


def test_a_mistyped_quant_is_never_another_file() -> None:
    """A tool took two files of BF16 for it."""
    words, hint = refused("Q4_KM", *LLAMA, "BF16/Llama-BF16-00001-of-00002.gguf", "BF16/Llama-BF16-00002-of-00002.gguf")
    assert words == "owner/name has no Q4_KM; it has BF16, F16, Q2_K, Q4_K_M, Q4_K_S, Q5_K_M, Q8_0."
    assert hint.startswith("Did you mean Q4_K_")
    assert refused("Q4_K", *LLAMA)[0].startswith("owner/name has no Q4_K;")
    assert "Choose one of these." in refused("zzz", *LLAMA)[1]


def test_a_mistyped_file_name_finds_the_nearest() -> None:
    assert "Llama-Q4_K_M.gguf" in refused("Llama-Q4-K-M.gguf", *LLAMA)[1]


def test_a_tag_of_two_files_lists_both() -> None:
    words, hint = refused("COMPACT", "m-COMPACT-v1.gguf", "m-COMPACT-v2.gguf", "m-Q8_0.gguf")
    assert words == "owner/name: COMPACT matches several models: m-COMPACT-v1.gguf, m-COMPACT-v2.gguf."
    assert hint == "Give the file, such as owner/name:m-COMPACT-v1.gguf"
    assert picked("COMPACT", "m-COMPACT.gguf", "m-Q8_0.gguf").path == "m-COMPACT.gguf"


def test_the_exact_quant_comes_before_longer_ones() -> None:
    names = ("m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf")
    assert picked("Q4_K_M", *names).path == "m-Q4_K_M.gguf"
    assert picked("UD-Q4_K_M", *names).path == "m-UD-Q4_K_M.gguf"


@pytest.mark.parametrize(
    "side_file",
    [
        "mmproj-model-f16.gguf",
        "model-mmproj-f16.gguf",
        "mmproj/f16.gguf",
        "imatrix.gguf",
        "model.imatrix.gguf",
        "mtp-gemma-4-E2B-it.gguf",
        "eagle3-gpt-oss-20b-Q8_0.gguf",
        "dflash-gemma-Q8_0.gguf",
        "dspark-qwen3.gguf",
    ],
)
def test_side_files_are_never_the_model(side_file: str) -> None:
    assert picked(None, side_file, "model-Q8_0.gguf").path == "model-Q8_0.gguf"
    assert refused(None, side_file)[0] == "owner/name has no GGUF model, only parts such as projectors or heads."
    assert "has no" in refused(side_file, side_file, "model-Q8_0.gguf", "model-Q4_0.gguf")[0]


@pytest.mark.parametrize(
    "name",
    [
        "rwkv-5-Eagle-7B-Q4_K_M.gguf",
        "model-mtp-Q4_0.gguf",
        "smtp-helper-Q8_0.gguf",
        "eaglet-Q8_0.gguf",
        "Qwen3.6-27B-MTPx-Q4_0.gguf",
    ],
)
def test_names_that_only_look_like_side_files(name: str) -> None:
    assert picked(None, name).path == name


SPLIT = tuple(f"Q8_0/big-Q8_0-{i:05}-of-00003.gguf" for i in (1, 2, 3))


def test_a_split_model_is_taken_whole_and_called_by_its_first_part() -> None:
    for choice in ("Q8_0", SPLIT[0], SPLIT[1]):
        found = picked(choice, *reversed(SPLIT), "big-Q4_0.gguf")
        assert (found.path, tuple(part.path for part in found.parts)) == (SPLIT[0], SPLIT)
        assert found.size == 3000


@pytest.mark.parametrize("missing", range(3))
def test_a_split_model_with_a_part_missing_is_refused(missing: int) -> None:
    words, _ = refused("Q8_0", *(path for i, path in enumerate(SPLIT) if i != missing))
    assert words == f"owner/name lacks 1 of the 3 parts of {SPLIT[0]}, such as {SPLIT[missing]}."


def test_the_suffix_may_be_in_capitals() -> None:
    names = ("m-00001-of-00002.GGUF", "m-00002-of-00002.GGUF")
    assert [part.path for part in picked(None, *names).parts] == list(names)


def test_pieces_cut_by_the_byte_are_no_models() -> None:
    """`.gguf.part1of2` must be joined first."""
    assert refused(None, "m-Q8_0.gguf.part1of2", "m-Q8_0.gguf.part2of2")[0] == "owner/name has no GGUF model."


def test_many_files_that_claim_many_parts_take_no_time() -> None:
    files = listing(*(f"m{n}-00001-of-99999.gguf" for n in range(20_000)))
    assert len(models_in(files)) == 20_000
    words = refused(None, *(f"m{n}-00001-of-99999.gguf" for n in range(100)))[0]
    assert words.endswith("and 88 more.")
