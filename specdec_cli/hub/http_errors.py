"""Turns HTTP responses and connection failures into errors with hints.

The Hub gives similar answers for what is private, gated and missing.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpcore2

from specdec_cli.errors import (
    CertificateFailed,
    HubError,
    HubFailed,
    NeedsToken,
    NoAccess,
    NoNetwork,
    NotOnHub,
    ProxyFailed,
    RateLimited,
    Stalled,
)
from specdec_cli.untrusted import one_line

_LOGIN = "Log in with `hf auth login`, or set HF_TOKEN"
_RESET = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
"""In the header RateLimit: nothing remaining, so many seconds to wait."""
_LONGEST_WAIT = 1e11
"""Seconds: some 3,000 years. A server may name any number, and dates end in the year 9999."""


def refusal(
    status: int, headers: Mapping[str, str], *, host: str, page: str, repo: str, file: str, has_token: bool
) -> HubError:
    """The error for an answer with `status` (400 or above). `page` is where a person reads about the repository.

    `host` answered; it is the Hub itself unless `page` is empty, as for the places that files are redirected to.
    """
    code, message = headers.get("x-error-code"), headers.get("x-error-message")
    if status == 429:
        wait = retry_after(headers)
        return RateLimited("The Hub's rate limit was reached.", hint=f"Try again {when(wait)}.", retry_after=wait)
    if status >= 500 or status == 408 or not page:
        # An address of a file is signed for a while only: a refusal there means that it has to be asked for anew.
        wait = retry_after(headers)
        later = when(wait) if wait is not None else "later"
        return HubFailed(f"{host} responded with status {status}.", hint=f"Try again {later}.", retry_after=wait)
    if code == "GatedRepo":
        return _gated(repo, page, has_token)
    if code == "RepoNotFound" or (status == 401 and not has_token):
        private = "you have no access to it" if has_token else "it is private and no token was found"
        return NotOnHub(
            f"{repo} does not exist on the Hub, or {private}.",
            hint="Check the name."
            if has_token
            else f"Check the name. If it is private: {_LOGIN[0].lower()}{_LOGIN[1:]}.",
        )
    if status == 401:
        return NeedsToken("The Hub rejected your token.", hint="Log in again with `hf auth login`, or unset HF_TOKEN.")
    if code == "RevisionNotFound":
        return NotOnHub(f"{repo} has no such revision.", hint=f"Its revisions are listed at {page}/commits/main")
    if code == "EntryNotFound":
        return NotOnHub(f"{repo} has no file {file}.", hint=f"Its files are listed at {page}/tree/main")
    if status == 403:
        return NoAccess(f"The Hub refused access to {repo}: {one_line(message)}.", hint=f"See {page}")
    return HubError(f"{host} responded with status {status}: {one_line(message)}.", hint="Check HF_ENDPOINT.")


def _gated(repo: str, page: str, has_token: bool) -> HubError:
    if has_token:
        return NoAccess(f"{repo} is gated, and your token has no access to it.", hint=f"Ask for access at {page}")
    return NeedsToken(
        f"{repo} is gated, and no token was found.", hint=f"Accept its licence at {page}. {_LOGIN}, then try again."
    )


def when(wait: float | None, now: datetime | None = None) -> str:
    """A time `wait` seconds from now, in words: seconds for short ones, local date and time for all others."""
    if wait is None:
        return "in a few minutes"
    if wait <= 120:
        return f"in {wait:.0f} seconds"
    moment = (now or datetime.now(UTC)) + timedelta(seconds=min(wait, _LONGEST_WAIT))
    return f"after {moment.astimezone() if now is None else moment:%Y-%m-%d %H:%M}"


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that the server asks to wait: Retry-After in seconds or as a date, or RateLimit; None without either."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_WAIT)
    try:
        return max((parsedate_to_datetime(text) - (now or datetime.now(UTC))).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        pass
    found = _RESET.search(headers.get("ratelimit", ""))
    return min(float(found[1]), _LONGEST_WAIT) if found else None


def connection_failure(error: Exception, host: str, proxy: str, endpoint: str) -> HubError:
    """The error for a request to `host`, by way of `proxy` unless that is empty, that got no answer or half of one."""
    never_connected = isinstance(error, (httpcore2.ConnectError, httpcore2.ConnectTimeout))
    is_certificate = any(isinstance(cause, ssl.SSLError) for cause in _causes(error))
    if never_connected and proxy and not is_certificate:
        return ProxyFailed(
            f"Cannot reach the proxy {urlsplit(proxy).hostname}: {_reason(error)}.",
            hint="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
        )
    if isinstance(error, httpcore2.ProxyError):
        return ProxyFailed(
            f"The proxy cannot connect to {host}: {_reason(error)}.", hint="Check HTTPS_PROXY and NO_PROXY."
        )
    if is_certificate:
        return CertificateFailed(
            f"The certificate of {host} is not trusted: {_reason(error)}.",
            hint="Behind a corporate proxy, set SSL_CERT_FILE to its certificate bundle.",
        )
    if isinstance(error, httpcore2.UnsupportedProtocol):
        return HubError(f"{endpoint} is not a valid Hub address.", hint="Check HF_ENDPOINT.")
    if never_connected:
        return NoNetwork(
            f"Cannot reach {host}: {_reason(error)}.",
            hint="Check the network, and HTTPS_PROXY or HF_ENDPOINT if you need them.",
        )
    if isinstance(error, httpcore2.TimeoutException):
        return Stalled(f"{host} does not accept requests.", hint="Run the command again to resume.")
    if isinstance(error, httpcore2.LocalProtocolError):  # its words can hold the header that it is about
        return HubError(f"Cannot send the request to {host}.", hint="Check HF_ENDPOINT, and set HF_TOKEN again.")
    return HubFailed(f"The connection to {host} broke: {_reason(error)}.", hint="Run the command again to resume.")


def _reason(error: Exception) -> str:
    """In the system's words where it has some, without its numbers."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "no network, or unknown host"
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return one_line(str(error)) or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
