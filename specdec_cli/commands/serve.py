"""`specdec serve`: opens the pair and answers requests over HTTP."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.drafting_options import DraftingOptions, DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, loading, say, waiting, write_log
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import SamplingOptions, TempOpt
from specdec_cli.commands.serve_options import ServeOptions
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs
from specdec_cli.signals import raise_on_sigterm

if TYPE_CHECKING:
    from specdec_cli.generation.pair import Pair
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.profile import Profile
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.resolve import Resolved
    from specdec_cli.serve.report import Report
    from specdec_cli.serve.service import Service
    from specdec_cli.serve.worker import Worker
    from specdec_cli.ui.serving import ServingView


@takes_groups
def serve(
    model: Annotated[str, MODEL],
    *,
    pairing: DraftOptions,
    drafting: DraftingOptions,
    temp: TempOpt = None,
    sampling: SamplingOptions,
    placement: PlacementOptions,
    server: ServeOptions,
) -> None:
    """Answer requests of OpenAI's API (chat completions and completions) with speculative decoding.

    Options of sampling hold where a request says nothing. Requests are answered one after another. Ctrl-C finishes the
    running answer, then stops.
    """
    raise_on_sigterm()
    _check_extra()
    line = waiting()
    line.show(f"Loading {model} ...")
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.generation.template_process import shared
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.serve.app import Api
    from specdec_cli.serve.server import address_of, bound, run

    line.hide()
    drafting.check(pairing.draft)
    settings, cache_bytes = server.http(), server.cache_bytes()
    check_outputs({**server.writes, **drafting.writes}, {"MODEL": Path(model), **pairing.reads, **drafting.reads})
    abort = AbortFlag()
    with ExitStack() as stack:
        listener = stack.enter_context(bound(server.host, server.port))
        files = pairing.files_for(model)
        write_log(server.log, *files.paths)
        shared.start()
        profile = drafting.profile_of(files, pairing.draft)
        request = _request(files, pairing.draft, profile, drafting, temp, sampling, placement)
        with stoppable(abort), line:
            line.show(loading(*files.paths))
            pair = stack.enter_context(open_pair(request, say=line.say, abort=abort))
            if pair.tokenizers is not None:
                line.say(pair.tokenizers)
        worker = stack.enter_context(_working(pair, request, abort, server.queue, cache_bytes))
        service = _service(pair, request, files, sampling, server)
        view = _view(lambda: api.status, server)
        api = Api(service, worker, settings, build=_build(), tell=lambda report: view.show(_dated(report)))
        ready = f"Serving {service.alias} at {address_of(listener)}/v1. Ctrl-C stops."
        with view:
            run(api.app(), worker, listener, grace_seconds=server.grace, ready=lambda: view.show(ready))


def _check_extra() -> None:
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"specdec serve needs {' and '.join(missing)}.", hint='Install it: pip install "specdec-cli[serve]".'
        )


def _request(
    files: "Resolved",
    draft: str | None,
    profile: "Profile | None",
    drafting: DraftingOptions,
    temp: float | None,
    sampling: SamplingOptions,
    placement: PlacementOptions,
) -> "PairRequest":
    from specdec_cli.planning.drafting import decide, with_lookup_at_least
    from specdec_cli.planning.request import PairRequest

    placed, params = placement.asked(profile), sampling.over(files.sampling, temp)
    asked = drafting.asked()
    drafts = decide(
        asked, files if draft is not None else with_lookup_at_least(files, asked), profile, placed.longest_draft
    )
    return PairRequest(files.target, drafts, sampling.asked(params, seed=0), placed, files.adapters)


@contextmanager
def _working(
    pair: "Pair", request: "PairRequest", abort: "AbortFlag", most_waiting: int, cache_bytes: int
) -> "Iterator[Worker]":
    from specdec_cli.generation.responder import Responder
    from specdec_cli.serve.prefixes import Prefixes
    from specdec_cli.serve.worker import Worker

    with Responder(pair, request, clock=time.perf_counter, say=say, abort=abort) as responder:
        worker = Worker(responder, abort, Prefixes(pair, cache_bytes), most_waiting=most_waiting)
        try:
            yield worker
        finally:
            worker.close(0.0)


def _service(
    pair: "Pair", request: "PairRequest", files: "Resolved", sampling: SamplingOptions, server: ServeOptions
) -> "Service":
    from specdec_cli.generation.chat import THINKING_SWITCHES
    from specdec_cli.serve.protocol import Defaults
    from specdec_cli.serve.service import Service

    preset = files.preset
    new_seed = None if sampling.seed is not None else lambda: secrets.randbits(32)
    return Service(
        pair,
        Defaults(request.sampling, server.n, new_seed),
        alias=server.alias or (preset.name if preset is not None else pair.target.model.path.stem),
        system=server.system or (preset.system if preset is not None else None),
        variables={} if server.think is None else dict.fromkeys(THINKING_SWITCHES, server.think),
    )


def _build() -> str:
    from specdec_cli import __version__
    from specdec_cli.llama.versions import versions

    return f"specdec {__version__}, llama.cpp {versions()['llama_cpp']}"


def _view(status: Callable[[], str], server: ServeOptions) -> "ServingView":
    from specdec_cli.ui.serving import ServingView
    from specdec_cli.ui.terminal import Terminal

    return ServingView(Terminal(sys.stderr, os.environ), status, plain=server.plain, say=say)


def _dated(report: "Report") -> str:
    return f"{time.strftime('%H:%M:%S')} {report}"
