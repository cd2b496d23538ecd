"""The one door to the Hugging Face Hub: what a repository holds, where a file lies, and pieces of its bytes.

Tokens, endpoints, proxies and offline mode are huggingface_hub's own: HF_TOKEN or `hf auth login`, HF_ENDPOINT,
HTTPS_PROXY, HF_HUB_OFFLINE. Bytes are fetched by plain ranged requests, because a download that is to go on after
a crash needs them (huggingface_hub 2.4 begins a file anew in every call).
"""

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import WeakFileLock, build_hf_headers, get_session, hf_raise_for_status

from specdec_cli.errors import (
    CertificateFailed,
    HubError,
    HubFailed,
    NeedsToken,
    NoAccess,
    NoNetwork,
    NotHere,
    NotOnHub,
    ProxyFailed,
    RateLimited,
    SpecdecError,
    Stalled,
)

MAX_FILES = 20_000
"""Of a repository's listing. The largest GGUF repositories hold some hundreds."""
MAX_PAGE_BYTES = 8 * 2**20
CONNECT_SECONDS = 10.0
CHUNK_BYTES = 1 << 20

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

    url: str
    etag: str
    size: int


class Hub:
    """Requests to one endpoint. Every method raises HubError with words for the user.

    `stall_seconds` is how long no byte may come.
    """

    def __init__(self, endpoint: str | None = None, *, stall_seconds: float = 30.0) -> None:
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self._timeout = httpx2.Timeout(stall_seconds, connect=CONNECT_SECONDS)
        self._stall_seconds = stall_seconds
        if not os.environ.get("SSL_CERT_FILE") and (bundle := _first_set(_CERTIFICATES)):
            os.environ["SSL_CERT_FILE"] = bundle

    def page(self, repo: str) -> str:
        """The address that a person opens to read about a repository."""
        return f"{self.endpoint}/{repo}"

    def info(self, repo: str, revision: str) -> RepoInfo:
        """What the repository says of itself at `revision` (a commit, branch or tag)."""
        path = f"/api/models/{repo}/revision/{quote(revision, safe='')}"
        query = "?expand=sha&expand=gated&expand=cardData"
        with self._explained(repo):
            data, _ = self._json(self.endpoint + path + query)
        commit = data.get("sha") if isinstance(data, dict) else None
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise HubFailed(f"{self.endpoint} does not answer as a Hub does.", hint="Check HF_ENDPOINT.")
        card = data.get("cardData")
        licence = card.get("license") if isinstance(card, dict) else None
        return RepoInfo(repo, commit, bool(data.get("gated")), licence if isinstance(licence, str) else None)

    def files(self, repo: str, commit: str) -> tuple[RemoteFile, ...]:
        """All files of a repository. A name that would leave its folder refuses the whole list."""
        found: list[RemoteFile] = []
        url: str | None = f"{self.endpoint}/api/models/{repo}/tree/{commit}?recursive=true"
        while url is not None:
            with self._explained(repo):
                entries, url = self._json(url)
            if not isinstance(entries, list):
                raise HubFailed(f"{self.endpoint} does not list files as a Hub does.", hint="Check HF_ENDPOINT.")
            found += [_remote_file(e, repo) for e in entries if isinstance(e, dict) and e.get("type") == "file"]
            if len(found) > MAX_FILES:
                raise HubError(f"{repo} lists more than {MAX_FILES:,} files.", hint="Name another repository.")
        return tuple(found)

    def place(self, repo: str, commit: str, file: str) -> Place:
        """Where `file` lies now. Raises NeedsToken or NoAccess for a gated one."""
        url = hf_hub_url(repo, file, revision=commit, endpoint=self.endpoint)
        with self._explained(repo, file):
            found = get_hf_file_metadata(url, timeout=self._stall_seconds, endpoint=self.endpoint)
        if not found.etag or found.size is None or not is_etag(found.etag):
            raise HubFailed(f"{self.endpoint} tells neither size nor hash of {file}.", hint="Check HF_ENDPOINT.")
        return Place(found.location, found.etag, found.size)

    @contextmanager
    def pieces(self, place: Place, start: int, stop: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The bytes from `start` up to `stop` in chunks, and where they really begin: 0 if the server knows no ranges.

        The token goes along only to the endpoint itself, never to where a file's address points.
        """
        headers = self._headers(place.url) | {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        with (
            self._explained("", place.url),
            get_session().stream("GET", place.url, headers=headers, timeout=self._timeout) as response,
        ):
            _raise_for_status(response)
            begins = start if response.status_code == 206 else 0
            if response.status_code == 206 and not _is_range(response.headers.get("content-range", ""), start):
                raise HubFailed("The server sent another part of the file than was asked for.", hint="Try again.")
            yield begins, response.iter_bytes(CHUNK_BYTES)

    def read(self, place: Place, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop` of a file, at once."""
        data = b""
        with self.pieces(place, start, stop) as (begins, chunks):
            for chunk in chunks:
                data += chunk
                if len(data) >= stop - begins:
                    break
        return data[start - begins : stop - begins]

    def _json(self, url: str) -> tuple[Any, str | None]:
        """A JSON answer of bounded size, and the address of its next page."""
        data = b""
        with get_session().stream("GET", url, headers=self._headers(url), timeout=self._timeout) as response:
            _raise_for_status(response)
            for chunk in response.iter_bytes(CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_PAGE_BYTES:
                    raise HubError(
                        f"{url} answers with more than {MAX_PAGE_BYTES >> 20} MB.", hint="Check HF_ENDPOINT."
                    )
            following = response.links.get("next", {}).get("url")
        try:
            return json.loads(data), following
        except (ValueError, RecursionError) as error:
            raise HubFailed(f"{self.endpoint} does not answer in JSON.", hint="Check HF_ENDPOINT.") from error

    def _headers(self, url: str) -> dict[str, str]:
        return build_hf_headers(token=None if _origin(url) == _origin(self.endpoint) else False, library_name="specdec")

    @contextmanager
    def _explained(self, repo: str, file: str = "") -> Iterator[None]:
        """What went wrong, in words: huggingface_hub and its HTTP library raise some twenty kinds of errors."""
        try:
            yield
        except HfHubHTTPError as error:
            raise self._refusal(error, repo, file) from error
        except OfflineModeIsEnabled as error:
            raise NotHere("HF_HUB_OFFLINE is set, so nothing is fetched.", hint="Unset it to reach the Hub.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise self._broken(error) from error

    def _refusal(self, error: HfHubHTTPError, repo: str, file: str) -> SpecdecError:
        """The server's answer. Gated comes first: it is a kind of not found in huggingface_hub."""
        status = error.response.status_code
        page, has_token = self.page(repo), get_token() is not None
        login = "Log in with `hf auth login`, or set HF_TOKEN"
        if isinstance(error, GatedRepoError) and not has_token:
            return NeedsToken(
                f"{repo} is gated, and no token was found.",
                hint=f"Accept its licence at {page}. {login}; then try again.",
            )
        if isinstance(error, GatedRepoError):
            return NoAccess(f"{repo} is gated, and your token has no access to it.", hint=f"Ask for access at {page}")
        if status == 401 and has_token:
            return NeedsToken(
                "The Hub refuses your token.", hint="Log in anew with `hf auth login`, or unset HF_TOKEN."
            )
        if isinstance(error, RepositoryNotFoundError):
            private = "you may not see it" if has_token else "it is private and no token was found"
            return NotOnHub(
                f"{repo} does not exist on the Hub, or {private}.",
                hint="Check the name." if has_token else f"Check the name. If it is private: {login.lower()}.",
            )
        if isinstance(error, RevisionNotFoundError):
            return NotOnHub(f"{repo} has no such revision.", hint=f"Its revisions are listed at {page}/commits/main")
        if isinstance(error, RemoteEntryNotFoundError):
            return NotOnHub(f"{repo} has no file {file}.", hint=f"Its files are listed at {page}/tree/main")
        if status == 429:
            wait = _retry_after(error.response.headers)
            after = f"in {wait:.0f} seconds" if wait is not None else "in a few minutes"
            return RateLimited("The Hub limits how often you may ask.", hint=f"Try again {after}.", retry_after=wait)
        if status == 403:
            return NoAccess(f"The Hub refuses {repo or file}: {_one_line(error.server_message)}.", hint=f"See {page}")
        kind = HubFailed if status >= 500 or status == 408 else HubError
        return kind(
            f"{urlsplit(str(error.response.url)).hostname} answered with status {status}.",
            hint="Try again later.",
            retry_after=_retry_after(error.response.headers),
        )

    def _broken(self, error: Exception) -> HubError:
        """No answer, or half of one."""
        request = getattr(error, "_request", None)
        url = urlsplit(str(request.url) if request is not None else self.endpoint)
        host, proxy = url.hostname or "", getproxies().get(url.scheme, "")
        never_connected = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
        is_certificate = _caused_by(error, ssl.SSLError)
        if never_connected and proxy and not proxy_bypass(host) and not is_certificate:
            return ProxyFailed(
                f"The proxy {urlsplit(proxy).hostname} cannot be reached: {_one_line(str(error)) or 'no answer'}.",
                hint="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
            )
        if isinstance(error, httpx2.ProxyError):
            return ProxyFailed(
                f"The proxy does not connect to {host}: {_one_line(str(error))}.",
                hint="Check HTTPS_PROXY and NO_PROXY.",
            )
        if is_certificate:
            return CertificateFailed(
                f"The certificate of {host} is not trusted: {_one_line(str(error))}.",
                hint="Behind a company's proxy, set SSL_CERT_FILE to its certificate bundle.",
            )
        if never_connected or isinstance(error, (httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
            return NoNetwork(
                f"{host} cannot be reached: {_one_line(str(error)) or 'no answer'}.",
                hint="Check the network, and HTTPS_PROXY or HF_ENDPOINT if you need them.",
            )
        if isinstance(error, httpx2.TimeoutException):
            return Stalled(
                f"No byte came from {host} for {self._stall_seconds:.0f} seconds.",
                hint="Run the command again to go on where it stopped; check whether a proxy or firewall holds it up.",
            )
        return HubFailed(
            f"The connection to {host} broke: {_one_line(str(error)) or type(error).__name__}.",
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


def is_etag(text: str) -> bool:
    """Whether this is a hash, and so can be a file's name."""
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is not None


def _remote_file(entry: Mapping[str, Any], repo: str) -> RemoteFile:
    """One line of a listing. Whoever wrote it may want to write outside of the cache."""
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs")
    etag = large.get("oid") if isinstance(large, dict) else entry.get("oid")
    if isinstance(large, dict):
        size = large.get("size", size)
    if not isinstance(path, str) or not _stays_inside(path):
        raise HubError(f"{repo} lists a file at an impossible place: {path!r}.", hint="Do not use this repository.")
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str) or not is_etag(etag):
        raise HubError(f"{repo} lists {path!r} without size or hash.", hint="Check HF_ENDPOINT.")
    return RemoteFile(path, size, etag)


def _stays_inside(path: str) -> bool:
    parts = path.split("/")
    return (
        0 < len(path) < 1024
        and not any(part in ("", ".", "..") for part in parts)
        and not re.search(r'[\\:*?"<>|\x00-\x1f\x7f]', path)
    )


def _raise_for_status(response: httpx2.Response) -> None:
    try:
        hf_raise_for_status(response)
    except (AttributeError, TypeError, ValueError) as error:  # what it makes of a body in another form than it expects
        raise HubFailed(
            f"{response.url.host} answered with status {response.status_code}.", hint="Try again later."
        ) from error


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_range(header: str, start: int) -> bool:
    return header.startswith(f"bytes {start}-")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; the form with a date is not taken."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdigit() else None


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _one_line(text: str | None) -> str:
    return " ".join((text or "no reason given").split()).rstrip(".")[:200]


def _first_set(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
