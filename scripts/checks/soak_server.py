"""A soak of `specdec serve`: good requests among bad ones, clients that go away and clients that read slowly.

    python -m scripts.checks.soak_server [TARGET] [--draft DRAFT] [-n 1000] [--clients 8] [--seed 0]

Without a target it serves a tiny planted pair. Every good request has a seed, and its text is compared with that of
`specdec_cli.open`, which nothing else was asked of before. One request in four goes wrong on purpose: a body that is no
JSON, fields of wrong types, 10 MB of text, a client that leaves while it waits, while the prompt is read or while the
answer comes. Some clients read their streams byte by byte.

Prints counts, the server's memory over time, and how long it computed on after a client had left; ends with 1 if an
answer was lost or is another one's, or if an error was not told as one.
"""

import argparse
import contextlib
import http.client
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import specdec_cli
from tests.cli import Models

PATIENCE = 300.0
PROMPTS = tuple(f"a b c {' '.join(letters)}" for letters in ("d e f g", "h i j", "k l m n o p", "q", "r s t"))
SEEDS = 4
N_TOKENS = 24
WRONG = (
    b"{",
    b"\xff\x00",
    b"[1, 2]",
    b'{"prompt": ' + b"[" * 5000,
    b'{"prompt": 3}',
    b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "a", "n": -1}',
    b'{"prompt": "a", "logit_bias": [1]}',
    b'{"prompt": "a", "stop": {"a": 1}}',
    b'{"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 4}}}}',
    b'{"prompt": [99999999]}',
    b'{"prompt": "a", "mirostat": 2}',
    b'{"prompt": "\\ud800"}',
)


@dataclass
class Soak:
    """What came of it, counted by all clients."""

    port: int
    expected: dict[tuple[str, int], str]
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, finding: str | None = None) -> None:
        with self.lock:
            self.counts[what] += 1
            if finding is not None:
                self.findings.append(f"{what}: {finding}")

    def one(self, choice: random.Random) -> None:
        """A request of some kind."""
        if choice.random() < 0.75:
            self._good(choice)
            return
        choice.choice((self._wrong, self._large, self._leaves, self._leaves))(choice)

    def _good(self, choice: random.Random) -> None:
        prompt, seed = choice.choice(list(self.expected))
        asked = {"prompt": prompt, "seed": seed, "max_tokens": N_TOKENS}
        stream = choice.random() < 0.5
        response = self._post(json.dumps({**asked, "stream": stream}).encode())
        if response.status == 503:
            self.count("refused: queue full")
            time.sleep(0.05)
            return
        text = _slowly(response) if stream and choice.random() < 0.3 else response.read().decode()
        if response.status != 200:
            self.count("good request failed", f"{response.status} {text[:200]}")
            return
        found = _streamed(text) if stream else json.loads(text)["choices"][0]["text"]
        right = found == self.expected[prompt, seed]
        kind = "streamed" if stream else "whole"
        self.count(f"answered, {kind}" if right else "another text", None if right else f"{asked} {found!r}")

    def _wrong(self, choice: random.Random) -> None:
        self._refused(choice.choice(WRONG), "malformed")

    def _large(self, choice: random.Random) -> None:
        del choice
        self._refused(json.dumps({"prompt": "word " * 2_000_000}).encode(), "10 MB")

    def _refused(self, body: bytes, kind: str) -> None:
        response = self._post(body)
        text = response.read().decode()
        if response.status == 503:  # what only the worker can judge has to wait for it
            self.count("refused: queue full")
            return
        told = response.status == 400 and "message" in json.loads(text)["error"]
        self.count(f"{kind}, refused" if told else f"{kind}, not refused", None if told else text[:200])

    def _leaves(self, choice: random.Random) -> None:
        asked = {"prompt": choice.choice(PROMPTS) * 20, "max_tokens": 400, "stream": choice.random() < 0.5}
        with _sent(self.port, json.dumps(asked).encode()) as connection:
            connection.settimeout(choice.choice((0.001, 0.05, 0.3)))
            with contextlib.suppress(TimeoutError):
                connection.recv(100)
        self.count("left")

    def _post(self, body: bytes) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", body)
        return connection.getresponse()


def _slowly(response: http.client.HTTPResponse) -> str:
    data = b""
    while part := response.read(40):
        data += part
        time.sleep(0.002)
    return data.decode()


def _streamed(text: str) -> str:
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(part["choices"][0]["text"] for part in parts)


def _sent(port: int, data: bytes) -> socket.socket:
    """A connection on which a request has been sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return connection


def _running(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^specdec:num_requests_running (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def cancel_seconds(port: int, prompt: str, wait: float) -> float:
    """How long the server computes on after a client has left, alone with it for `wait` seconds."""
    with _sent(port, json.dumps({"prompt": prompt, "max_tokens": 100_000}).encode()):
        while not _running(port):
            time.sleep(0.001)
        time.sleep(wait)
    left = time.perf_counter()
    while _running(port):
        time.sleep(0.001)
    return time.perf_counter() - left


def memory_mb(pid: int) -> float:
    """What the process holds now."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def served(arguments: Sequence[str]) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """The process and its port."""
    command = [sys.executable, "-m", "specdec_cli", "serve", *arguments, "--port", "0", "--queue", "6", "--plain"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)/v1", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield process, int(found[1])
                break
        else:
            raise SystemExit(f"The server ended with {process.wait()}.")
    finally:
        process.terminate()
        process.wait()


def expected_texts(target: Path, draft: Path | None) -> dict[tuple[str, int], str]:
    """By prompt and seed."""
    found = {}
    with specdec_cli.open(target, draft=draft, say=print) as pair:
        for prompt in PROMPTS:
            for seed in range(SEEDS):
                found[prompt, seed] = pair.generate(prompt, seed=seed, max_tokens=N_TOKENS).text
    return found


def soak(soak_: Soak, process: "subprocess.Popen[str]", n: int, clients: int, seed: int) -> list[float]:
    """Send all requests; the server's memory after each tenth of them, in MB."""
    numbers = iter(range(n))
    memory: list[float] = []

    def client() -> None:
        while True:
            with soak_.lock:
                i = next(numbers, None)
                if i is not None and i % max(n // 10, 1) == 0:
                    memory.append(memory_mb(process.pid))
            if i is None:
                return
            try:
                soak_.one(random.Random(f"{seed} {i}"))
            except (OSError, http.client.HTTPException, ValueError) as error:
                soak_.count("lost", f"request {i}: {type(error).__name__} {error}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*memory, memory_mb(process.pid)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        target, draft = options.target, options.draft
        if target is None:
            models = Models(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            target, draft = models.words, models.draft
        texts = expected_texts(target, draft)
        arguments = [str(target), *(["--draft", str(draft)] if draft is not None else [])]
        process, port = stack.enter_context(served(arguments))
        began = time.perf_counter()
        found = Soak(port, texts)
        memory = soak(found, process, options.n, options.clients, options.seed)
        seconds = time.perf_counter() - began
        while _running(port):
            time.sleep(0.01)
        cancels = [cancel_seconds(port, prompt, wait) for prompt in ("a", "a b " * 900) for wait in (0.0, 0.2) * 5]
    print(f"{options.n} requests of {options.clients} clients in {seconds:.0f} s")
    for what, count in sorted(found.counts.items()):
        print(f"  {count:5}  {what}")
    print(f"memory in MB after each tenth: {', '.join(f'{one:.0f}' for one in memory)}")
    print(f"computing after a client has left: median {statistics.median(cancels):.3f} s, longest {max(cancels):.3f} s")
    for finding in found.findings:
        print(finding)
    sys.exit(1 if found.findings else 0)


if __name__ == "__main__":
    main()
