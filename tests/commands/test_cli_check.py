"""`specdec check`: exit codes and reports, from headers alone."""

import json
from pathlib import Path

import gguf
import pytest

from tests.cli import VOCAB, Models, inside, specdec
from tests.planted import add_vocab


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("check"))


@pytest.mark.parametrize(
    ("draft", "code", "verdict", "says"),
    [
        ("ring_draft", 0, "match", "tokenizers match: SPM, 320 tokens"),
        ("padded", 0, "match", "note  size: 320 vs 328: 8 padding rows, ignored"),
        ("renamed_marker", 8, "match with notes", "2    '</s>' control   '<|end|>' control"),
        ("other_words", 4, "translatable", "error token text: 30 of 320 shared ids have different text"),
    ],
)
def test_exit_code_and_report(models: Models, draft: str, code: int, verdict: str, says: str) -> None:
    pair = (models.ring, getattr(models, draft))
    done = specdec("check", *pair)
    assert (done.code, done.err) == (code, "")
    assert says in done.out
    machine = inside("check", *pair, "--json")
    assert (machine.code, machine.err) == (code, "")
    document = json.loads(machine.out)
    assert document["verdict"] == verdict
    assert document["n_shared"] == 320
    assert list(document) == ["verdict", "overlap", "n_shared", "target", "draft", "findings"]


def test_report_is_plain_text_in_a_pipe(models: Models) -> None:
    done = specdec("check", models.ring, models.other_words, env={"FORCE_COLOR": "1"})
    assert "\x1b" not in done.out


def test_twenty_tokens_unless_all_are_asked_for(models: Models) -> None:
    few, everything = (inside("check", models.ring, models.other_words, *flag).out for flag in ((), ("--all",)))
    assert "and 10 more (--all shows them)" in few
    assert "'▁word319'" not in few
    assert all(f"'▁word{token}'" in everything for token in range(290, 320))


def test_json_names_every_differing_token(models: Models) -> None:
    document = json.loads(inside("check", models.ring, models.other_words, "--json").out)
    finding = next(f for f in document["findings"] if f["rule"] == "token text")
    assert (finding["severity"], finding["n_differing"]) == ("error", 30)
    assert [token["id"] for token in finding["tokens"]] == list(range(290, 320))
    assert finding["tokens"][0] == {
        "id": 290,
        "target": {"text": "▁E", "kind": "normal"},
        "draft": {"text": "▁word290", "kind": "normal"},
    }


def test_ascii_where_the_console_knows_no_more(models: Models) -> None:
    done = specdec("check", models.ring, models.other_words, env={"PYTHONIOENCODING": "cp1252"})
    assert done.code == 4
    assert done.out.isascii()


def test_weights_are_not_read(models: Models, tmp_path: Path) -> None:
    """Both files are as long as they say, but of their weights the disk holds nothing."""
    hollow = tmp_path / "hollow.gguf"
    data = models.ring.read_bytes()
    weights = data.rindex(b"output_norm.weight") + 4096
    with hollow.open("wb") as file:
        file.write(data[:weights])
        file.truncate(len(data))
    assert inside("check", hollow, models.ring_draft).code == 0


@pytest.mark.parametrize("side", [0, 1])
def test_file_that_is_missing_or_no_model(models: Models, tmp_path: Path, side: int) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    for path, words in ((tmp_path / "gone.gguf", "File not found"), (page, "is not a GGUF file")):
        pair = [models.ring, models.ring]
        pair[side] = path
        done = inside("check", *pair)
        assert (done.code, done.out) == (3, "")
        assert words in done.err


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("arch", ["t5", "t5encoder", "bert"])
def test_a_file_that_cannot_write_is_refused(models: Models, tmp_path: Path, side: int, arch: str) -> None:
    """Its tokenizer may match, but no draft comes from it and none helps it."""
    path = tmp_path / f"{arch}.gguf"
    writer = gguf.GGUFWriter(path, arch)
    add_vocab(writer, VOCAB)
    if arch == "bert":
        writer.add_causal_attention(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    pair = (path, models.ring) if side == 0 else (models.ring, path)

    done = inside("check", *pair)
    assert (done.code, done.out) == (3, "")
    assert f"is an encoder, encoder-decoder or diffusion model ({arch})" in done.err


def test_preset_brings_its_draft(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "presets"
    folder.mkdir()
    for name, draft in (("good", models.ring_draft), ("bad", models.other_words)):
        text = f"description: x\nlicence: x\ntarget: {{path: {models.ring}}}\ndraft: {{path: {draft}}}\n"
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("SPECDEC_CONFIG", str(tmp_path))
    assert inside("check", "good").code == 0
    assert inside("check", "bad").code == 4
    assert inside("check", "bad", models.ring_draft).code == 0
    near = inside("check", "goood")
    assert near.code == 2
    assert "Did you mean 'good'?" in near.err


@pytest.mark.parametrize("draft", [(), ("ngram",), ("none",)])
def test_nothing_to_compare_with(models: Models, draft: tuple[str, ...]) -> None:
    done = inside("check", models.ring, *draft)
    assert (done.code, done.out) == (2, "")
    assert "There is no draft to compare with." in done.err
