"""Sockets with deadlines, a minimum rate, and no redirects to local addresses.

The HTTP library has timeouts for single reads only, so a server that sends one byte a second is never given up, and
it connects to whatever a name resolves to. Both are settled below it, where connections are made and bytes are read.
"""

import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2

from specdec_cli.errors import HubError, Stalled

LEAST_RATE = 1024
"""Bytes per second. A body slower than this for `stall_seconds` is given up; a telephone modem is five times faster."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
_RUN_AGAIN = "Run the command again to resume. If it happens again, check proxy and firewall."

Clock = Callable[[], float]


class Watch:
    """How long the other side may take. One request at a time: tell when it begins, was sent, and has a body.

    `stall_seconds` is the longest silence, the longest time for an answer's status and headers, and how long a body
    may come slower than LEAST_RATE. Only time spent waiting for bytes counts.
    """

    def __init__(self, stall_seconds: float, clock: Clock = time.monotonic) -> None:
        self.stall_seconds = stall_seconds
        self._clock = clock
        self._host = ""
        self._limit = self._ends = 0.0
        self._waited, self._came = 0.0, 0

    def begin(self, host: str) -> None:
        """The next request goes to `host`."""
        self._host = host

    def sent(self) -> None:
        """Something was asked: status and headers come within `stall_seconds` or not at all."""
        self._set_limit(self.stall_seconds)

    def body(self, seconds: float) -> None:
        """The answer's body begins, which may take `seconds` altogether."""
        self._set_limit(seconds)

    def _set_limit(self, seconds: float) -> None:
        self._limit, self._ends = seconds, self._clock() + seconds
        self._waited, self._came = 0.0, 0

    def read(self, stream: httpcore2.NetworkStream, max_bytes: int) -> bytes:
        """Read what is there. Raises Stalled."""
        began = self._clock()
        patience = min(self.stall_seconds, self._ends - began)
        if patience <= 0:
            raise self._too_long()
        try:
            data = stream.read(max_bytes, patience)
        except httpcore2.ReadTimeout as error:
            if self._came and patience < self.stall_seconds:
                raise self._too_long() from error
            raise Stalled(f"{self._host} sent nothing for {patience:.0f} seconds.", hint=_RUN_AGAIN) from error
        self._came += len(data)
        self._waited += self._clock() - began
        if self._waited >= self.stall_seconds:
            if self._came < LEAST_RATE * self._waited:
                raise Stalled(f"{self._host} sends less than {LEAST_RATE >> 10} KB per second.", hint=_RUN_AGAIN)
            self._waited, self._came = 0.0, 0
        return data

    def _too_long(self) -> Stalled:
        return Stalled(f"{self._host} did not finish its response within {self._limit:.0f} seconds.", hint=_RUN_AGAIN)


class WatchedStream(httpcore2.NetworkStream):
    """A connection that is read under a watch, whatever timeouts the library gives."""

    def __init__(self, stream: httpcore2.NetworkStream, watch: Watch) -> None:
        self._stream = stream
        self._watch = watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._watch.read(self._stream, max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._stream.write(buffer, self._watch.stall_seconds)
        self._watch.sent()

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return WatchedStream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._watch)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Sockets(httpcore2.NetworkBackend):
    """Makes connections. `allow` is asked before one is made, with the host and an address of it; it may raise."""

    def __init__(self, watch: Watch, allow: Callable[[str, str], None]) -> None:
        self._watch = watch
        self._allow = allow
        self._plain = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address of `host` that answers, within `timeout` seconds altogether."""
        seconds = self._watch.stall_seconds if timeout is None else timeout
        ends = time.monotonic() + seconds
        addresses = resolve(host, seconds)
        for address in addresses:
            self._allow(host, address)
        failure: Exception = httpcore2.ConnectTimeout("no response")
        for n, address in enumerate(addresses):
            left = (ends - time.monotonic()) / (len(addresses) - n)
            try:
                stream = self._plain.connect_tcp(address, port, max(left, 0.1), local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return WatchedStream(stream, self._watch)
        raise failure


def resolve(host: str, seconds: float) -> tuple[str, ...]:
    """The addresses of a host. Raises httpcore2.ConnectError or ConnectTimeout, the resolver's error as its cause."""
    answer: queue.SimpleQueue[tuple[str, ...] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answer.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, UnicodeError) as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()  # the resolver's own patience is no setting of ours
    try:
        found = answer.get(timeout=seconds)
    except queue.Empty:
        raise httpcore2.ConnectTimeout("resolving its name timed out") from None
    if isinstance(found, tuple):
        return found
    try:
        raise found
    except (OSError, UnicodeError) as error:  # as the context, which the library keeps: it drops causes
        raise httpcore2.ConnectError("its name cannot be resolved") from error


def literal_addresses(host: str) -> tuple[str, ...]:
    """The addresses that a host's name spells out, in any form that systems take; none for a name to be resolved."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return ("127.0.0.1",)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ()
    return tuple(str(entry[4][0]) for entry in found)


def local_kind(address: str) -> str | None:
    """ "loopback" or "link-local" for an address that reaches only this machine or its own link, however written."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and (ip in _NAT64 or (int(ip) >> 32 == 0 and int(ip) > 1)):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return local_kind(str(inner))
    if ip.is_loopback or ip.is_unspecified or (ip.version == 4 and ip in _THIS_NETWORK):
        return "loopback"
    return "link-local" if ip.is_link_local else None


def refuse_local(host: str, address: str, allowed: frozenset[str]) -> None:
    """Raises HubError for an address of this machine or its link, unless the user's own endpoint is one of the kind."""
    kind = local_kind(address)
    if kind is not None and kind not in allowed:
        raise HubError(
            f"The Hub redirects to {host}, which is a {kind} address.",
            hint="Check HF_ENDPOINT and the network; no request was sent there.",
        )
