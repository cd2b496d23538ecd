"""Tokenized prompts, and the facts that a measurement depends on."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from specdec_cli.bench.measure import Task, answered
from specdec_cli.bench.prompt_set import BenchPrompt
from specdec_cli.errors import UsageError
from specdec_cli.generation.encode import text_ids
from specdec_cli.generation.json_document import plain, versions
from specdec_cli.generation.pair import Pair
from specdec_cli.generation.prompts import conversation
from specdec_cli.llama.devices import gpu_devices
from specdec_cli.planning.machine import available_memory, processor, usable_cores
from specdec_cli.planning.request import PairRequest
from specdec_cli.presets.derive import file_sha256


def as_tasks(pair: Pair, prompts: Sequence[BenchPrompt], n: int, say: Callable[[str], None]) -> list[Task]:
    """The prompts as ids, in the model's chat format if it has one; a chat's earlier turns are answered plainly.

    Raises UsageError where none leaves room for `n` tokens.
    """
    tasks, limit = [], pair.target.session.n_ctx
    for prompt in prompts:
        talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now, follower=pair.follower)
        if talk is None:
            ids = text_ids(pair.target.model, "\n\n".join(prompt.turns))
        else:
            for turn in prompt.turns[:-1]:
                answer = answered(pair, talk.ask(turn), n)
                talk.answered(answer, b"".join(map(pair.target.model.token_bytes, answer)).decode("utf-8", "replace"))
            ids = talk.ask(prompt.turns[-1])
        if len(ids) + n >= limit:
            say(f"Skipping a prompt of kind {prompt.kind}: its {len(ids)} tokens and {n} more do not fit {limit}.")
        else:
            tasks.append(Task(prompt.kind, tuple(ids)))
    if not tasks:
        raise UsageError("No prompt fits the context.", hint="Use a larger --ctx, a smaller -n, or shorter prompts.")
    return tasks


def facts_of(request: PairRequest, more: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Everything that a figure depends on; `arguments` are the command's."""
    machine = {
        "cpu": processor(),
        "cores": usable_cores(),
        "free_memory_bytes": available_memory(),
        "gpus": [device.name for device in gpu_devices()],
    }
    files = [("target", request.target), ("draft", request.drafting.draft), ("heads", request.drafting.head)]
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions(),
        "files": [_file(role, path) for role, path in files if path is not None],
        "command": shlex.join(["specdec", *arguments]),
        "settings": plain({**request.as_settings(), **more}),
    }


def _file(role: str, path: Path) -> dict[str, Any]:
    real = path.resolve()
    known = len(real.name) == 64  # a blob of the Hub's cache is called by its hash
    sha256 = real.name if known else file_sha256(real)
    return {"role": role, "name": path.name, "bytes": real.stat().st_size, "sha256": sha256}
