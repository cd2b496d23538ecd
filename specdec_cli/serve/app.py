"""The HTTP side: routes, streams, and noticing that a client has gone."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specdec_cli.serve.api_error import ApiError
from specdec_cli.serve.metrics import Metrics
from specdec_cli.serve.report import Report
from specdec_cli.serve.service import Prepared, Service
from specdec_cli.serve.shapes import DONE, STILL_HERE, event
from specdec_cli.serve.worker import AnswerEnded, Event, Job, JobEnded, QueueFull, Worker

_RETRY_AFTER = 5
"""Seconds after which a client that was refused may ask again."""
_OPEN = ("/health", "/v1/health")
"""What needs no key."""
_PAUSE = 30.0
"""Seconds in which some of a body must come."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the server talks. `keys` are the keys that open it, none for no lock; `origins` are those of web pages that
    may use it. A stream says every `ping_seconds` that it is still there."""

    keys: Sequence[str] = ()
    origins: Sequence[str] = ()
    ping_seconds: float = 5.0
    most_bytes: int = 32 << 20


class Api:
    """The routes. `tell` takes a report of each request that was answered."""

    def __init__(
        self,
        service: Service,
        worker: Worker,
        settings: HttpSettings,
        *,
        build: str,
        tell: Callable[[Report], None],
    ) -> None:
        self.metrics = Metrics()
        self._service = service
        self._worker = worker
        self._settings = settings
        self._build = build
        self._tell = tell

    def app(self) -> Starlette:
        """The ASGI application."""
        chat, completion = self._answers(self._service.chat), self._answers(self._service.completion)
        get = {
            "/health": self._health,
            "/v1/health": self._health,
            "/v1/models": self._models,
            "/models": self._models,
            "/v1/models/{id:path}": self._model,
            "/props": self._props,
            "/metrics": self._show_metrics,
        }
        post = {
            "/v1/chat/completions": chat,
            "/chat/completions": chat,
            "/v1/completions": completion,
            "/tokenize": self._plain(self._service.tokenize),
            "/detokenize": self._plain(self._service.detokenize),
            "/apply-template": self._plain(self._service.apply_template),
        }
        middleware = [Middleware(_Guard, settings=self._settings)]
        if self._settings.origins:
            cors = Middleware(
                CORSMiddleware, allow_origins=self._settings.origins, allow_methods=["*"], allow_headers=["*"]
            )
            middleware.insert(0, cors)
        return Starlette(
            routes=[
                *(Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()),
                *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()),
            ],
            middleware=middleware,
            exception_handlers=dict.fromkeys((ApiError, HTTPException, ClientDisconnect, Exception), _refuse),
        )

    @property
    def status(self) -> str:
        """The state of things in a line."""
        words = self.metrics.words()
        running, waiting = int(self._worker.is_busy), self._worker.n_waiting
        return " · ".join([f"{running} running", f"{waiting} waiting", *words])

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, _: Request) -> Response:
        return JSONResponse(self._service.models())

    async def _model(self, request: Request) -> Response:
        (model,) = self._service.models()["data"]
        if request.path_params["id"] != model["id"]:
            raise ApiError(404, "There is no such model here.", param="model")
        return JSONResponse(model)

    async def _props(self, _: Request) -> Response:
        return JSONResponse(self._service.props(self._build))

    async def _show_metrics(self, _: Request) -> Response:
        text = self.metrics.text(n_running=int(self._worker.is_busy), n_waiting=self._worker.n_waiting)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def _plain(self, answer: Callable[[bytes], Mapping[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return JSONResponse(await asyncio.to_thread(answer, await self._body(request)))

        return endpoint

    def _answers(self, prepare: Callable[[bytes], Prepared]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            try:
                prepared = await asyncio.to_thread(prepare, await self._body(request))
                run = _Run(self, request, prepared, began)
                self._submit(run.job)
            except ApiError as error:
                self._tell(Report(request.url.path, f"error {error.status}", time.perf_counter() - began))
                raise
            return await run.response()

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """Raises ApiError for one that is too large, or does not come."""
        parts: list[bytes] = []
        n = 0
        stream = request.stream()
        with suppress(StopAsyncIteration):
            while True:
                try:
                    part = await asyncio.wait_for(anext(stream), _PAUSE)
                except TimeoutError:
                    raise ApiError(408, "The body of the request did not come.") from None
                n += len(part)
                if n > self._settings.most_bytes:
                    raise ApiError(413, f"The body is larger than {self._settings.most_bytes:,} bytes.")
                parts.append(part)
        return b"".join(parts)

    def _submit(self, job: Job) -> None:
        """Raises ApiError where too many wait already."""
        try:
            self._worker.submit(job)
        except QueueFull as full:
            raise ApiError(503, f"{full}.", retry_after=_RETRY_AFTER) from None

    def cancel(self, job: Job) -> None:
        self._worker.cancel(job)

    def count(self, found: Event) -> None:
        if isinstance(found, AnswerEnded):
            self.metrics.add(found.ended)

    def report(self, path: str, prepared: Prepared, seconds: float, outcome: str) -> None:
        self._tell(Report(path, outcome, seconds, tuple(prepared.telling.ended)))

    @property
    def ping_seconds(self) -> float:
        return self._settings.ping_seconds


class _Run:
    """One request from the queue to its answer."""

    def __init__(self, api: Api, request: Request, prepared: Prepared, began: float) -> None:
        self._api = api
        self._request = request
        self._prepared = prepared
        self._began = began
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.job = Job(prepared.asked, self._hand_over, prepared.score_prompts)
        self._is_gone = self._is_over = False

    def _hand_over(self, found: Event) -> None:
        """Called in the worker's thread."""
        with suppress(RuntimeError):  # the loop is closed: the server was stopped for good
            self._loop.call_soon_threadsafe(self._events.put_nowait, found)

    async def response(self) -> Response:
        """To a job that was submitted. Raises ApiError for what cannot be answered at all."""
        watch = asyncio.create_task(self._watch())
        response = None
        try:
            response = await (self._stream(watch) if self._prepared.stream else self._whole())
            return response
        finally:
            if not isinstance(response, _EventStream):
                self._close(watch)

    async def _stream(self, watch: "asyncio.Task[None]") -> Response:
        """A stream that has begun has status 200, so it begins only when something is to be said in it."""
        first = await self._next(self._api.ping_seconds)
        if isinstance(first, JobEnded) and first.error is not None:
            self._report(first)
            raise first.error
        return _EventStream(self._parts(first), partial(self._close, watch))

    def _close(self, watch: "asyncio.Task[None]") -> None:
        """Nobody waits for the answer any more, for whatever reason."""
        watch.cancel()
        if not self._is_over:
            self._api.cancel(self.job)

    async def _watch(self) -> None:
        """A client that goes away ends its job."""
        with suppress(ClientDisconnect):
            while (await self._request.receive())["type"] != "http.disconnect":
                pass
        self._is_gone = True
        self._api.cancel(self.job)

    async def _next(self, seconds: float | None) -> Event | None:
        """None if nothing came within so many seconds."""
        try:
            found = await asyncio.wait_for(self._events.get(), seconds)
        except TimeoutError:
            return None
        self._api.count(found)
        self._is_over |= isinstance(found, JobEnded)
        return found

    async def _whole(self) -> Response:
        telling = self._prepared.telling
        while not isinstance(found := await self._next(None), JobEnded):
            if found is not None:
                for _ in telling.take(found):
                    pass
        self._report(found)
        if found.error is not None:
            raise found.error
        return JSONResponse(telling.whole())

    async def _parts(self, found: Event | None) -> AsyncIterator[bytes]:
        """The events of a stream; what came meanwhile is sent together."""
        telling = self._prepared.telling
        while True:
            parts = [STILL_HERE] if found is None else []
            while found is not None and not isinstance(found, JobEnded):
                parts += map(event, telling.take(found))
                found = await self._next(None) if not self._events.empty() else None
            if isinstance(found, JobEnded):
                self._report(found)
                yield b"".join([*parts, *self._end(found)])
                return
            if parts:
                yield b"".join(parts)
            found = await self._next(self._api.ping_seconds)

    def _end(self, ended: JobEnded) -> list[bytes]:
        if ended.error is not None:
            return [event(ended.error.body)]
        return [*map(event, self._prepared.telling.last()), DONE]

    def _report(self, ended: JobEnded) -> None:
        outcome = "cancelled" if self._is_gone else f"error {ended.error.status}" if ended.error is not None else "ok"
        self._api.report(self._request.url.path, self._prepared, time.perf_counter() - self._began, outcome)


class _EventStream(Response):
    """Server-sent events; `close` is called at their end, however it comes."""

    def __init__(self, parts: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._parts = parts
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's names)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self._parts:
                with suppress(OSError):  # it has gone, which the watch is told as well; the job's end is still awaited
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()


class _Guard:
    """Lets in who has a key, and web pages of the origins that are allowed.

    A browser sends the origin of the page with its requests: without this, any page that somebody opens on this machine
    could use a server that listens on it.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.keys]
        self._origins = settings.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._error(Request(scope))) is not None:
            await _error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _error(self, request: Request) -> ApiError | None:
        origin = request.headers.get("origin")
        if origin is not None and "*" not in self._origins and origin not in self._origins:
            return ApiError(403, "Web pages of this origin may not use the server. Start it with --cors ORIGIN.")
        if not self._keys or request.method == "OPTIONS" or request.url.path in _OPEN:
            return None
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if any(hmac.compare_digest(given.encode(), key) for key in self._keys):
            return None
        return ApiError(401, "The API key is missing or wrong.")


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        known = error.status_code if error.status_code in (404, 405) else 400
        words = {404: "There is nothing at this address.", 405: "This address does not take that method."}
        error = ApiError(known, words.get(known, str(error.detail)))
    if not isinstance(error, ApiError):
        error = ApiError(500, f"{type(error).__name__} in the server.")
    return _error_response(error)


def _error_response(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, headers=error.headers)
