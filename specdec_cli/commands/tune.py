"""`specdec bench --tune`: saves the fastest settings as a profile, which `run` loads."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from specdec_cli.commands.options import say
from specdec_cli.errors import SpecdecError, UsageError

if TYPE_CHECKING:
    from specdec_cli.bench.measure import Bench, Setting, Task
    from specdec_cli.bench.report import Results
    from specdec_cli.bench.tune import Memory
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.generation.pair import Pair
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.drafting import Asked
    from specdec_cli.planning.profile import Profile
    from specdec_cli.presets.resolve import Resolved

MEASURED_SHARE = 0.7
"""Of the budget: the rest is for threads and caches."""
TUNED_TASKS = 3
"""Prompts on which numbers of threads are tried."""
_THREAD_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is tried after measuring, with whom; `until` is a time of time.perf_counter."""

    pair: "Pair"
    sampling: "SamplingParams"
    n_tokens: int
    abort: "AbortFlag"
    until: float
    with_target: bool


def fastest(tuning: Tuning, measuring: "Bench", tasks: "Sequence[Task]", results: "Results") -> "Profile":
    """The best setting measured, plain decoding where none pays, with the threads and caches it likes best."""
    from specdec_cli.bench.measure import plain_like
    from specdec_cli.bench.report import PAYS
    from specdec_cli.planning.profile import Profile

    setting, speedup = results.best()
    if speedup < PAYS:
        setting, speedup = plain_like(setting), 1.0
    usual = _threads_now(tuning.pair)
    threads = _threads(measuring, tasks[:TUNED_TASKS], setting, usual)
    memory = _memory(tuning, tasks, setting, threads, PAYS)
    return Profile(
        drafter=setting.drafter,
        k=setting.k,
        p_min=setting.p_min,
        threads=None if threads[0] == usual[0] else threads[0],
        speedup=speedup,
        date=datetime.now().date().isoformat(),
        cache_type=memory.cache_type,
        cache_type_draft=memory.cache_type_draft,
        flash_attention=memory.flash_attention,
        threads_draft=None if threads[1] == threads[0] else threads[1],
        repack=memory.repack,
    )


def _threads_now(pair: "Pair") -> tuple[int, int]:
    """Of the target and of the draft, which has the target's where there is none."""
    threads = pair.target.context.threads
    return threads, pair.draft.context.threads if pair.draft is not None else threads


def _threads(
    measuring: "Bench", tasks: "Sequence[Task]", setting: "Setting", usual: tuple[int, int]
) -> tuple[int, int]:
    """First those of the target, then those of a draft beside it: small models often gain nothing by a second core."""
    from specdec_cli.drafters import NAMED

    best = usual
    steps = [[(max(usual[0] // 2, 1), max(usual[1] // 2, 1))]]
    if setting.drafter not in NAMED:
        steps.append([(usual[0], max(usual[1] // 2, 1)), (max(usual[0] // 2, 1), usual[1])])
    for step in steps:
        candidates = [best, *(threads for threads in step if threads != best)]
        if len(candidates) > 1:
            say(f"Testing {' and '.join(map(_told, candidates))} ...")
            best = measuring.fastest_threads(tasks, setting, candidates, _THREAD_REPEATS)
    return best


def _told(threads: tuple[int, int]) -> str:
    target, draft = threads
    return f"{target} thread{'s' * (target > 1)}" + (f" ({draft} for the draft)" if draft != target else "")


def _memory(
    tuning: Tuning, tasks: "Sequence[Task]", setting: "Setting", threads: tuple[int, int], pays: float
) -> "Memory":
    """Reordered weights first, then the draft's cache; the target's, if that was asked for, with the others as they
    were found best."""
    from specdec_cli.bench.measure import Bench
    from specdec_cli.bench.tune import Memory, Tuner, draft_candidates, target_candidates, weight_candidates
    from specdec_cli.drafters import NAMED
    from specdec_cli.planning.plan import machine_now

    by_kind = list({task.kind: task for task in reversed(tasks)}.values())
    tuner = Tuner(
        tuning.pair,
        lambda pair: Bench(pair, tuning.sampling, tuning.n_tokens, time.perf_counter),
        by_kind,
        setting,
        n_ctx=max(len(task.ids) for task in by_kind) + tuning.n_tokens + 1,
        threads=threads,
        clock=time.perf_counter,
        until=tuning.until,
        abort=tuning.abort,
    )
    steps = [weight_candidates(tuning.pair, machine_now().repacked)]
    steps += [draft_candidates(tuning.pair)] if setting.drafter not in NAMED else []
    steps += [target_candidates(tuning.pair)] if tuning.with_target else []
    memory = Memory()
    for candidates in filter(None, steps):
        if not tuner.has_time:
            say(f"No time left to test {', '.join(map(str, candidates))}; raise --budget.")
            continue
        say(f"Testing {', '.join(map(str, candidates))} ...")
        memory, trials = tuner.best(memory, candidates, pays)
        for trial in trials:
            say(f"  {trial}" + (" (taken)" if trial.memory == memory else ""))
    return memory


def keep(profile: "Profile", files: "Resolved", model: str, draft: str | None) -> None:
    """Print how to ask for it, and store it. Raises UsageError."""
    from specdec_cli.planning.profile import key_for, save_profile

    given = f" --draft {shlex.quote(draft)}" if draft is not None else ""
    print(f"\nFastest: specdec run {shlex.quote(model)}{_options(profile, given)}")
    try:
        file = save_profile(key_for(files.target, files.draft or files.head, files.adapters), profile)
    except OSError as error:
        raise UsageError(
            f"Cannot write the profile: {error.strerror}.", hint="Set SPECDEC_CONFIG to a writable folder."
        ) from error
    say(f"Saved in {file}. specdec run {shlex.quote(model)}{given} uses it from now on (--no-profile ignores it).")


def _options(profile: "Profile", given: str) -> str:
    """On the command line; `given` is how the draft was named there."""
    from specdec_cli.drafters import NAMED

    who = f" --draft {profile.drafter}" if profile.drafter in NAMED else given
    options = {
        "-k": profile.k if profile.k else None,
        "--p-min": f"{profile.p_min:g}" if profile.p_min else None,
        "--threads": profile.threads,
        "--threads-draft": profile.threads_draft,
        "--kv": profile.cache_type,
        "--kv-draft": profile.cache_type_draft,
        "--flash-attn": profile.flash_attention,
    }
    if profile.k == "auto" and "+" not in profile.drafter and profile.drafter not in NAMED:
        who += " --no-ngram"
    if profile.repack is not None:
        who += " --repack" if profile.repack else " --no-repack"
    return who + "".join(f" {name} {value}" for name, value in options.items() if value is not None)


def profile_of(files: "Resolved", asked: "Asked") -> "Profile | None":
    """What bench --tune found for this pair, said to the user; None where it cannot go with the options."""
    from specdec_cli.planning.drafting import suits
    from specdec_cli.planning.profile import key_for, load_profile

    try:
        profile = load_profile(key_for(files.target, files.draft or files.head, files.adapters))
    except OSError:  # a file that is not there is told of where it is opened
        return None
    if profile is None or not suits(profile, asked) or not _fits(profile, files):
        return None
    say(f"Using the tuned profile of this pair: {profile}. --no-profile ignores it.")
    return profile


def _fits(profile: "Profile", files: "Resolved") -> bool:
    """Whether the pair has what the profile drafts with. Somebody else may have written the file."""
    from specdec_cli.drafters import DRAFTERS, sources
    from specdec_cli.models.gguf import read_model
    from specdec_cli.models.heads import head_kind, own_head

    wanted = set(sources(profile.drafter)) - {files.drafter}
    wanted = {name for name in wanted if DRAFTERS[name].file}
    if not wanted:
        return True
    try:
        if files.draft is not None:
            return wanted == {head_kind(read_model(files.draft))}
        return wanted == {"mtp"} and bool(own_head(read_model(files.target), files.target.name))
    except SpecdecError:
        return False
