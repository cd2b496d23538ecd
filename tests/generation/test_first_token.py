"""The first token comes when it would come without a draft: a draft model reads the prompt after it."""

import time

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import Evaluation, RunStats
from specdec_cli.generation.pair import open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from tests.planted import N_SPECIAL, PlantedPair


def test_the_draft_reads_the_prompt_in_the_second_round_and_its_time_is_counted(planted_pair: PlantedPair) -> None:
    prompt = [N_SPECIAL + i % 50 for i in range(150)]
    request = PairRequest(
        planted_pair.target,
        Drafting("model", 4, planted_pair.draft, force=True),
        Sampling(seed=1, params=SamplingParams(temperature=0)),
        Placement(n_ctx=512, n_batch=64),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        assert pair.draft is not None
        rounds = pair.rounds(prompt, max_tokens=20, ends=lambda _: False, clock=time.perf_counter)
        first = next(rounds)
        assert pair.draft.session.evaluation == Evaluation()
        assert pair.draft.session.n_passes == 0
        assert pair.target.session.n_passes == 4, "149 tokens are three batches of 64, and one token is scored"
        assert first.draft_seconds == 0

        second = next(rounds)
        read = pair.draft.session.evaluation
        assert read.read_tokens == len(prompt)
        assert pair.draft.session.n_passes == 3 + len(second.drafted)
        assert second.seconds > second.draft_seconds >= read.read_seconds > 0

    stats = RunStats()
    stats.add(first)
    stats.add(second)
    assert stats.ttft_seconds == first.seconds
    assert stats.decode_seconds == second.seconds, "what the draft reads is not left out of the speed"
