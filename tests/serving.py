"""A server on a free port of this machine, in threads of the test's own process."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.responder import Responder
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.serve.app import Api, HttpSettings
from specdec_cli.serve.prefixes import Prefixes
from specdec_cli.serve.protocol import Defaults
from specdec_cli.serve.report import Report
from specdec_cli.serve.server import bound
from specdec_cli.serve.service import Service
from specdec_cli.serve.worker import Worker

PATIENCE = 120.0


def until(holds: Callable[[], object]) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.005)


@dataclass
class Running:
    """A server that runs."""

    port: int
    api: Api
    worker: Worker
    responder: Responder
    reports: list[Report] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def send(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """The response, of which the body is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        return connection.getresponse()

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        response = self.send("GET", path, headers=headers)
        text = response.read().decode()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        response = self.send("POST", path, body, headers)
        return response.status, json.loads(response.read())

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The documents of a stream, [DONE] as text."""
        response = self.send("POST", path, {**body, "stream": True})
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.read().decode().split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) if line != "[DONE]" else line for line in data]


@contextmanager
def serving(
    target: Path,
    draft: Path | None = None,
    *,
    k: int = 3,
    n_ctx: int = 512,
    queue: int = 8,
    cache_bytes: int = 64 << 20,
    system: str | None = None,
    http_settings: HttpSettings | None = None,
) -> Iterator[Running]:
    """`target`, drafted for by `draft`, or else by lookup; drafts are of `k` tokens."""
    drafting = Drafting("model" if draft is not None else "ngram", k, draft=draft)
    sampling = Sampling(SamplingParams(), seed=0)
    request = PairRequest(target, drafting, sampling, Placement(threads=1, n_ctx=n_ctx))
    abort = AbortFlag()
    with (
        open_pair(request, say=lambda _: None, abort=abort) as pair,
        Responder(pair, request, clock=time.perf_counter, say=lambda _: None, abort=abort) as responder,
    ):
        worker = Worker(responder, abort, Prefixes(pair, cache_bytes), most_waiting=queue)
        service = Service(pair, Defaults(sampling), alias="tiny", system=system)
        reports: list[Report] = []
        api = Api(service, worker, http_settings or HttpSettings(), build="test", tell=reports.append)
        with _listening(api, worker) as port:
            yield Running(port, api, worker, responder, reports)


@contextmanager
def _listening(api: Api, worker: Worker) -> Iterator[int]:
    config = uvicorn.Config(api.app(), log_config=None, lifespan="off", ws="none", http="h11", log_level="critical")
    server = uvicorn.Server(config)
    listener = bound("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    worker.start()
    thread.start()
    try:
        until(lambda: server.started)
        yield int(listener.getsockname()[1])
    finally:
        worker.close(0.0)
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
