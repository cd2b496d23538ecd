"""uvicorn around the application: one address, and an end that keeps its word to those who wait."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.serve.worker import Worker

_LAST_WORDS_SECONDS = 5
"""For clients to take what was still to be sent to them."""


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, which does not listen yet. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Cannot listen at {host}, port {port}: {why}.", hint="Use another --port, or check --host."
        ) from error
    return found


def address_of(listener: socket.socket) -> str:
    """The base address for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Signals are ours: at the first one the answer that is being written may be finished."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    app: ASGIApp, worker: Worker, listener: socket.socket, *, grace_seconds: float, ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM, then end as `Ending` says. `ready` is called once requests are accepted.

    Raises Interrupted.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
    )
    raise Interrupted(asyncio.run(_serve(_Server(config), worker, listener, grace_seconds, ready)))


async def _serve(
    server: uvicorn.Server, worker: Worker, listener: socket.socket, grace_seconds: float, ready: Callable[[], None]
) -> int:
    """The number of the signal that ended it."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, lambda found, _: loop.call_soon_threadsafe(signals.put_nowait, found))
    worker.start()
    serving = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        ready()
        ended_by = await signals.get()
        await _end(worker, signals, grace_seconds)
        server.should_exit = True
        await serving
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return ended_by


async def _end(worker: Worker, signals: "asyncio.Queue[int]", grace_seconds: float) -> None:
    """Those who wait are refused, the answer that is being written has `grace_seconds`; a second signal ends that."""
    closing = asyncio.create_task(asyncio.to_thread(worker.close, grace_seconds))
    second = asyncio.create_task(signals.get())
    await asyncio.wait([closing, second], return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        await asyncio.to_thread(worker.close, 0.0)
    await closing
    second.cancel()
