"""Servers that are slow, swollen or point to where they should not, and secrets in addresses."""

import gzip
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpcore2
import pytest

from specdec_cli.errors import HubError, HubFailed, NoNetwork, ProxyFailed, SpecdecError, Stalled
from specdec_cli.hub import sockets
from specdec_cli.hub.client import MAX_PAGE_BYTES, Hub
from specdec_cli.hub.http_errors import retry_after, when
from specdec_cli.hub.sockets import LEAST_RATE, Watch, literal_addresses, local_kind
from specdec_cli.hub.transport import proxy_for
from tests.hubstub import Fault, HubStub
from tests.planted import PlantedPair
from tests.secrets import PASSWORD, TOKEN
from tests.shop import TARGET, TARGET_REPO, fill

STALL = 0.6


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def stub(tmp_path: Path, planted_pair: PlantedPair) -> Iterator[HubStub]:
    fill(tmp_path / "shop", planted_pair.target, planted_pair.draft)
    with HubStub(tmp_path / "shop") as stub:
        yield stub


def look(stub: HubStub, endpoint: str | None = None, stall: float = STALL) -> bytes:
    hub = Hub(endpoint or stub.endpoint, stall_seconds=stall)
    info = hub.info(TARGET_REPO, "main")
    hub.files(TARGET_REPO, info.commit)
    return hub.read(hub.place(TARGET_REPO, info.commit, TARGET), 0, 10_000)


# --- slow -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize(
    ("path", "method"), [("/revision/", "GET"), ("/tree/", "GET"), ("/resolve/", "*"), ("/cdn/", "GET")]
)
def test_a_byte_now_and_then_is_given_up(stub: HubStub, part: str, path: str, method: str) -> None:
    stub.faults.append(Fault(path=path, method=method, kind="drip", after=0.02, headers={"part": part}, times=-1))
    began = time.monotonic()
    with pytest.raises(HubError) as caught:
        look(stub)
    if (path, part) not in {("/resolve/", "body"), ("/cdn/", "body")}:  # their status and headers already tell
        assert type(caught.value) is Stalled
    assert time.monotonic() - began < 10


def test_a_file_that_comes_too_slowly_is_given_up(stub: HubStub) -> None:
    stub.faults.append(Fault(path="/cdn/", kind="slow", after=LEAST_RATE // 4, times=-1))
    with pytest.raises(Stalled, match=r"less than 1 KB per second|sent nothing for"):  # a busy machine leaves gaps
        look(stub)


def test_a_file_that_comes_slowly_but_comes_is_waited_for(stub: HubStub, planted_pair: PlantedPair) -> None:
    stub.faults.append(Fault(path="/cdn/", kind="slow", after=8 * LEAST_RATE, times=-1))
    assert look(stub, stall=10) == planted_pair.target.read_bytes()[:10_000]


class Clock:
    """Time that passes only while somebody reads."""

    def __init__(self) -> None:
        self.now = 0.0


class Trickle(httpcore2.NetworkStream):
    """Gives `n` bytes after `seconds` at each read, or nothing within the reader's patience."""

    def __init__(self, clock: Clock, n: int, seconds: float) -> None:
        self._clock, self._n, self._seconds = clock, n, seconds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        patience = float("inf") if timeout is None else timeout
        self._clock.now += min(self._seconds, patience)
        if self._seconds > patience:
            raise httpcore2.ReadTimeout
        return bytes(min(self._n, max_bytes))


def read_on(watch: Watch, stream: Trickle) -> None:
    while True:
        watch.read(stream, 1 << 20)


@pytest.mark.parametrize(
    ("n", "seconds", "words", "until"),
    [
        (1, 1.0, "sends less than 1 KB per second", 30),
        (1, 29.0, "did not finish its response within 30 seconds", 30),
        (0, 99.0, "hub sent nothing for 30 seconds", 30),
    ],
)
def test_headers_have_a_deadline(n: int, seconds: float, words: str, until: float) -> None:
    clock = Clock()
    watch = Watch(30.0, lambda: clock.now)
    watch.begin("hub")
    watch.sent()
    with pytest.raises(Stalled, match=words):
        read_on(watch, Trickle(clock, n, seconds))
    assert clock.now == until


def test_a_body_has_a_least_rate_and_a_deadline_and_waits_for_its_reader() -> None:
    clock = Clock()
    watch = Watch(30.0, lambda: clock.now)
    watch.begin("hub")
    watch.body(500.0)
    for _ in range(20):
        watch.read(Trickle(clock, 2 * LEAST_RATE, 1.0), 1 << 20)
        clock.now += 20  # the reader writes to a slow disk: that is not the server's time
    with pytest.raises(Stalled, match="did not finish its response within 500 seconds"):
        read_on(watch, Trickle(clock, 2 * LEAST_RATE, 1.0))
    watch.body(500.0)
    began = clock.now
    with pytest.raises(Stalled, match="less than 1 KB per second"):
        read_on(watch, Trickle(clock, LEAST_RATE // 2, 1.0))
    assert clock.now - began == 30


def test_a_name_that_is_not_resolved_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1) or [])
    began = time.monotonic()
    with pytest.raises(httpcore2.ConnectTimeout):
        sockets.resolve("hub.example", 0.1)
    assert time.monotonic() - began < 2


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NoNetwork, match=r"^Cannot reach hub\.example: no network, or unknown host\.$"):
        Hub("https://hub.example").info(TARGET_REPO, "main")


# --- swollen ----------------------------------------------------------------------------------------------


def packed(data: bytes, encoding: str) -> Fault:
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return Fault(path="/tree/", kind="raw", headers={"raw": head.encode() + data})


def test_answers_are_asked_for_as_they_are(stub: HubStub) -> None:
    look(stub)
    assert {request["encoding"] for request in stub.log} == {"identity"}


def test_an_answer_that_comes_packed_all_the_same_is_unpacked(stub: HubStub) -> None:
    stub.faults.append(packed(gzip.compress(b"[]"), "gzip"))
    assert len(look(stub)) == 10_000


def test_little_that_unpacks_to_much_is_refused(stub: HubStub) -> None:
    stub.faults.append(packed(gzip.compress(bytes(64 << 20)), "gzip"))
    tracemalloc.start()
    try:
        with pytest.raises(HubError, match="more than 8 MB"):
            look(stub)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_PAGE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "x", "gzip,"])
def test_packing_in_layers_is_refused(stub: HubStub, encoding: str) -> None:
    stub.faults.append(packed(gzip.compress(gzip.compress(bytes(1 << 20))), encoding))
    with pytest.raises(HubFailed, match="uses a content encoding"):
        look(stub)


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"[]", mtime=0)[:12]])
def test_what_cannot_be_unpacked(stub: HubStub, data: bytes) -> None:
    stub.faults.append(packed(data, "gzip"))
    with pytest.raises(HubFailed, match=r"cannot be decompressed|did not respond with JSON"):
        look(stub)


def test_a_file_that_comes_packed_is_refused_before_its_bytes(stub: HubStub) -> None:
    head = "HTTP/1.1 206 Partial\r\nContent-Encoding: gzip\r\nContent-Range: bytes 0-9999/9\r\n\r\n"
    stub.faults.append(Fault(path="/cdn/", kind="raw", headers={"raw": head}))
    with pytest.raises(HubFailed, match=r"sends target-Q8_0\.gguf compressed"):
        look(stub)


# --- elsewhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("0.0.0.0", "loopback"),
        ("0.1.2.3", "loopback"),
        ("::1", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("10.0.0.1", None),
        ("192.0.2.1", None),
        ("2001:db8::1", None),
        ("::ffff:192.0.2.1", None),
    ],
)
def test_what_reaches_only_this_machine_or_its_link(address: str, kind: str | None) -> None:
    assert local_kind(address) == kind


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost", "a.LOCALHOST.", "::1"])
def test_addresses_in_odd_spelling(host: str) -> None:
    assert {local_kind(address) for address in literal_addresses(host)} == {"loopback"}


@pytest.mark.parametrize("host", ["hub.example", "notlocalhost", "localhost.example", ""])
def test_names_are_no_addresses(host: str) -> None:
    assert literal_addresses(host) == ()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, stub: HubStub) -> None:
    """A Hub that names itself by a public address, although it is the stub: what a rebinding name would do."""
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: object, **options: object) -> object:
        known = {"hub.example": "192.0.2.1", "rebound.example": "127.0.0.1", "metadata.example": "169.254.169.254"}
        return real(known.get(host, host), *arguments, **options)  # type: ignore[call-overload]

    class Plain(httpcore2.SyncBackend):
        def connect_tcp(self, host: str, port: int, *rest: object, **options: object) -> httpcore2.NetworkStream:
            return super().connect_tcp("127.0.0.1" if host == "192.0.2.1" else host, port, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(httpcore2, "SyncBackend", Plain)
    stub.cdn_base = f"http://hub.example:{stub.cdn_base.rpartition(':')[2]}"


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("path", ["/revision/", "/tree/", "/cdn/"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "localhost", "rebound.example"]
)
def test_a_public_hub_leads_nobody_to_this_machine(stub: HubStub, path: str, host: str) -> None:
    seen = len(stub.log)
    stub.faults.append(
        Fault(path=path, kind="elsewhere", headers={"location": f"http://{host}:{stub.port}/x"}, times=-1)
    )
    with pytest.raises(HubError, match=r"redirects to .*, which is a loopback address"):
        look(stub, f"http://hub.example:{stub.port}")
    assert not [request for request in stub.log[seen:] if request["path"] == "/x"]


@pytest.mark.usefixtures("names")
def test_a_public_hub_leads_to_other_public_places(stub: HubStub) -> None:
    assert len(look(stub, f"http://hub.example:{stub.port}")) == 10_000


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]"])
def test_a_hub_on_this_machine_leads_nobody_to_the_link(stub: HubStub, host: str) -> None:
    stub.faults.append(Fault(path="/cdn/", kind="elsewhere", headers={"location": f"http://{host}/latest"}, times=-1))
    with pytest.raises(HubError, match="which is a link-local address"):
        look(stub)


def test_a_proxy_is_asked_for_no_address_of_its_own_machine(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy may be on this machine; what it is asked for may not."""
    monkeypatch.setenv("HTTP_PROXY", stub.endpoint)
    stub.cdn_base = "http://cdn.example"
    assert len(look(stub, "http://hub.example")) == 10_000
    stub.faults.append(Fault(path="/tree/", kind="elsewhere", headers={"location": "http://2130706433/x"}, times=-1))
    with pytest.raises(HubError, match="which is a loopback address"):
        look(stub, "http://hub.example")


@pytest.mark.parametrize("location", ["ftp://hub.example/x", "http://[::1", "http://hub:99999/x", "file:///etc/passwd"])
def test_a_redirect_to_what_is_no_address(stub: HubStub, location: str) -> None:
    stub.faults.append(Fault(path="/tree/", kind="elsewhere", headers={"location": location}, times=-1))
    with pytest.raises(HubError, match=r"not a valid Hub address"):
        look(stub)


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://hub:99999", "hub.example", "http://", "http://\ud800.x"])
def test_an_endpoint_that_is_no_address(endpoint: str) -> None:
    with pytest.raises(HubError, match="not a valid Hub address"):
        Hub(endpoint).info(TARGET_REPO, "main")


@pytest.mark.parametrize("proxy", ["http://[::1", "http://proxy:99999", "ftp://proxy", "http://"])
def test_a_proxy_that_is_no_address(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ProxyFailed, match="address"):
        Hub("https://hub.example").info(TARGET_REPO, "main")


def test_redirects_in_a_circle_end(stub: HubStub) -> None:
    stub.faults.append(Fault(path="/tree/", kind="elsewhere", headers={"location": "?again"}, times=-1))
    with pytest.raises(HubFailed, match="redirects too many times"):
        look(stub)


# --- secrets ----------------------------------------------------------------------------------------------


def test_a_password_in_the_endpoint_goes_to_the_endpoint_and_into_no_words(stub: HubStub) -> None:
    login = f"me:{PASSWORD}@"
    assert len(look(stub, stub.endpoint.replace("//", f"//{login}"))) == 10_000
    assert [request["auth"] for request in stub.log if "/cdn/" in request["path"]] == [False]
    assert all(request["auth"] for request in stub.log if "/cdn/" not in request["path"])
    hub = Hub(stub.endpoint.replace("//", f"//{login}"))
    assert hub.endpoint == stub.endpoint
    assert hub.page("a/b") == f"{stub.endpoint}/a/b"


@pytest.mark.parametrize("status", [200, 401, 403, 404, 429, 500])
@pytest.mark.parametrize("path", ["/revision/", "/tree/", "/resolve/", "/cdn/"])
def test_no_answer_brings_a_secret_into_an_error(
    stub: HubStub, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    stub.faults.append(Fault(path=path, method="*", kind="status", status=status, times=-1))
    with pytest.raises(HubError) as caught:
        look(stub, stub.endpoint.replace("//", f"//me:{PASSWORD}@"))
    assert "me:" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_password_of_a_proxy_stays_unsaid(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, f"http://me:{PASSWORD}@127.0.0.1:1")
    with pytest.raises(ProxyFailed, match=r"Cannot reach the proxy 127\.0\.0\.1: connection refused"):
        Hub("http://hub.example").info(TARGET_REPO, "main")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"http://me:{PASSWORD}@hub.example/x", "http://hub.example/x"),
        (f"https://{TOKEN}@hub.example is away, ask me@example", "https://hub.example is away, ask me@example"),
        (f"socks5h://me:pa@{PASSWORD}@[::1]:1", "socks5h://[::1]:1"),
        (f"'https://me:a/{PASSWORD}@hub'", "'https://hub'"),
        (f"http:/me:{PASSWORD}@hub", "http:/hub"),
        ("https://hub.example/a", "https://hub.example/a"),
        ("C:/models/a@b", "C:/models/a@b"),
    ],
)
def test_errors_leave_userinfo_out(text: str, left: str) -> None:
    error = SpecdecError(f"{text}.", hint=f"See {text}.")
    assert (str(error), error.hint) == (f"{left}.", f"See {left}.")


def test_a_token_that_cannot_be_a_header_is_not_quoted(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specdec_cli.hub.client.build_hf_headers", lambda **_: {"authorization": f"Bearer {TOKEN}\r\nX: y"}
    )
    with pytest.raises(HubError, match="Cannot send the request"):
        look(stub)


# --- numbers and names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["9" * 20, "9" * 400, "9" * 5000])
def test_any_time_that_a_server_names_is_a_date(text: str) -> None:
    assert retry_after({"retry-after": text}) == retry_after({"ratelimit": f"r=0;t={text}"})
    assert when(retry_after({"retry-after": text})).startswith("after 5")


def test_short_times_are_seconds() -> None:
    assert when(30) == "in 30 seconds"
    assert when(None) == "in a few minutes"
    assert when(1e300).startswith("after 5")


@pytest.mark.parametrize(
    "path", ["x" * 300 + ".gguf", "é" * 130 + ".gguf", "\ud800.gguf", "a/\udfffx.gguf", "a/" + "b" * 256 + "/c.gguf"]
)
def test_names_that_no_disk_can_hold_refuse_the_list(stub: HubStub, path: str) -> None:
    stub.listing = [{"type": "file", "path": path, "size": 1, "oid": "a" * 40}]
    with pytest.raises(HubError, match="invalid path"):
        look(stub)


@pytest.mark.parametrize("name", ["nul.gguf", "CON", "com1.tar", "a/LPT9.x", "aux .txt", "a./x", "a /x", "x.", "COM¹"])
def test_names_that_windows_cannot_have(stub: HubStub, name: str) -> None:
    model = name if name.endswith(".gguf") else f"{name}/x.gguf"
    stub.listing = [{"type": "file", "path": model, "size": 1, "oid": "a" * 40}]
    with pytest.raises(HubError, match="some systems do not allow"):
        look(stub)
    hub = Hub(stub.endpoint)
    stub.listing = [{"type": "file", "path": f"{name}/x.txt", "size": 1, "oid": "a" * 40}]
    assert hub.files(TARGET_REPO, hub.info(TARGET_REPO, "main").commit) == ()


def test_proxies_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "near.example")
    assert proxy_for("https://hub.example/x") == "http://proxy.example:3128"
    assert (proxy_for("http://hub.example/x"), proxy_for("https://near.example/x")) == ("", "")
