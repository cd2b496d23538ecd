"""HTTP for the Hub: one request at a time, with the environment's proxies and certificates, within limits.

Redirects are followed here, each under the same rules. Secrets go to the endpoint's own origin only.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2

from specdec_cli.errors import HubError, HubFailed, ProxyFailed
from specdec_cli.hub.http_errors import connection_failure
from specdec_cli.hub.sockets import Sockets, Watch, literal_addresses, local_kind, refuse_local, resolve
from specdec_cli.untrusted import one_line

CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 10

_REDIRECTS = (301, 302, 303, 307, 308)
_NEXT = re.compile(r"<([^<>]*)>[^,<>]*;\s*rel=\"?next\"?", re.IGNORECASE)
_CHECK_PROXY = "Check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY."
_PORTS = {"http": 80, "https": 443}
_IN_TARGETS = "/?%:@!$&'()*+,;=~-._[]"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from `url`: names of headers are lower-case. The body comes as it was sent, once."""

    url: str
    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]

    @property
    def host(self) -> str:
        return host_of(self.url)

    @property
    def location(self) -> str | None:
        """Where a redirect points to, as a whole address."""
        found = self.headers.get("location")
        return _joined(self.url, found) if found and self.status in _REDIRECTS else None

    @property
    def next_page(self) -> str | None:
        found = _NEXT.search(self.headers.get("link", ""))
        return _joined(self.url, found[1]) if found else None

    def content(self, most: int) -> bytes | None:
        """The body, unpacked if it came packed once although we asked for it as it is; None if longer than `most`.

        Raises HubFailed for other encodings.
        """
        data, unpack = bytearray(), self._unpacker()
        for chunk in self.chunks:
            data += unpack(chunk, most + 1 - len(data)) if unpack is not None else chunk
            if len(data) > most:
                return None
        return bytes(data)

    def _unpacker(self) -> "Callable[[bytes, int], bytes] | None":
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            return None
        if encoding not in ("gzip", "deflate"):
            raise HubFailed(f"{self.host} uses a content encoding that was not requested.", hint="Check HF_ENDPOINT.")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)

        def unpack(chunk: bytes, most: int) -> bytes:
            try:
                return unpacker.decompress(chunk, most)
            except zlib.error as error:
                raise HubFailed(
                    f"{self.host} sent a response that cannot be decompressed.", hint="Try again."
                ) from error

        return unpack


class Transport:
    """Connections of one client. `endpoint` (without userinfo) is where the user wants to go.

    Anything elsewhere is reached only if it lies outside of this machine, as the endpoint itself need not.
    """

    def __init__(self, endpoint: str, *, stall_seconds: float) -> None:
        self._endpoint = endpoint
        self._watch = Watch(stall_seconds)
        self._pools: dict[str, httpcore2.ConnectionPool] = {}
        self._is_guarded = False
        self._local: frozenset[str] | None = None

    @contextmanager
    def exchange(
        self,
        method: str,
        url: str,
        headers_for: Callable[[str], Mapping[str, str]],
        *,
        seconds: float,
        follow: Callable[[str], bool] = lambda _: True,
    ) -> Iterator[Answer]:
        """Ask `url`, and where it redirects to as long as `follow` says so; the body may take `seconds`.

        `headers_for` gives the headers for each address. Raises HubError for every failure on the way.
        """
        for _ in range(MAX_REDIRECTS):
            with self._once(method, url, headers_for(url), seconds) as answer:
                following = answer.location
                if following is None or not follow(following):
                    yield answer
                    return
            url = without_login(following)
        raise HubFailed(f"{host_of(url)} redirects too many times.", hint="Check HF_ENDPOINT.")

    @contextmanager
    def _once(self, method: str, url: str, headers: Mapping[str, str], seconds: float) -> Iterator[Answer]:
        proxy = proxy_for(url)
        try:
            self._guard(url, proxy)
            self._watch.begin(host_of(url))
            with self._pool(proxy).stream(
                method,
                _target(url),
                headers=[(b"Host", _host_header(url)), *((n.encode(), v.encode("ascii")) for n, v in headers.items())],
                extensions={"timeout": {"connect": CONNECT_SECONDS}},
            ) as response:
                self._watch.body(seconds)
                received = {
                    name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in response.headers
                }
                yield Answer(url, response.status, received, response.iter_stream())
        except _FAILURES as error:
            raise connection_failure(error, host_of(url), proxy, self._endpoint) from error

    def _pool(self, proxy: str) -> httpcore2.ConnectionPool:
        if proxy not in self._pools:
            self._pools[proxy] = _open_pool(proxy, Sockets(self._watch, self._allow))
        return self._pools[proxy]

    def _guard(self, url: str, proxy: str) -> None:
        """Note whether the next connection may reach this machine. Raises HubError if its address says that it does."""
        is_elsewhere = origin(url) != origin(self._endpoint)
        self._is_guarded = is_elsewhere and not proxy
        if is_elsewhere and proxy:  # which resolves the name
            host = host_of(url)
            for address in literal_addresses(host):
                refuse_local(host, address, self._allowed())

    def _allow(self, host: str, address: str) -> None:
        if self._is_guarded:
            refuse_local(host, address, self._allowed())

    def _allowed(self) -> frozenset[str]:
        """The kinds of local addresses that the endpoint itself has."""
        if self._local is None:
            host = host_of(self._endpoint)
            addresses = literal_addresses(host) or (() if proxy_for(self._endpoint) else resolve(host, CONNECT_SECONDS))
            self._local = frozenset(kind for kind in map(local_kind, addresses) if kind is not None)
        return self._local


_FAILURES = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)


def _open_pool(proxy: str, sockets: Sockets) -> httpcore2.ConnectionPool:
    """Connections by way of `proxy`, or directly."""
    trusted = httpcore2.default_ssl_context()
    if not proxy:
        return httpcore2.ConnectionPool(trusted, network_backend=sockets)
    try:
        parts, auth = urlsplit(proxy), None
        port = parts.port or _PORTS.get(parts.scheme, 1080)
    except ValueError as error:
        raise ProxyFailed("The proxy's address is invalid.", hint=_CHECK_PROXY) from error
    if parts.scheme not in ("http", "https", "socks5", "socks5h") or not parts.hostname:
        raise ProxyFailed(f"{one_line(proxy)} is not a valid proxy address.", hint=_CHECK_PROXY)
    if parts.username is not None or parts.password is not None:
        auth = (unquote(parts.username or "").encode(), unquote(parts.password or "").encode())
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme.startswith("socks"):
        return httpcore2.SOCKSProxy(f"socks5://{host}:{port}", auth, trusted, network_backend=sockets)
    where = f"{parts.scheme}://{host}:{port}"
    return httpcore2.HTTPProxy(where, auth, ssl_context=trusted, network_backend=sockets)


def proxy_for(url: str) -> str:
    """The proxy that the environment names for an address; "" for none."""
    parts, proxies = _parts(url), getproxies()
    if proxy_bypass(parts.hostname or ""):
        return ""
    proxy = proxies.get(parts.scheme) or proxies.get("all", "")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def origin(url: str) -> tuple[str, str | None, int | None]:
    parts = _parts(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def host_of(url: str) -> str:
    return _parts(url).hostname or ""


def without_login(url: str) -> str:
    """An address without user and password."""
    parts = _parts(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def userinfo(url: str) -> str | None:
    """USER:PASSWORD of an address, unquoted; None if it has none."""
    found, at, _ = _parts(url).netloc.rpartition("@")
    return unquote(found) if at else None


def _parts(url: str) -> SplitResult:
    """Raises HubError for what cannot be taken apart, such as a port above 65535 or half of brackets."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _no_address(url) from error
    return parts


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError as error:
        raise _no_address(url) from error


def _target(url: str) -> httpcore2.URL:
    """Raises HubError for what is no address of the web."""
    parts = _parts(url)
    name = parts.hostname or ""
    if parts.scheme not in _PORTS or not name:
        raise _no_address(url)
    try:
        host = name.encode("ascii" if name.isascii() else "idna")
    except UnicodeError as error:
        raise _no_address(url) from error
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = quote(path, safe=_IN_TARGETS, errors="replace").encode()
    return httpcore2.URL(scheme=parts.scheme.encode(), host=host, port=parts.port, target=target)


def _host_header(url: str) -> bytes:
    return urlsplit(url).netloc.rpartition("@")[2].encode("ascii", "replace")


def _no_address(url: str) -> HubError:
    return HubError(f"{one_line(url.partition('?')[0])} is not a valid Hub address.", hint="Check HF_ENDPOINT.")
