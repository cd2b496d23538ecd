"""A pair that was first measured in a bad minute: what is never asked is never measured again, so it is asked."""

import numpy as np
import pytest

from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from tests.simulated import MS, Machine, Text, decode

LONGEST = 16
BUSY = Machine.measured(
    {1: 17.6, 2: 28.1, 3: 32.5, 4: 34.4, 5: 37.0, 6: 38.3, 7: 42.9, 8: 45.7, 9: 48.0, 17: 80.0}, 8.3
)
"""SmolLM2-135M at F32 with its Q8_0 copy, two cores: a draft token takes half a pass."""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("plain", "draft_token"), [(16.0, 8.0), (16.0, 9.0), (14.0, 9.5)])
def test_one_bad_calibration_does_not_shut_a_good_draft_out(plain: float, draft_token: float, seed: int) -> None:
    """A token of the target was taken for 16.0 ms and one of the draft for 8.0: the draft was never asked."""
    costs = PassCosts({1: plain * MS, **{width: BUSY.passes[width] for width in (4, 2, 8, 3, 16)}}, longest=LONGEST)
    costs.set_drafting("model", draft_token * MS, draft_token / 4 * MS)
    learned, drafted = Learned(costs), 0
    for i in range(2):
        text = Text(np.full(200, 0.97), np.random.default_rng(seed + i).random(200) < 0.97)
        length = AutoLength(learned, longest=LONGEST, sources=("model",))
        seconds, lengths = decode(BUSY, text, length, noise=0.08, seed=seed + i)
        drafted += sum(lengths)
        assert 200 * BUSY.passes[1] / seconds > 0.95
    assert drafted > 0
    assert learned.of("model").n_seen > 0
