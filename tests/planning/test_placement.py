"""Whether a pair fits, and what is advised if it does not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.models.memory import DEVICE_RESERVE_BYTES, PROGRAM_BYTES
from specdec_cli.planning.placement import Gpu, Machine, Sized, changes, place
from tests.models.test_memory import LLAMA_3_1_8B, MIB, context, facts

GIB = 2**30
TARGET = Sized(replace(LLAMA_3_1_8B, n_params=8 * 10**9), context(8192))
DRAFT = Sized(facts(16, 8, 64, layer=32 * MIB, n_vocab=128_256, n_embd=2048), context(8192, max_rows=1))


def test_without_a_gpu_everything_is_the_processors() -> None:
    found = place(TARGET, DRAFT, Machine(16 * GIB))
    assert found.draft is not None
    assert (found.layers, found.draft_layers, found.gpu) == (0, 0, 0)
    assert found.ram == PROGRAM_BYTES + found.target.ram + found.draft.ram
    assert found.fits
    assert not place(TARGET, DRAFT, Machine(found.ram - 1)).fits
    assert place(TARGET, DRAFT, Machine(found.ram)).fits


def test_unknown_memory_is_not_held_against_a_pair() -> None:
    assert place(TARGET, DRAFT, Machine(None)).fits


def test_a_large_gpu_takes_both() -> None:
    found = place(TARGET, DRAFT, Machine(16 * GIB, (Gpu("A", 24 * GIB),)))
    assert (found.layers, found.draft_layers) == (33, 17)
    assert found.fits_gpu


@given(st.integers(0, 8 * GIB))
def test_the_draft_has_its_place_first_and_nothing_is_promised_twice(free: int) -> None:
    found = place(TARGET, DRAFT, Machine(64 * GIB, (Gpu("A", free),)))
    if found.draft_layers < DRAFT.facts.n_offloadable:
        assert found.layers <= 1, "no layer of the target where the draft had no room, but for a small one"
    if found.gpu:
        assert found.gpu + DEVICE_RESERVE_BYTES <= free
    assert found.fits


def test_layers_asked_for_are_taken_as_asked() -> None:
    machine = Machine(16 * GIB, (Gpu("A", 4 * GIB),))
    found = place(TARGET, DRAFT, machine, "all", "3")
    assert (found.layers, found.draft_layers, found.fits_gpu) == (33, 3, False)
    assert place(TARGET, None, Machine(16 * GIB), "all").layers == 0


def test_two_gpus_share_by_their_free_memory() -> None:
    machine = Machine(16 * GIB, (Gpu("A", 6 * GIB), Gpu("B", 2 * GIB)))
    found = place(TARGET, None, machine)
    assert found.on_gpu(machine.gpus[0]) == pytest.approx(3 * found.on_gpu(machine.gpus[1]), abs=4)
    assert found.gpu + 2 * DEVICE_RESERVE_BYTES <= machine.gpu_bytes


@given(st.integers(GIB // 2, 8 * GIB), st.booleans())
def test_what_is_advised_fits(ram: int, with_draft: bool) -> None:
    for change in changes(TARGET, DRAFT if with_draft else None, Machine(ram)):
        assert change.fit.fits, change.text


def advice(ram: int, gpus: tuple[Gpu, ...] = ()) -> list[str]:
    return [change.text for change in changes(TARGET, DRAFT, Machine(ram, gpus))]


def test_the_smallest_change_comes_first() -> None:
    needed = place(TARGET, DRAFT, Machine(None)).ram
    assert advice(needed - 100 * MIB)[0] == "an 8-bit cache (--kv q8_0 --kv-draft q8_0)"
    assert advice(needed - 620 * MIB)[0] == "a context of 4096 (--ctx 4096)"
    assert any("--draft ngram" in text for text in advice(needed - 700 * MIB))
    assert [text for text in advice(needed - 1000 * MIB) if text.startswith("the target in ")] == [
        "the target in Q2_K, about 70% of this file's size"
    ]
    assert advice(GIB // 4) == []


def test_no_context_is_advised_that_could_not_hold_a_draft() -> None:
    long_drafts = Sized(TARGET.facts, context(8192, n_ubatch=1024, max_rows=601))
    for change in changes(long_drafts, DRAFT, Machine(2 * GIB)):
        assert change.fit.fits
