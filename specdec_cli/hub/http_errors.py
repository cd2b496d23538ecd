"""What a Hub's answer means for the user. The Hub answers alike to what is private, gated and missing."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from specdec_cli.errors import HubError, HubFailed, NeedsToken, NoAccess, NotOnHub, RateLimited
from specdec_cli.untrusted import one_line

_LOGIN = "Log in with `hf auth login`, or set HF_TOKEN"
_RESET = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
"""In the header RateLimit: nothing remaining, so many seconds to wait."""


def refusal(
    status: int, headers: Mapping[str, str], *, host: str, page: str, repo: str, file: str, has_token: bool
) -> HubError:
    """The error for an answer with `status` (400 or above). `page` is where a person reads about the repository.

    `host` answered; it is the Hub itself unless `page` is empty, as for the places that files are redirected to.
    """
    code, message = headers.get("x-error-code"), headers.get("x-error-message")
    if status == 429:
        wait = retry_after(headers)
        after = f"in {wait:.0f} seconds" if wait is not None else "in a few minutes"
        return RateLimited("The Hub limits how often you may ask.", hint=f"Try again {after}.", retry_after=wait)
    if status >= 500 or status == 408 or not page:
        # An address of a file is signed for a while only: a refusal there means that it has to be asked for anew.
        return HubFailed(
            f"{host} answered with status {status}.", hint="Try again later.", retry_after=retry_after(headers)
        )
    if code == "GatedRepo":
        return _gated(repo, page, has_token)
    if code == "RepoNotFound" or (status == 401 and not has_token):
        private = "you may not see it" if has_token else "it is private and no token was found"
        return NotOnHub(
            f"{repo} does not exist on the Hub, or {private}.",
            hint="Check the name."
            if has_token
            else f"Check the name. If it is private: {_LOGIN[0].lower()}{_LOGIN[1:]}.",
        )
    if status == 401:
        return NeedsToken("The Hub refuses your token.", hint="Log in anew with `hf auth login`, or unset HF_TOKEN.")
    if code == "RevisionNotFound":
        return NotOnHub(f"{repo} has no such revision.", hint=f"Its revisions are listed at {page}/commits/main")
    if code == "EntryNotFound":
        return NotOnHub(f"{repo} has no file {file}.", hint=f"Its files are listed at {page}/tree/main")
    if status == 403:
        return NoAccess(f"The Hub refuses {repo}: {one_line(message)}.", hint=f"See {page}")
    return HubError(f"{host} answered with status {status}: {one_line(message)}.", hint="Check HF_ENDPOINT.")


def _gated(repo: str, page: str, has_token: bool) -> HubError:
    if has_token:
        return NoAccess(f"{repo} is gated, and your token has no access to it.", hint=f"Ask for access at {page}")
    return NeedsToken(
        f"{repo} is gated, and no token was found.", hint=f"Accept its licence at {page}. {_LOGIN}; then try again."
    )


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that the server asks to wait: Retry-After in seconds or as a date, or RateLimit; None without either."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - (now or datetime.now(UTC))).total_seconds(), 0.0)
    except (ValueError, TypeError):
        pass
    found = _RESET.search(headers.get("ratelimit", ""))
    return float(found[1]) if found else None
