"""What a user reads when the Hub, or the way to it, says no; and what never leaves this machine."""

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

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
)
from specdec_cli.hub.client import MAX_FILES, MAX_PAGE_BYTES, MAX_PAGES, Hub, open_hub
from specdec_cli.hub.http_errors import retry_after
from tests.hubstub import Fault, HubStub
from tests.planted import PlantedPair
from tests.secrets import PASSWORD, TOKEN
from tests.shop import TARGET, TARGET_REPO, add, fill, settings

CERTIFICATE = Path(__file__).parent.parent / "localhost.pem"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the user's, nor certificates."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def stub(tmp_path: Path, planted_pair: PlantedPair) -> Iterator[HubStub]:
    fill(tmp_path / "shop", planted_pair.target, planted_pair.draft)
    with HubStub(tmp_path / "shop") as stub:
        yield stub


def look(stub: HubStub, repo: str = TARGET_REPO, file: str = TARGET, revision: str = "main") -> None:
    """Everything that is asked before a download."""
    hub = Hub(stub.endpoint, stall_seconds=2)
    info = hub.info(repo, revision)
    hub.files(repo, info.commit)
    place = hub.place(repo, info.commit, file)
    hub.read(place, 0, 4)


def failure(stub: HubStub, kind: type[Exception], *arguments: str) -> tuple[str, str]:
    with pytest.raises(kind) as caught:
        look(stub, *arguments)
    assert type(caught.value) is kind
    return str(caught.value), str(getattr(caught.value, "hint", ""))


def test_a_listing_tells_sizes_and_hashes(stub: HubStub, planted_pair: PlantedPair) -> None:
    hub = Hub(stub.endpoint)
    info = hub.info(TARGET_REPO, "main")
    assert (info.is_gated, info.licence) == (False, "apache-2.0")
    files = {file.path: file for file in hub.files(TARGET_REPO, info.commit)}
    assert set(files) == {TARGET, "README.md"}
    assert files[TARGET].size == planted_pair.target.stat().st_size
    place = hub.place(TARGET_REPO, info.commit, TARGET)
    assert (place.etag, place.size) == (files[TARGET].etag, files[TARGET].size)
    assert hub.read(place, 10, 20) == planted_pair.target.read_bytes()[10:20]


def test_a_server_without_ranges_still_gives_the_right_bytes(stub: HubStub, planted_pair: PlantedPair) -> None:
    stub.faults.append(Fault(path="/cdn/", kind="norange"))
    hub = Hub(stub.endpoint)
    place = hub.place(TARGET_REPO, hub.info(TARGET_REPO, "main").commit, TARGET)
    assert hub.read(place, 1000, 1010) == planted_pair.target.read_bytes()[1000:1010]


def test_long_listings_come_in_pages(stub: HubStub) -> None:
    for n in range(7):
        add(stub.root, TARGET_REPO, f"part/{n}.txt", b"x")
    stub.page_size = 3
    hub = Hub(stub.endpoint)
    assert len(hub.files(TARGET_REPO, hub.info(TARGET_REPO, "main").commit)) == 9


# --- private, gated, missing: three unlike answers --------------------------------------------------------


def test_gated_without_a_token(stub: HubStub) -> None:
    settings(stub.root, TARGET_REPO, gated="manual", token=TOKEN)
    words, hint = failure(stub, NeedsToken)
    assert words == "acme/target-GGUF is gated, and no token was found."
    assert f"{stub.endpoint}/acme/target-GGUF" in hint
    assert "hf auth login" in hint


def test_gated_with_a_token_that_has_no_access(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(stub.root, TARGET_REPO, gated="manual", token="hf_another")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words, hint = failure(stub, NoAccess)
    assert words == "acme/target-GGUF is gated, and your token has no access to it."
    assert hint == f"Ask for access at {stub.endpoint}/acme/target-GGUF"
    assert TOKEN not in words + hint


def test_gated_with_a_token_that_has_access(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(stub.root, TARGET_REPO, gated="auto", token=TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    look(stub)


def test_missing(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    words, hint = failure(stub, NotOnHub, "acme/nothing")
    assert words == "acme/nothing does not exist on the Hub, or it is private and no token was found."
    assert "hf auth login" in hint
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words, hint = failure(stub, NotOnHub, "acme/nothing")
    assert words == "acme/nothing does not exist on the Hub, or you have no access to it."
    assert "hf auth login" not in hint


def test_private_opens_to_its_token(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(stub.root, TARGET_REPO, private=True, token=TOKEN)
    failure(stub, NotOnHub)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    look(stub)


def test_a_token_that_the_hub_refuses(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    stub.faults.append(Fault(path="/api/", kind="status", status=401))
    words, hint = failure(stub, NeedsToken)
    assert (words, "unset HF_TOKEN" in hint) == ("The Hub rejected your token.", True)
    assert TOKEN not in words + hint


def test_no_such_revision_or_file(stub: HubStub) -> None:
    assert failure(stub, NotOnHub, TARGET_REPO, TARGET, "v9")[0] == "acme/target-GGUF has no such revision."
    assert failure(stub, NotOnHub, TARGET_REPO, "other.gguf")[0] == "acme/target-GGUF has no file other.gguf."


def test_a_disabled_repository(stub: HubStub) -> None:
    settings(stub.root, TARGET_REPO, disabled=True)
    assert "Access to this resource is disabled" in failure(stub, NoAccess)[0]


def test_refusals_are_not_tried_again(stub: HubStub) -> None:
    for kind in (NeedsToken, NoAccess, NotOnHub, ProxyFailed, CertificateFailed):
        assert not kind.is_transient
    failure(stub, NotOnHub, "acme/nothing")
    assert len([r for r in stub.log if "/api/models" in r["path"]]) == 1


# --- the way to the Hub -----------------------------------------------------------------------------------


def test_rate_limits_name_the_time(stub: HubStub) -> None:
    stub.faults.append(Fault(path="/api/", kind="status", status=429, headers={"Retry-After": "30"}))
    assert failure(stub, RateLimited) == ("The Hub's rate limit was reached.", "Try again in 30 seconds.")


def test_no_network(stub: HubStub) -> None:
    stub.endpoint = "http://127.0.0.1:1"
    words, hint = failure(stub, NoNetwork)
    assert words.startswith("Cannot reach 127.0.0.1")
    assert "HF_ENDPOINT" in hint


def test_a_proxy_that_is_not_there(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://user:{PASSWORD}@127.0.0.1:1")
    stub.endpoint = "http://hub.example"
    words, hint = failure(stub, ProxyFailed)
    assert words.startswith("Cannot reach the proxy 127.0.0.1")
    assert "NO_PROXY" in hint
    assert PASSWORD not in words + hint


def test_a_proxy_is_used_and_left_out_as_the_environment_says(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub answers to any host's name, so it is a proxy as well."""
    monkeypatch.setenv("HTTP_PROXY", stub.endpoint)
    hub = Hub("http://hub.example")
    assert hub.info(TARGET_REPO, "main").repo == TARGET_REPO
    assert stub.log[-1]["path"].startswith("http://hub.example/api/")
    monkeypatch.setenv("NO_PROXY", "hub.example")
    with pytest.raises(NoNetwork):
        hub.info(TARGET_REPO, "main")


def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(407, "Proxy Authentication Required")

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Refuses) as address:
        monkeypatch.setenv("HTTPS_PROXY", address)
        with pytest.raises(ProxyFailed, match=r"cannot connect to .*: 407"):
            Hub("https://hub.example").info(TARGET_REPO, "main")


class serving:
    """A server on loopback for as long as the context is open."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.scheme = "http"
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def with_certificate(stub: HubStub) -> serving:
    """The stub, once more, behind a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return serving(stub.server.RequestHandlerClass, context)  # type: ignore[arg-type]


def test_an_unknown_certificate_names_the_host_and_the_way_out(stub: HubStub) -> None:
    with with_certificate(stub) as address:
        stub.endpoint = address
        words, hint = failure(stub, CertificateFailed)
    assert words.startswith("The certificate of 127.0.0.1 is not trusted")
    assert "SSL_CERT_FILE" in hint
    assert "verif" not in hint, "never advise to leave out the check"


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_certificate_of_ones_own_is_honoured(stub: HubStub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "")  # restored afterwards, whatever is put there
    monkeypatch.setenv(name, str(CERTIFICATE))
    with with_certificate(stub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert open_hub().info(TARGET_REPO, "main").repo == TARGET_REPO


# --- the token stays at home ------------------------------------------------------------------------------


class Thief(BaseHTTPRequestHandler):
    """Another origin that remembers what it was sent."""

    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        body = b"GGUF"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("path", ["/api/models/acme/target-GGUF/revision", "/tree/", "/resolve/", "/cdn/"])
def test_the_token_never_goes_to_another_origin(stub: HubStub, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    Thief.seen = []
    with serving(Thief) as elsewhere:
        stub.faults.append(
            Fault(path=path, method="*", kind="elsewhere", headers={"location": f"{elsewhere}/x"}, times=-1)
        )
        with suppress(HubError):  # the body is read from wherever its address points
            look(stub)
    assert not [headers for headers in Thief.seen if "authorization" in headers or TOKEN in str(headers)]
    assert any(request["auth"] for request in stub.log), "the Hub itself got it"
    assert not [r for r in stub.log if r["auth"] and "/cdn/" in r["path"]]


def test_a_next_page_elsewhere_gets_no_token(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    Thief.seen = []
    with serving(Thief) as elsewhere:
        stub.faults.append(
            Fault(path="/tree/", kind="status", status=200, headers={"Link": f'<{elsewhere}/next>; rel="next"'})
        )
        stub.listing = []
        with suppress(HubError):
            look(stub)
        stub.faults.append(Fault(path="/tree/", kind="elsewhere", headers={"location": f"{elsewhere}/x"}, times=-1))
        with suppress(HubError):
            look(stub)
    assert Thief.seen
    assert not [headers for headers in Thief.seen if TOKEN in str(headers)]


# --- hostile servers --------------------------------------------------------------------------------------


def listed(path: object, size: object = 10, oid: object = "a" * 64) -> dict[str, object]:
    return {"type": "file", "path": path, "size": size, "oid": "b" * 40, "lfs": {"oid": oid, "size": size}}


@pytest.mark.parametrize(
    "path",
    [
        "../../../etc/x.gguf",
        "a/../../x.gguf",
        "/etc/x.gguf",
        "a//x.gguf",
        "./x.gguf",
        "C:\\x.gguf",
        "a\\..\\x.gguf",
        "x\n.gguf",
        "x\x1b[2J.gguf",
        "x\0.gguf",
        "",
        "a" * 2000,
        17,
        None,
    ],
)
def test_a_name_that_would_leave_the_cache_refuses_the_list(stub: HubStub, path: object) -> None:
    stub.listing = [listed("fine.gguf"), listed(path)]
    with pytest.raises(HubError, match="invalid path"):
        look(stub)


@pytest.mark.parametrize(
    ("size", "oid"), [(-1, "a" * 64), ("10", "a" * 64), (10, "../../x"), (10, "A" * 64), (10, None), (None, "a" * 64)]
)
def test_sizes_and_hashes_are_checked(stub: HubStub, size: object, oid: object) -> None:
    stub.listing = [listed("x.gguf", size, oid)]
    with pytest.raises(HubError, match="without size or hash"):
        look(stub)


def test_a_link_in_a_listing_is_no_file(stub: HubStub) -> None:
    stub.listing = [{**listed("../up.gguf"), "type": "symlink"}, listed("fine.gguf")]
    hub = Hub(stub.endpoint)
    assert [f.path for f in hub.files(TARGET_REPO, hub.info(TARGET_REPO, "main").commit)] == ["fine.gguf"]


@pytest.mark.parametrize("listing", [{"a": 1}, "text", 7, None])
def test_a_list_that_is_none(stub: HubStub, listing: object) -> None:
    stub.listing = listing if listing is not None else {}
    with pytest.raises(HubFailed, match="does not list files like the Hub"):
        look(stub)


def test_endless_lists_are_cut_short(stub: HubStub) -> None:
    stub.listing = [listed(f"{n}.gguf") for n in range(MAX_FILES + 1)]
    with pytest.raises(HubError, match=r"more than"):
        look(stub)
    stub.listing = ["x" * 100] * (MAX_PAGE_BYTES // 100)
    with pytest.raises(HubError, match=r"more than 8 MB"):
        look(stub)


def test_deep_json_is_no_crash(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setattr(json, "dumps", lambda _: "[" * 200_000)
    with pytest.raises(HubFailed, match="did not respond with JSON"):
        look(stub)


@pytest.mark.parametrize("header", ["X-Linked-Size", "X-Linked-Etag"])
def test_an_answer_without_size_or_hash(stub: HubStub, header: str) -> None:
    stub.faults.append(Fault(path=TARGET, method="HEAD", kind="nohdr", headers={header: ""}))
    with pytest.raises(HubFailed, match="gives neither size nor hash"):
        look(stub)


def test_something_else_than_a_hub(stub: HubStub) -> None:
    stub.faults.append(Fault(path="/api/", kind="status", status=200))
    with pytest.raises(HubFailed, match="does not respond like the Hub"):
        look(stub)


def test_errors_in_odd_forms_are_errors_in_words(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub takes the body of an error for an object."""
    import json

    monkeypatch.setattr(json, "dumps", lambda _: "[1, 2]")
    stub.faults.append(Fault(path="/api/", kind="status", status=500))
    with pytest.raises(HubFailed, match="responded with status 500"):
        look(stub)


def test_offline_mode_asks_nothing(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from specdec_cli.errors import NotHere

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotHere, match="HF_HUB_OFFLINE is set"):
        look(stub)
    assert stub.log == []
    assert os.environ.get("HF_HUB_OFFLINE") is None


def test_endless_pages_end(stub: HubStub) -> None:
    stub.listing = []
    again = {"Link": f'<{stub.endpoint}/api/models/acme/target-GGUF/tree/x>; rel="next"'}
    stub.faults.append(Fault(path="/tree/", kind="status", status=200, headers=again, times=-1))
    with pytest.raises(HubError):
        look(stub)
    assert len(stub.log) < 2 * MAX_PAGES


def test_the_body_of_an_error_is_left_alone() -> None:
    class Talks(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(500)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Talks) as address, pytest.raises(HubFailed, match="status 500"):
        Hub(address, stall_seconds=2).info(TARGET_REPO, "main")


def test_a_signed_address_is_never_shown(stub: HubStub) -> None:
    hub = Hub(stub.endpoint, stall_seconds=2)
    place = replace(
        hub.place(TARGET_REPO, hub.info(TARGET_REPO, "main").commit, TARGET), url=f"{stub.cdn_base}/x?Sig=SECRET"
    )
    with pytest.raises(HubError) as caught:
        hub.read(place, 0, 4)
    assert "SECRET" not in f"{caught.value} {caught.value.hint}"


def test_a_token_that_cannot_be_sent(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_тест")
    assert failure(stub, NeedsToken)[0] == "Your token contains an invalid character."


def test_an_endpoint_that_is_no_address_is_not_tried_again() -> None:
    with pytest.raises(HubError, match="is not a valid Hub address") as caught:
        Hub("ftp:/hub").info(TARGET_REPO, "main")
    assert not caught.value.is_transient


NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "Sun, 29 Nov 2026 12:02:00 GMT"}, 120.0),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "²"}, None),
        ({"retry-after": "soon"}, None),
        ({"ratelimit": '"api";r=0;t=55'}, 55.0),
        ({"ratelimit": '"api";r=9;t=55'}, None),
        ({}, None),
    ],
)
def test_how_long_a_server_wants_to_be_left_alone(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def test_warnings_of_the_server_are_not_for_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import logging

    from specdec_cli.hub.client import open_hub as opened

    opened()
    logging.get_logger("huggingface_hub.utils._http").warning("\x9b31mred")
    assert capsys.readouterr().err == ""
