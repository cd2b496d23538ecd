"""What two tokenizers have in common: pieces as llama.cpp has them, pairs of tokens, ends, and figures."""

import dataclasses

import pytest

from specdec_cli.llama.model import LlamaModel
from specdec_cli.models.translation import Translation, figures, pieces
from specdec_cli.models.vocabulary import SAMPLES, Vocabulary
from specdec_cli.settings import ModelSettings
from tests import real_models
from tests.models.test_tokenizer_check import vocabulary
from tests.real_models import need
from tests.two_tongues import Tongue, translation


def read(name: str) -> tuple[Vocabulary, tuple[bytes, ...]]:
    """A real tokenizer, and its pieces by llama.cpp."""
    with LlamaModel(ModelSettings(need(real_models.vocab, name)), vocab_only=True) as model:
        found = model.vocabulary()
        return found, tuple(map(model.token_bytes, range(model.n_vocab)))


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2", "qwen2"])
def test_pieces_are_those_of_llama_cpp(name: str) -> None:
    found, expected = read(name)

    assert pieces(found) == expected


def test_tokens_are_paired_by_their_bytes() -> None:
    both = translation(Tongue("the", " dog", "cat"), Tongue("cat", "the", "cattle"))
    paired = {both.target_pieces[ours]: both.draft_pieces[theirs] for ours, theirs in both.pairs}

    assert all(ours == theirs for ours, theirs in paired.items())
    assert paired.keys() == {b"", b"the", b"cat", *(bytes([byte]) for byte in range(256))}


def test_a_word_is_preferred_to_a_byte_token() -> None:
    """SentencePiece has both <0x0A> and, in some files, a line end of its own."""
    both = Translation(vocabulary((b"\n", 1 << 2)), vocabulary((b"\n", 1 << 2)))

    assert dict(both.pairs)[9] == 9
    assert 3 not in dict(both.pairs), "the byte token"


def test_ends_of_texts_and_of_turns_are_told_apart() -> None:
    """SmolLM2 calls its end of a turn EOS, Gemma EOT."""
    gemma = Tongue("a").vocabulary
    gemma = dataclasses.replace(gemma, texts=(b"<eos>", b"<end_of_turn>", *gemma.texts[2:]), eos=0, eot=1, bos=None)
    smol = dataclasses.replace(gemma, texts=(b"<|endoftext|>", b"<|im_end|>", *gemma.texts[2:]), eos=1, eot=0)
    ends = frozenset({0, 1})
    both = Translation(dataclasses.replace(gemma, end_tokens=ends), dataclasses.replace(smol, end_tokens=ends))

    assert both.target_end(1) == 1
    assert both.target_end(0) == 0
    assert both.markers == {0: 0, 1: 1}
    assert dict(both.pairs)[1] == 1


def test_markers_of_the_same_name_are_the_same() -> None:
    ours, theirs = Tongue("a").vocabulary, Tongue("a", "b", end=b"<end>").vocabulary

    assert Translation(ours, theirs).markers == {0: 0, 1: 1}


def test_figures_are_shares_of_texts() -> None:
    both = translation(Tongue("the"), Tongue(" the"))
    overlap = both.overlap()

    assert set(overlap) == set(SAMPLES)
    assert 0.9 < overlap["English"].target_known < 1
    assert overlap["Chinese"].draft_known == 1, "bytes are in both"
    assert "Chinese 100/100 %" in figures(overlap)
    assert both.why_not() is None


def test_what_cannot_be_translated_is_told() -> None:
    tongue = Tongue("a").vocabulary
    loses = dataclasses.replace(tongue, sample_ids=tuple(ids[:-3] for ids in tongue.sample_ids))
    kind = dataclasses.replace(tongue, kind="WPM")

    assert "do not spell the text" in (Translation(tongue, loses).why_not() or "")
    assert "WPM" in (Translation(kind, tongue).why_not() or "")
