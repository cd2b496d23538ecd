"""A Hub that lies, drips, swells and points elsewhere, against `specdec pull`: it may be refused, and nothing else.

    python -m scripts.checks.hostile_hub [--only WORD]

Each mode is one pull of a pair, in a process of its own, with half of the target fetched already. It must end within
LIMIT seconds with a documented exit code, without a traceback, without the token or the endpoint's password in what
it prints, below MEMORY bytes, and with every byte that was there still there. Then a pull from an honest Hub must go
on from those bytes and end with the right file. Waits between retries are left out (time.sleep does nothing).
Prints a line for each failure and a table of the exit codes; ends with 1 if there was a failure.
"""

import argparse
import gzip
import os
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from huggingface_hub import constants

from specdec_cli.app import main as main_of_specdec
from specdec_cli.hub.cache import RepoStore
from specdec_cli.hub.pull import Puller
from tests.hubstub import Fault, HubStub
from tests.planted import write_pair
from tests.secrets import PASSWORD, SECRETS, TOKEN
from tests.shop import DRAFT_REPO, TARGET_REPO, Buyer, fill, sha256

LIMIT = 60.0
"""Seconds. A silent server is tried six times, a second each."""
MEMORY = 400 << 20
CODES = {0, 2, 3, 4, 5, *range(20, 33)}
PHASES = {
    "info": ("/revision/", "GET"),
    "listing": ("/tree/", "GET"),
    "place": ("/resolve/", "HEAD"),
    "bytes": ("/cdn/", "GET"),
}
RESTARTS = ("bytes: norange",)
"""Where the server makes us begin again."""

STATUSES = (200, 204, 206, 301, 304, 400, 401, 403, 404, 408, 416, 418, 429, 500, 503)
REDIRECTS = (
    "?again",
    "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]/x",
    "file:///etc/passwd",
    "http://[::1",
    "http://hub:99999/",
    f"http://me:{PASSWORD}@127.0.0.1:1/x",
    "http://127.0.0.1:1/x?Signature=" + TOKEN,
    "//",
    "x" * 5000,
)
RETRY_AFTER = ("0", "-1", "1e9", "9" * 400, "Sun, 29 Nov 2099 12:00:00 GMT", "Sun, 99 Nov 9999 12:00:00 GMT", "soon")


def bomb(n_megabytes: int) -> bytes:
    """Little that unpacks to much."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(n_megabytes)) + packer.flush()


BOMB = bomb(1024)
OK = b"HTTP/1.1 200 OK\r\n"
RAW = {
    "nothing": b"",
    "noise": bytes(range(256)) * 8,
    "half a status": b"HTTP/1.1 2",
    "no status": b"HTTP/1.1 \r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "long header": OK + b"X: " + b"a" * 300_000 + b"\r\n\r\n",
    "many headers": OK + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    "odd header": OK + b"X-Error-Message: \x1b[2J\xff\r\nContent-Length: 2\r\n\r\n[]",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n[]",
    "length below zero": OK + b"Content-Length: -2\r\n\r\n[]",
    "long length": OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n[]",
    "chunk of noise": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n",
    "endless chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n[]",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "packed bomb": OK + b"Content-Encoding: gzip\r\n\r\n" + BOMB,
    "bomb in a bomb": OK + b"Content-Encoding: gzip, gzip\r\n\r\n" + gzip.compress(BOMB),
    "packed noise": OK + b"Content-Encoding: gzip\r\n\r\nnoise",
    "deep JSON": OK + b"\r\n" + b"[" * 200_000,
    "long JSON": OK + b"\r\n[" + b'"x",' * (4 << 20),
    "numbers": OK + b"\r\n[" + b"9" * 100_000 + b"]",
    "half of Unicode": OK + b'\r\n{"sha": "\\ud800", "cardData": {"license": "\\udfff"}}',
}
NAMES = (
    "../../x.gguf", "/etc/x.gguf", "a//x.gguf", "./x.gguf", "C:\\x.gguf", "x\n.gguf", "x\x1b[2J.gguf", "x\0.gguf",
    "", "x" * 300 + ".gguf", "é" * 130 + ".gguf", "\ud800.gguf", "nul.gguf", "COM1.x/y.gguf", "x /y.gguf", "x./y.gguf",
    "\u202e.gguf", 17, None, [], {},
)  # fmt: skip
SHAPES: tuple[object, ...] = (
    {}, [], "x", 7, [1], [[]], [{}], [{"type": "file"}],
    [{"type": "file", "path": "x.gguf", "size": -1, "oid": "a" * 40}],
    [{"type": "file", "path": "x.gguf", "size": 1e300, "oid": "a" * 40}],
    [{"type": "file", "path": "x.gguf", "size": 1, "oid": "../x"}],
    [{"type": "file", "path": "x.gguf", "size": 10**30, "lfs": {"oid": "a" * 64, "size": 10**30}}],
)  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """What a hostile Hub does: faults, or what it lists instead of its files."""

    name: str
    faults: tuple[Fault, ...] = ()
    listing: object = None


HONEST = Mode("an honest Hub")


@dataclass
class Outcome:
    """One pull: its exit code (None if it was killed), what it printed, how long it took and how much memory."""

    code: int | None
    text: str
    seconds: float
    peak: int
    wrongs: list[str] = field(default_factory=list)


def modes() -> Iterator[Mode]:
    """All of them."""
    for phase, (path, method) in PHASES.items():
        base = Fault(path=path, method=method, times=-1)
        for status in STATUSES:
            yield Mode(f"{phase}: status {status}", (replace(base, kind="status", status=status),))
        for location in REDIRECTS:
            fault = replace(base, kind="elsewhere", headers={"location": location})
            yield Mode(f"{phase}: redirect to {location[:40]}", (fault,))
        for wait in RETRY_AFTER:
            fault = replace(base, kind="status", status=429, headers={"Retry-After": wait})
            yield Mode(f"{phase}: Retry-After {wait[:20]}", (fault,))
        for name, data in RAW.items():
            yield Mode(f"{phase}: {name}", (replace(base, kind="raw", headers={"raw": data}),))
        for part in ("head", "body"):
            yield Mode(f"{phase}: drip of the {part}", (replace(base, kind="drip", after=0.2, headers={"part": part}),))
        yield Mode(f"{phase}: silence", (replace(base, kind="hang", after=LIMIT),))
    path, method = PHASES["bytes"]
    for kind, after in (
        ("cut", 0), ("cut", 10**5), ("reset", 10**5), ("stall", 1000), ("norange", 0), ("corrupt", 0), ("slow", 500),
    ):  # fmt: skip
        yield Mode(f"bytes: {kind}", (Fault(path=path, method=method, kind=kind, after=after, times=-1),))
    for header in ("X-Linked-Size", "X-Linked-Etag", "Location", "X-Repo-Commit"):
        fault = Fault(path="/resolve/", method="HEAD", kind="nohdr", headers={header: ""}, times=-1)
        yield Mode(f"place: without {header}", (fault,))
    for name in NAMES:
        entry = {"type": "file", "path": name, "size": 1, "oid": "a" * 40}
        yield Mode(f"listing: name {str(name)[:20]!r}", listing=[entry])
    for shape in SHAPES:
        yield Mode(f"listing: {str(shape)[:50]}", listing=shape)


class Range:
    """Where the pulls happen: an honest shop, and a cache that begins with half of the target each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pair = write_pair(folder / "models")
        self.shop = folder / "shop"
        fill(self.shop, pair.target, pair.draft)
        self.target = pair.target
        self.hash = sha256(pair.target)
        self.n_half = pair.target.stat().st_size // 2

    def judge(self, mode: Mode, n: int) -> Outcome:
        """One pull from a Hub in this mode, and one from the Hub as it should be."""
        buyer_root = self.folder / f"cache{n}"
        store = RepoStore(buyer_root, TARGET_REPO)
        part = store.incomplete(self.hash)
        part.parent.mkdir(parents=True)
        part.write_bytes(self.target.read_bytes()[: self.n_half])
        with HubStub(self.shop) as stub:
            stub.faults, stub.listing = [replace(fault) for fault in mode.faults], mode.listing
            outcome = self._pull(stub, buyer_root, login=n % 2 == 0)
            stub.faults, stub.listing = [], None
            places = (part, store.blob(self.hash), store.damaged(self.hash))
            kept = max(place.stat().st_size if place.is_file() else 0 for place in places)
            if kept < self.n_half and mode.name not in RESTARTS:
                outcome.wrongs.append(f"lost {self.n_half - kept} bytes")
            stub.log.clear()
            goes_on = part.is_file()
            buyer = Buyer(stub, buyer_root)
            if sha256(buyer.fetch()) != self.hash:
                outcome.wrongs.append("the next pull is wrong")
            if goes_on and [r for r, _ in buyer.ranges()] != [f"bytes={kept}-{self.target.stat().st_size - 1}"]:
                outcome.wrongs.append("the next pull does not resume")
        return outcome

    def _pull(self, stub: HubStub, root: Path, *, login: bool) -> Outcome:
        endpoint = stub.endpoint.replace("//", f"//me:{PASSWORD}@") if login else stub.endpoint
        with tempfile.TemporaryFile() as printed:
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                pull_and_exit(endpoint, root, printed.fileno())
            code, peak = wait(child, began + LIMIT)
            seconds = time.monotonic() - began
            printed.seek(0)
            text = printed.read().decode("utf-8", "replace")
        outcome = Outcome(code, text, seconds, peak)
        outcome.wrongs += [
            wrong
            for wrong, is_so in (
                (f"still running after {LIMIT:.0f} s", code is None),
                (f"ended with {code}", code is not None and code not in CODES),
                ("a traceback", "Traceback" in text),
                ("a secret", any(secret in text for secret in SECRETS)),
                ("control characters", "\x1b" in text),
                (f"{peak >> 20} MB", peak > MEMORY),
                ("an error without a hint", code not in (0, None) and "Hint: " not in text),
            )
            if is_so
        ]
        return outcome


def pull_and_exit(endpoint: str, root: Path, printed: int) -> NoReturn:
    """What the forked process does: the command line, as it is."""
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ |= {"HF_ENDPOINT": endpoint, "HF_TOKEN": TOKEN, "NO_PROXY": "*"}
    constants.HF_HUB_CACHE = str(root)
    Puller.__init__.__kwdefaults__["sleep"] = lambda _: None
    pair = ("--target", f"{TARGET_REPO}:Q8_0", "--draft", f"{DRAFT_REPO}:Q4_0")
    sys.argv = ["specdec", "pull", *pair, "--stall", "1", "--force"]  # this draft is as large as its target
    code = 1
    try:
        main_of_specdec()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(child: int, until: float) -> tuple[int | None, int]:
    """The exit code, None if it had to be killed, and the highest memory in bytes."""
    while time.monotonic() < until:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return None, os.wait4(child, 0)[2].ru_maxrss << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="modes whose names hold this")
    chosen = parser.parse_args().only
    codes: Counter[int | None] = Counter()
    n_wrong, slowest, highest = 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        place = Range(Path(folder))
        os.environ["SPECDEC_CONFIG"] = str(Path(folder) / "config")
        wanted = [HONEST, *(mode for mode in modes() if chosen in mode.name)]
        for n, mode in enumerate(wanted):
            outcome = place.judge(mode, n)
            codes[outcome.code] += 1
            if mode is HONEST and outcome.code != 0:
                outcome.wrongs.append("an honest Hub does not serve")
            slowest, highest = max(slowest, outcome.seconds), max(highest, outcome.peak)
            if outcome.wrongs:
                n_wrong += 1
                print(f"{mode.name}: {', '.join(outcome.wrongs)}\n{outcome.text}", flush=True)
    table = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items(), key=lambda item: item[0] or 0))
    print(f"{len(wanted)} pulls, {n_wrong} with a fault; exit codes {table}")
    print(f"longest {slowest:.1f} s, most memory {highest >> 20} MB")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
