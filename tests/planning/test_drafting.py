"""Who drafts, how long and by which rule: the whole decision as a table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.planning.drafting import WIDEST_LOOKAHEAD, Asked, decide, for_several, longest_draft, n_branches
from specdec_cli.planning.profile import Profile
from specdec_cli.planning.request import Drafting
from specdec_cli.presets.resolve import Resolved
from specdec_cli.presets.schema import ModelSource, Preset
from specdec_cli.settings import LONGEST_AUTO, LONGEST_WITH_STATES, USUAL_K

TARGET, DRAFT, HEADS = Path("t.gguf"), Path("d.gguf"), Path("h.safetensors")
PASS = 511
PLAIN = Resolved(TARGET, None, "none", None)
LOOKUP = Resolved(TARGET, None, "ngram", None)
MODEL = Resolved(TARGET, DRAFT, "model", None)
MEDUSA = Resolved(TARGET, None, "medusa", None, HEADS)
MTP = Resolved(TARGET, None, "mtp", None)
PRESET = replace(MODEL, preset=Preset("p", "", "", ModelSource(path="t"), ModelSource(path="d"), k=3, p_min=0.25))


def tuned(drafter: str, k: Any, p_min: float = 0.0) -> Profile:
    return Profile(drafter, k, p_min, None, 1.2, "2026-01-01")


STORE = {"ngram_store": Path("s")}
PREDICT = {"predict": Path("p")}
AUTO_MODEL = {"drafter": "ngram+model", "k": LONGEST_AUTO, "auto": True, "draft": DRAFT}


@pytest.mark.parametrize(
    ("files", "asked", "profile", "decided"),
    [
        # nothing asked
        (PLAIN, {}, None, {"drafter": "none", "k": 1}),
        (MODEL, {}, None, AUTO_MODEL),
        (LOOKUP, {}, None, {"drafter": "ngram", "k": LONGEST_AUTO, "auto": True}),
        (MTP, {}, None, {"drafter": "ngram+mtp", "k": LONGEST_AUTO, "auto": True}),
        (MEDUSA, {}, None, {"drafter": "ngram+medusa", "k": LONGEST_AUTO, "auto": True, "head": HEADS}),
        (PRESET, {}, None, {**AUTO_MODEL, "p_min": 0.25}),
        # a length
        (MODEL, {"k": 5}, None, {"drafter": "model", "k": 5, "draft": DRAFT}),
        (MODEL, {"k": 0}, None, {"drafter": "model", "k": 0, "draft": DRAFT}),
        (PLAIN, {"k": 5}, None, {"drafter": "none", "k": 5}),
        (PRESET, {"k": 5, "p_min": 0.0}, None, {"drafter": "model", "k": 5, "draft": DRAFT}),
        # no lookup
        (MODEL, {"lookup": False}, None, {**AUTO_MODEL, "drafter": "model"}),
        # rules whose text depends on where drafts end
        (MODEL, {"verify": "block"}, None, {"drafter": "model", "k": USUAL_K, "draft": DRAFT, "verify": "block"}),
        (
            PRESET,
            {"verify": "rejection"},
            None,
            {"drafter": "model", "k": 3, "draft": DRAFT, "p_min": 0.25, "verify": "rejection"},
        ),
        # a profile: above the preset, below the user
        (MODEL, {}, tuned("model", 6, 0.5), {"drafter": "model", "k": 6, "p_min": 0.5, "draft": DRAFT}),
        (PRESET, {}, tuned("model", 6), {"drafter": "model", "k": 6, "draft": DRAFT}),
        (
            MODEL,
            {"k": 2, "p_min": 0.1},
            tuned("model", 6, 0.5),
            {"drafter": "model", "k": 2, "p_min": 0.1, "draft": DRAFT},
        ),
        (MODEL, {}, tuned("ngram+model", "auto"), AUTO_MODEL),
        (MODEL, {}, tuned("model", "auto"), {**AUTO_MODEL, "drafter": "model"}),
        (MODEL, {"lookup": False}, tuned("ngram+model", "auto"), {**AUTO_MODEL, "drafter": "model"}),
        (
            MODEL,
            {"verify": "block"},
            tuned("model", 6),
            {"drafter": "model", "k": 6, "draft": DRAFT, "verify": "block"},
        ),
        # a draft that does not pay is not loaded
        (MODEL, {}, tuned("none", 0), {"drafter": "none", "k": 0}),
        (MODEL, {}, tuned("ngram", 8), {"drafter": "ngram", "k": 8}),
        (MEDUSA, {}, tuned("ngram", 8), {"drafter": "ngram", "k": 8}),
        (MODEL, {"lookup": False}, tuned("ngram", 8), {"drafter": "model", "k": 8, "draft": DRAFT}),
        # a profile that cannot go with what was asked is left out
        (MODEL, {"strict": True}, tuned("lookahead", 4), {**AUTO_MODEL, "strict": True}),
        (MODEL, {"strict": True}, tuned("model", 4), {"drafter": "model", "k": 4, "draft": DRAFT, "strict": True}),
        (MODEL, STORE, tuned("model", 4, 0.5), {**AUTO_MODEL, **STORE}),
        (MODEL, STORE, tuned("none", 0), {**AUTO_MODEL, **STORE}),
        (MODEL, STORE, tuned("ngram", 8), {"drafter": "ngram", "k": 8, **STORE}),
        (MODEL, STORE, tuned("ngram+model", "auto"), {**AUTO_MODEL, **STORE}),
        (MODEL, {"k": 4}, tuned("none", 0), {"drafter": "model", "k": 4, "draft": DRAFT}),
        (MODEL, {"k": 0}, tuned("none", 0), {"drafter": "none", "k": 0}),
        # a predicted text is copied from, whoever else drafts
        (PLAIN, PREDICT, None, {"drafter": "ngram", "k": LONGEST_AUTO, "auto": True, **PREDICT}),
        (PLAIN, {"k": 4, **PREDICT}, None, {"drafter": "ngram", "k": 4, **PREDICT}),
        (MODEL, {"k": 4, **PREDICT}, None, {"drafter": "ngram+model", "k": 4, "draft": DRAFT, **PREDICT}),
        (MODEL, PREDICT, tuned("model", 6), {**AUTO_MODEL, **PREDICT}),
        (MODEL, PREDICT, tuned("ngram", 8), {"drafter": "ngram", "k": 8, **PREDICT}),
        # the rest is passed on
        (
            MODEL,
            {"k": 1, "strict": True, "ngram_store": Path("s"), "force": True},
            None,
            {"drafter": "model", "k": 1, "draft": DRAFT, "strict": True, "ngram_store": Path("s"), "force": True},
        ),
    ],
)
def test_the_decision(files: Resolved, asked: dict[str, Any], profile: Profile | None, decided: dict[str, Any]) -> None:
    assert decide(Asked(**asked), files, profile, PASS) == Drafting(**decided)


@pytest.mark.parametrize(("longest", "k"), [(7, 7), (100, LONGEST_AUTO)])
def test_a_draft_by_cost_fits_one_pass(longest: int, k: int) -> None:
    found = decide(Asked(), MODEL, None, longest)
    assert (found.k, found.auto) == (k, True)


@pytest.mark.parametrize(
    ("files", "asked", "profile", "longest", "k"),
    [
        (MODEL, {}, tuned("model", 16), 7, 7),
        (MODEL, {"verify": "block"}, tuned("model", 16), 7, 7),
        (PRESET, {"verify": "block"}, None, 2, 2),
        (MODEL, {"verify": "rejection"}, None, 1, 1),
        (MODEL, {}, tuned("model", 6), 7, 6),
    ],
)
def test_a_length_that_nobody_asked_for_fits_one_pass(
    files: Resolved, asked: dict[str, Any], profile: Profile | None, longest: int, k: int
) -> None:
    assert decide(Asked(**asked), files, profile, longest).k == k


@pytest.mark.parametrize(
    ("files", "asked", "profile", "drafter"),
    [
        (MODEL, {}, None, "ngram"),
        (MODEL, {"lookup": False}, None, "none"),
        (MODEL, {}, tuned("model", 4), "none"),
        (MEDUSA, {"verify": "block"}, None, "none"),
        (MTP, {"lookup": False}, None, "none"),
    ],
)
def test_no_model_is_read_where_a_pass_holds_no_draft(
    files: Resolved, asked: dict[str, Any], profile: Profile | None, drafter: str
) -> None:
    expected = Drafting(drafter, 0, verify=asked.get("verify", "coupled"))
    assert decide(Asked(**asked), files, profile, 0) == expected


def test_a_length_that_was_asked_for_is_not_changed() -> None:
    """What no pass can hold is refused, in the user's numbers, where contexts are made."""
    assert decide(Asked(k=700), MODEL, None, PASS).k == 700


@pytest.mark.parametrize(
    ("files", "drafters", "decided"),
    [
        (MODEL, ["model", "ngram"], {"drafter": "none", "k": 7, "draft": DRAFT}),
        (MTP, ["mtp"], {"drafter": "mtp", "k": 7}),
        (MEDUSA, ["medusa"], {"drafter": "none", "k": 7, "head": HEADS}),
        (PLAIN, ["ngram", "lookahead"], {"drafter": "none", "k": WIDEST_LOOKAHEAD, "trees": True}),
    ],
)
def test_room_for_several(files: Resolved, drafters: list[str], decided: dict[str, Any]) -> None:
    assert for_several(files, drafters, 7) == Drafting(**decided, several=True, force=True)
    assert for_several(files, drafters, 7, auto=True).auto


@pytest.mark.parametrize(
    ("drafting", "longest"),
    [
        (Drafting("model", LONGEST_AUTO, auto=True), LONGEST_WITH_STATES),
        (Drafting("model", LONGEST_AUTO), LONGEST_AUTO),
        (Drafting("none", LONGEST_AUTO, auto=True, several=True), LONGEST_AUTO),
        (Drafting("mtp", LONGEST_AUTO, auto=True, several=True), LONGEST_AUTO),
        (Drafting("model", 2, auto=True), 2),
    ],
)
def test_a_target_with_states_keeps_fewer_where_lengths_are_chosen(drafting: Drafting, longest: int) -> None:
    assert longest_draft(drafting, has_states=True) == longest
    assert longest_draft(drafting, has_states=False) == drafting.k


def test_room_for_trees() -> None:
    assert n_branches(Drafting("model", 4)) == 0
    assert n_branches(Drafting("lookahead", 4)) == n_branches(Drafting("none", 4, trees=True)) > 0
