"""The grid of simulated drafts, machines and texts: what `-k auto` reaches on a small fixed sample."""

import pytest

from scripts.benchmarks import length_grid


def test_auto_is_near_the_best_fixed_length_and_seldom_slower_than_plain_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(length_grid, "ANSWERS", (200,))
    rows = [answers for _, answers in length_grid.sampled(30, 3)]
    for number, (median, tenth, worst) in enumerate(((0.98, 0.93, 0.84), (0.99, 0.96, 0.83))):
        reached = length_grid.summary([answers[number].over_best for answers in rows])
        assert reached[0] > median
        assert reached[1] > tenth
        assert reached[2] > worst
        assert min(answers[number].over_plain for answers in rows) > 0.94
