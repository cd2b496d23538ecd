"""The one door to the Hugging Face Hub: what a repository holds, where a file lies, and pieces of its bytes.

Tokens, endpoints, proxies and offline mode are huggingface_hub's own: HF_TOKEN or `hf auth login`, HF_ENDPOINT,
HTTPS_PROXY, HF_HUB_OFFLINE. Bytes are fetched by plain ranged requests, because a download that is to go on after
a crash needs them (huggingface_hub 2.4 begins a file anew in every call).
"""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import WeakFileLock, build_hf_headers, get_session, logging

from specdec_cli.errors import (
    CertificateFailed,
    HubError,
    HubFailed,
    NeedsToken,
    NoNetwork,
    NotHere,
    ProxyFailed,
    Stalled,
)
from specdec_cli.hub.http_errors import refusal
from specdec_cli.untrusted import is_commit, is_etag, one_line, stays_inside

MAX_FILES = 20_000
"""Entries of a repository's listing. The largest GGUF repositories hold some hundreds."""
MAX_PAGES = 100
MAX_PAGE_BYTES = 8 * 2**20
CONNECT_SECONDS = 10.0

_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where other programs look for certificates; the client here looks only at SSL_CERT_FILE and SSL_CERT_DIR."""


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """A repository at one commit. `licence` is what its card says."""

    repo: str
    commit: str
    is_gated: bool
    licence: str | None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a listing. `etag` is its sha256 (64 hexadecimal digits), or a small file's git hash (40)."""

    path: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a file come from, for the next minutes: addresses are signed and expire."""

    repo: str
    file: str
    url: str
    etag: str
    size: int


def open_hub(*, stall_seconds: float = 30.0) -> "Hub":
    """The Hub that the environment names, spoken to with the certificates that it names, and without chatter."""
    if not os.environ.get("SSL_CERT_FILE") and (bundle := _first_set(_CERTIFICATES)):
        os.environ["SSL_CERT_FILE"] = bundle
    _check_environment()
    logging.get_logger("huggingface_hub").setLevel(
        "ERROR"
    )  # warnings of the server would go to the terminal as they are
    return Hub(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT, stall_seconds=stall_seconds)


def _check_environment() -> None:
    """Settle in words what the HTTP library would only fail on. Raises CertificateFailed, ProxyFailed."""
    bundle = os.environ.get("SSL_CERT_FILE")
    if bundle:
        try:
            ssl.create_default_context(cafile=bundle)
        except OSError as error:  # ssl.SSLError is one
            raise CertificateFailed(
                f"{bundle} holds no certificates that can be read.", hint="Check SSL_CERT_FILE (or unset it)."
            ) from error
    if any(proxy.startswith("socks") for proxy in getproxies().values()) and find_spec("socksio") is None:
        raise ProxyFailed("A SOCKS proxy needs another package.", hint="Install it: pip install socksio")


class Hub:
    """Requests to one endpoint. Every method raises HubError with words for the user, NotHere in offline mode.

    `stall_seconds` is how long no byte may come.
    """

    def __init__(self, endpoint: str, *, stall_seconds: float = 30.0) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._timeout = httpx2.Timeout(stall_seconds, connect=CONNECT_SECONDS)
        self._stall_seconds = stall_seconds

    def page(self, repo: str) -> str:
        """The address that a person opens to read about a repository."""
        return f"{self.endpoint}/{repo}"

    def info(self, repo: str, revision: str) -> RepoInfo:
        """What the repository says of itself at `revision` (a commit, branch or tag)."""
        path = f"/api/models/{repo}/revision/{quote(revision, safe='')}"
        query = "?expand=sha&expand=gated&expand=cardData"
        with self._explained(repo):
            data, _ = self._json(self.endpoint + path + query, repo)
        commit = data.get("sha") if isinstance(data, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise HubFailed(f"{self.endpoint} does not answer as a Hub does.", hint="Check HF_ENDPOINT.")
        card = data.get("cardData")
        licence = card.get("license") if isinstance(card, dict) else None
        return RepoInfo(repo, commit, bool(data.get("gated")), one_line(licence) if isinstance(licence, str) else None)

    def files(self, repo: str, commit: str) -> tuple[RemoteFile, ...]:
        """All files of a repository. A name that would leave its folder refuses the whole list."""
        found: list[RemoteFile] = []
        n_entries, n_pages = 0, 0
        url: str | None = f"{self.endpoint}/api/models/{repo}/tree/{commit}?recursive=true"
        while url is not None:
            with self._explained(repo):
                entries, url = self._json(url, repo)
            if not isinstance(entries, list):
                raise HubFailed(f"{self.endpoint} does not list files as a Hub does.", hint="Check HF_ENDPOINT.")
            n_entries, n_pages = n_entries + len(entries), n_pages + 1
            if n_entries > MAX_FILES or n_pages > MAX_PAGES:
                raise HubError(f"{repo} lists more than {MAX_FILES:,} files.", hint="Name another repository.")
            found += [_remote_file(e, repo) for e in entries if isinstance(e, dict) and e.get("type") == "file"]
        return tuple(found)

    def place(self, repo: str, commit: str, file: str) -> Place:
        """Where `file` lies now. Raises NeedsToken or NoAccess for a gated one."""
        url = hf_hub_url(repo, file, revision=commit, endpoint=self.endpoint)
        with self._explained(repo, file):
            found = get_hf_file_metadata(url, timeout=self._stall_seconds, endpoint=self.endpoint)
        if not found.etag or found.size is None or not is_etag(found.etag):
            raise HubFailed(f"{self.endpoint} tells neither size nor hash of {file}.", hint="Check HF_ENDPOINT.")
        return Place(repo, file, found.location, found.etag, found.size)

    @contextmanager
    def pieces(self, place: Place, start: int, stop: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The bytes from `start` up to `stop` as they come, and where they begin: at 0 from a server without ranges.

        The token goes along only to the endpoint itself, never to where a file's address points. The bytes may end
        early without an error, if the server says that they do.
        """
        headers = self._headers(place.url) | {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        with (
            self._explained(place.repo, place.file),
            get_session().stream("GET", place.url, headers=headers, timeout=self._timeout) as response,
        ):
            self._check(response, place.repo, place.file)
            yield _begins(response, place, start), response.iter_raw()

    def read(self, place: Place, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop` of a file, at once."""
        data = bytearray()
        with self.pieces(place, start, stop) as (begins, chunks):
            for chunk in chunks:
                data += chunk
                if len(data) >= stop - begins:
                    break
        return bytes(data[start - begins : stop - begins])

    def _json(self, url: str, repo: str) -> tuple[Any, str | None]:
        """A JSON answer of bounded size, and the address of its next page."""
        data = bytearray()
        with get_session().stream("GET", url, headers=self._headers(url), timeout=self._timeout) as response:
            self._check(response, repo, "")
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_PAGE_BYTES:
                    raise HubError(
                        f"{self.endpoint} answers with more than {MAX_PAGE_BYTES >> 20} MB.", hint="Check HF_ENDPOINT."
                    )
            following = response.links.get("next", {}).get("url")
        try:
            return json.loads(data), following
        except (ValueError, RecursionError) as error:
            raise HubFailed(f"{self.endpoint} does not answer in JSON.", hint="Check HF_ENDPOINT.") from error

    def _check(self, response: httpx2.Response, repo: str, file: str) -> None:
        """Raises what an error's status and headers mean. Its body, which may be of any length, is left alone."""
        if response.status_code >= 400:
            raise self._refusal(response, repo, file)
        if response.status_code >= 300:
            raise HubFailed(f"{response.url.host} redirects to nowhere.", hint="Check HF_ENDPOINT.")

    def _refusal(self, response: httpx2.Response, repo: str, file: str) -> HubError:
        is_hub = _origin(str(response.url)) == _origin(self.endpoint)
        return refusal(
            response.status_code,
            response.headers,
            host=response.url.host,
            page=self.page(repo) if is_hub else "",
            repo=repo,
            file=file,
            has_token=get_token() is not None,
        )

    def _headers(self, url: str) -> dict[str, str]:
        return build_hf_headers(token=None if _origin(url) == _origin(self.endpoint) else False, library_name="specdec")

    @contextmanager
    def _explained(self, repo: str, file: str = "") -> Iterator[None]:
        """What went wrong, in words: huggingface_hub and its HTTP library raise some twenty kinds of errors."""
        try:
            yield
        except HfHubHTTPError as error:
            raise self._refusal(error.response, repo, file) from error
        except OfflineModeIsEnabled as error:
            raise NotHere("HF_HUB_OFFLINE is set, so nothing is fetched.", hint="Unset it to reach the Hub.") from error
        except UnicodeEncodeError as error:  # a header, and the only one of the user's is the token
            raise NeedsToken("Your token holds a character that no token has.", hint="Set HF_TOKEN anew.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> HubError:
        """No answer, or half of one."""
        request = getattr(error, "_request", None)
        url = urlsplit(str(request.url) if request is not None else self.endpoint)
        host, proxy = url.hostname or "", getproxies().get(url.scheme, "")
        never_connected = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
        is_certificate = _caused_by(error, ssl.SSLError)
        if never_connected and proxy and not proxy_bypass(host) and not is_certificate:
            return ProxyFailed(
                f"The proxy {urlsplit(proxy).hostname} cannot be reached: {one_line(str(error)) or 'no answer'}.",
                hint="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
            )
        if isinstance(error, httpx2.ProxyError):
            return ProxyFailed(
                f"The proxy does not connect to {host}: {one_line(str(error))}.",
                hint="Check HTTPS_PROXY and NO_PROXY.",
            )
        if is_certificate:
            return CertificateFailed(
                f"The certificate of {host} is not trusted: {one_line(str(error))}.",
                hint="Behind a company's proxy, set SSL_CERT_FILE to its certificate bundle.",
            )
        if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
            return HubError(f"{self.endpoint} is no address of a Hub.", hint="Check HF_ENDPOINT.")
        if never_connected:
            return NoNetwork(
                f"{host} cannot be reached: {one_line(str(error)) or 'no answer'}.",
                hint="Check the network, and HTTPS_PROXY or HF_ENDPOINT if you need them.",
            )
        if isinstance(error, httpx2.TimeoutException):
            return Stalled(
                f"No byte came from {host} for {self._stall_seconds:.0f} seconds.",
                hint="Run the command again to go on where it stopped; check whether a proxy or firewall holds it up.",
            )
        return HubFailed(
            f"The connection to {host} broke: {one_line(str(error)) or type(error).__name__}.",
            hint="Run the command again to go on where it stopped.",
        )


def cache_root() -> Path:
    """The folder of huggingface_hub's cache, which is shared with every other tool (HF_HUB_CACHE, HF_HOME)."""
    return Path(constants.HF_HUB_CACHE)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests."""
    return constants.is_offline_mode()


def lock(path: Path, *, timeout: float) -> AbstractContextManager[object]:
    """The lock under which huggingface_hub, too, downloads one file. Raises TimeoutError."""
    return WeakFileLock(path, timeout=timeout)


def _remote_file(entry: Mapping[str, Any], repo: str) -> RemoteFile:
    """One line of a listing. Whoever wrote it may want to write outside of the cache."""
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs")
    etag = large.get("oid") if isinstance(large, dict) else entry.get("oid")
    if isinstance(large, dict):
        size = large.get("size", size)
    if not isinstance(path, str) or not stays_inside(path):
        raise HubError(f"{repo} lists a file at an impossible place: {path!r}.", hint="Do not use this repository.")
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str) or not is_etag(etag):
        raise HubError(f"{repo} lists {path!r} without size or hash.", hint="Check HF_ENDPOINT.")
    return RemoteFile(path, size, etag)


def _begins(response: httpx2.Response, place: Place, start: int) -> int:
    """Where the body begins. Raises HubFailed for a body that is not this file's."""
    header = response.headers.get("content-range", "")
    if response.status_code == 206 and header.startswith(f"bytes {start}-"):
        return start
    # A page of a portal or a proxy comes with status 200, too; the file's own length tells them apart.
    if response.status_code == 200 and response.headers.get("content-length") == str(place.size):
        return 0
    raise HubFailed(
        f"{response.url.host} sent something else than {place.file}.", hint="Check the network, and try again."
    )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_set(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
