"""Hub client: repository info, file locations, ranges of bytes.

Tokens, endpoints, proxies and offline mode are huggingface_hub's own: HF_TOKEN or `hf auth login`, HF_ENDPOINT,
HTTPS_PROXY, HF_HUB_OFFLINE. Bytes are fetched by plain ranged requests, because a download that is to go on after
a crash needs them (huggingface_hub 2.4 begins a file anew in every call).
"""

import json
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import getproxies

from huggingface_hub import constants, get_token
from huggingface_hub.utils import WeakFileLock, build_hf_headers, logging

from specdec_cli.errors import CertificateFailed, HubError, HubFailed, NeedsToken, NotHere, ProxyFailed
from specdec_cli.hub.http_errors import refusal
from specdec_cli.hub.transport import Answer, Transport, origin, userinfo, without_login
from specdec_cli.untrusted import is_commit, is_etag, is_portable, one_line, stays_inside

MAX_FILES = 20_000
"""Entries of a repository's listing. The largest GGUF repositories hold some hundreds."""
MAX_PAGES = 100
MAX_PAGE_BYTES = 8 * 2**20
LISTING_SECONDS = 300.0
"""All pages of a listing together."""
READ_SECONDS = 1200.0
"""One piece of a header, some megabytes."""
DOWNLOAD_SECONDS = 7 * 24 * 3600.0
"""One request of a download, which must keep to the least rate besides."""

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
                f"{bundle} has no readable certificates.", hint="Check SSL_CERT_FILE (or unset it)."
            ) from error
    if any(proxy.startswith("socks") for proxy in getproxies().values()) and find_spec("socksio") is None:
        raise ProxyFailed("A SOCKS proxy needs another package.", hint="Install it: pip install socksio")


class Hub:
    """Requests to one endpoint. Every method raises HubError with words for the user, NotHere in offline mode.

    `stall_seconds` is how long no byte may come, how long an answer's headers may take, and how long a body may come
    slower than a least rate.
    """

    def __init__(self, endpoint: str, *, stall_seconds: float = 30.0) -> None:
        login = userinfo(endpoint)
        self.endpoint = without_login(endpoint).rstrip("/")
        self._login = b64encode(login.encode()).decode() if login is not None else None
        self._transport = Transport(self.endpoint, stall_seconds=stall_seconds)
        self._stall_seconds = stall_seconds

    def page(self, repo: str) -> str:
        """The address that a person opens to read about a repository."""
        return f"{self.endpoint}/{repo}"

    def account(self, seconds: float) -> str:
        """The name of the account that the token belongs to. Raises NotOnHub without a token, NeedsToken for a wrong
        one."""
        data, _ = self._json(f"{self.endpoint}/api/whoami-v2", "this account", seconds)
        name = data.get("name") if isinstance(data, dict) else None
        if not isinstance(name, str):
            raise HubFailed(f"{self.endpoint} does not respond like the Hub.", hint="Check HF_ENDPOINT.")
        return one_line(name)

    def info(self, repo: str, revision: str) -> RepoInfo:
        """What the repository says of itself at `revision` (a commit, branch or tag)."""
        path = f"/api/models/{repo}/revision/{quote(revision, safe='')}"
        query = "?expand=sha&expand=gated&expand=cardData"
        data, _ = self._json(self.endpoint + path + query, repo, LISTING_SECONDS)
        commit = data.get("sha") if isinstance(data, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise HubFailed(f"{self.endpoint} does not respond like the Hub.", hint="Check HF_ENDPOINT.")
        card = data.get("cardData")
        licence = card.get("license") if isinstance(card, dict) else None
        return RepoInfo(repo, commit, bool(data.get("gated")), one_line(licence) if isinstance(licence, str) else None)

    def files(self, repo: str, commit: str) -> tuple[RemoteFile, ...]:
        """All files of a repository. A name that would leave its folder refuses the whole list.

        Files other than models whose names some systems cannot have are left out.
        """
        found: list[RemoteFile] = []
        n_entries, n_pages = 0, 0
        ends = time.monotonic() + LISTING_SECONDS
        url: str | None = f"{self.endpoint}/api/models/{repo}/tree/{commit}?recursive=true"
        while url is not None:
            entries, url = self._json(url, repo, ends - time.monotonic())
            if not isinstance(entries, list):
                raise HubFailed(f"{self.endpoint} does not list files like the Hub.", hint="Check HF_ENDPOINT.")
            n_entries, n_pages = n_entries + len(entries), n_pages + 1
            if n_entries > MAX_FILES or n_pages > MAX_PAGES:
                raise HubError(f"{repo} lists more than {MAX_FILES:,} files.", hint="Use another repository.")
            files = (_remote_file(e, repo) for e in entries if isinstance(e, dict) and e.get("type") == "file")
            found += [file for file in files if file is not None]
        return tuple(found)

    def place(self, repo: str, commit: str, file: str) -> Place:
        """Where `file` lies now. Raises NeedsToken or NoAccess for a gated one."""
        url = f"{self.endpoint}/{repo}/resolve/{quote(commit, safe='')}/{quote(file)}"
        with self._asked("HEAD", url, repo, file, self._stall_seconds, stay=True) as answer:
            where = without_login(answer.location or answer.url)
            etag = (answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")).removeprefix("W/").strip('"')
            length = None if answer.location else answer.headers.get("content-length")
            size = answer.headers.get("x-linked-size") or length or ""
        if not is_etag(etag) or not (size.isascii() and size.isdigit() and len(size) < 20):
            raise HubFailed(f"{self.endpoint} gives neither size nor hash of {file}.", hint="Check HF_ENDPOINT.")
        return Place(repo, file, where, etag, int(size))

    @contextmanager
    def pieces(
        self, place: Place, start: int, stop: int, seconds: float = DOWNLOAD_SECONDS
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The bytes from `start` up to `stop` as they come, and where they begin: at 0 from a server without ranges.

        The token goes along only to the endpoint itself, never to where a file's address points. The bytes may end
        early without an error, if the server says that they do. They take at most `seconds`.
        """
        span = {"range": f"bytes={start}-{stop - 1}"}
        with self._asked("GET", place.url, place.repo, place.file, seconds, span) as answer:
            if answer.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                raise HubFailed(
                    f"{answer.host} sends {place.file} compressed.", hint="Check HF_ENDPOINT and the proxy."
                )
            yield _begins(answer, place, start), answer.chunks

    def read(self, place: Place, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop` of a file, at once."""
        data = bytearray()
        with self.pieces(place, start, stop, READ_SECONDS) as (begins, chunks):
            for chunk in chunks:
                data += chunk
                if len(data) >= stop - begins:
                    break
        return bytes(data[start - begins : stop - begins])

    def _json(self, url: str, repo: str, seconds: float) -> tuple[Any, str | None]:
        """A JSON answer of bounded size that comes within `seconds`, and the address of its next page."""
        with self._asked("GET", url, repo, "", seconds) as answer:
            data, following = answer.content(MAX_PAGE_BYTES), answer.next_page
        if data is None:
            raise HubError(
                f"{self.endpoint} sent a response of more than {MAX_PAGE_BYTES >> 20} MB.", hint="Check HF_ENDPOINT."
            )
        try:
            return json.loads(data), without_login(following) if following is not None else None
        except (ValueError, RecursionError) as error:
            raise HubFailed(f"{self.endpoint} did not respond with JSON.", hint="Check HF_ENDPOINT.") from error

    @contextmanager
    def _asked(
        self,
        method: str,
        url: str,
        repo: str,
        file: str,
        seconds: float,
        extra: Mapping[str, str] | None = None,
        *,
        stay: bool = False,
    ) -> Iterator[Answer]:
        """A good answer. With `stay`, redirects to other origins are answers, too.

        The body of a refusal, which may be of any length, is left alone.
        """
        if is_offline():
            raise NotHere("HF_HUB_OFFLINE is set, so nothing is downloaded.", hint="Unset it to reach the Hub.")
        try:
            with self._transport.exchange(
                method,
                url,
                lambda where: self._headers(where) | dict(extra or {}),
                seconds=seconds,
                follow=lambda where: not stay or origin(where) == origin(self.endpoint),
            ) as answer:
                if answer.status >= 400:
                    raise self._refusal(answer, repo, file)
                if answer.status >= 300 and answer.location is None:
                    raise HubFailed(f"{answer.host} sent a redirect without a location.", hint="Check HF_ENDPOINT.")
                yield answer
        except UnicodeEncodeError as error:  # a header, and the only one of the user's is the token
            raise NeedsToken("Your token contains an invalid character.", hint="Set HF_TOKEN again.") from error

    def _refusal(self, answer: Answer, repo: str, file: str) -> HubError:
        is_hub = origin(answer.url) == origin(self.endpoint)
        return refusal(
            answer.status,
            answer.headers,
            host=answer.host,
            page=self.page(repo) if is_hub else "",
            repo=repo,
            file=file,
            has_token=get_token() is not None,
        )

    def _headers(self, url: str) -> dict[str, str]:
        """What is sent to an address: secrets to the endpoint alone."""
        is_hub = origin(url) == origin(self.endpoint)
        token = None if is_hub and self._login is None else False
        headers = {**build_hf_headers(token=token, library_name="specdec"), "accept-encoding": "identity"}
        return headers | ({"authorization": f"Basic {self._login}"} if is_hub and self._login is not None else {})


def cache_root() -> Path:
    """The folder of huggingface_hub's cache, which is shared with every other tool (HF_HUB_CACHE, HF_HOME)."""
    return Path(constants.HF_HUB_CACHE)


def has_token() -> bool:
    """Whether a token for the Hub is set or stored."""
    return get_token() is not None


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests."""
    return constants.is_offline_mode()


def lock(path: Path, *, timeout: float) -> AbstractContextManager[object]:
    """The lock under which huggingface_hub, too, downloads one file. Raises TimeoutError."""
    return WeakFileLock(path, timeout=timeout)


def _remote_file(entry: Mapping[str, Any], repo: str) -> RemoteFile | None:
    """One line of a listing. Whoever wrote it may want to write outside of the cache."""
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs")
    etag = large.get("oid") if isinstance(large, dict) else entry.get("oid")
    if isinstance(large, dict):
        size = large.get("size", size)
    if not isinstance(path, str) or not stays_inside(path):
        raise HubError(f"{repo} lists a file with an invalid path: {_quoted(path)}.", hint="Use another repository.")
    if not is_portable(path):
        if not path.lower().endswith(".gguf"):
            return None
        raise HubError(
            f"{repo} lists a file with a name that some systems do not allow: {_quoted(path)}.",
            hint="Use another repository.",
        )
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str) or not is_etag(etag):
        raise HubError(f"{repo} lists {_quoted(path)} without size or hash.", hint="Check HF_ENDPOINT.")
    return RemoteFile(path, size, etag)


def _quoted(value: object) -> str:
    """Something of a listing, of any type and length."""
    return one_line(repr(value))


def _begins(answer: Answer, place: Place, start: int) -> int:
    """Where the body begins. Raises HubFailed for a body that is not this file's."""
    if answer.status == 206 and answer.headers.get("content-range", "").startswith(f"bytes {start}-"):
        return start
    # A page of a portal or a proxy comes with status 200, too; the file's own length tells them apart.
    if answer.status == 200 and answer.headers.get("content-length") == str(place.size):
        return 0
    raise HubFailed(f"{answer.host} sent something other than {place.file}.", hint="Check the network, and try again.")


def _first_set(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
