"""Checks of the Hub and of the token for it."""

from specdec_cli.doctor.checkup import Check, Finding, failed
from specdec_cli.errors import HubError, NeedsToken, NoAccess, NotOnHub, SpecdecError
from specdec_cli.hub.client import has_token, is_offline, open_hub

SECONDS = 5.0


def hub_check(*, offline: bool, seconds: float = SECONDS) -> Check:
    """With `offline`, or HF_HUB_OFFLINE, nothing is asked."""
    late = Finding(
        "Hub",
        "warning",
        f"The Hub did not answer within {seconds:g} seconds. Models that are on this machine need no network.",
        "curl -sSI https://huggingface.co",
    )
    return Check("Hub", "the Hub", lambda: hub(offline=offline, seconds=seconds), seconds, late)


def hub(*, offline: bool, seconds: float = SECONDS) -> Finding:
    """Whether the Hub answers, and takes the token if there is one."""
    if offline or is_offline():
        return Finding("Hub", "skipped", "Not asked: --offline or HF_HUB_OFFLINE is set.")
    endpoint = "the Hub"
    try:
        client = open_hub(stall_seconds=seconds)
        endpoint = client.endpoint
        name = client.account(seconds)
    except NeedsToken as error:
        return failed("Hub", error, "hf auth login")
    except SpecdecError as error:
        if isinstance(error, (NotOnHub, NoAccess)) or type(error) is HubError:  # it answers, and knows no accounts
            return _reachable(endpoint)
        text = f"{error} {error.hint or ''} Models that are on this machine need no network."
        return Finding("Hub", "warning", text, f"curl -sSI {endpoint}")
    return Finding("Hub", "ok", f"{endpoint} answers, and takes the token of {name}.")


def _reachable(endpoint: str) -> Finding:
    token = "whether the token is right is not known" if has_token() else "no token is set; only gated models need one"
    return Finding("Hub", "ok", f"{endpoint} answers; {token}.")
