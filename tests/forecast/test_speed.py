"""From costs and chances to tokens per second."""

import pytest

from specdec_cli.forecast.speed import chance_of_each, forecasts

Q8_0 = {1: 1.0, 2: 1.38, 3: 1.58, 4: 1.70, 5: 2.80, 6: 3.00, 7: 2.9, 8: 2.83, 9: 3.2}
"""Passes of a 7B shape on two cores, over one of width 1."""
Q4_0 = {1: 1.0, 2: 1.84, 3: 2.68, 4: 2.56, 5: 3.42, 6: 4.26, 7: 4.6, 8: 4.93, 9: 5.2}
DRAFT = dict.fromkeys(range(1, 10), 0.04)


def test_the_best_length_at_each_chance() -> None:
    found = forecasts(Q8_0, DRAFT, (0.7, 0.8))
    assert [one.k for one in found] == [3, 3]
    assert [one.plain for one in found] == [1.0, 1.0]
    all_of_them = 0.7**3  # after them the draft reads its own last token
    assert found[0].tokens_per_second == pytest.approx((1 + 0.7 + 0.49 + 0.343) / (1.70 + (3 + all_of_them) * 0.04))
    assert found[0].speedup == pytest.approx(found[0].tokens_per_second)
    assert found[0].acceptance == 0.7


def test_where_no_draft_pays_it_is_plain_decoding() -> None:
    assert [(one.k, one.speedup) for one in forecasts(Q4_0, DRAFT, (0.5,))] == [(0, 1.0)]


def test_without_a_draft_there_is_one_speed() -> None:
    (one,) = forecasts({1: 0.25}, None, (0.6, 0.7))
    assert (one.plain, one.k, one.tokens_per_second, one.acceptance) == (4.0, 0, 4.0, None)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_reported_share_becomes_a_chance(k: int) -> None:
    share = sum(0.8**place for place in range(1, k + 1)) / k
    assert chance_of_each(share, k) == pytest.approx(0.8)
