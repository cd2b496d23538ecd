"""`specdec serve` as a process: where it listens, its end, and command lines that are refused."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import CALM, COMMAND, PATIENCE, Models, inside, json_inside

MESSAGES = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@contextmanager
def server(*arguments: object, **env: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """The process and its port; it is killed if it does not end by itself."""
    command = [*COMMAND, "serve", *map(str, arguments), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **CALM, **env})
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)/v1", line):
                yield process, int(found[1])
                break
        else:
            pytest.fail(f"it ended with {process.wait(PATIENCE)}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(port: int, **fields: object) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({"messages": MESSAGES, **fields})
    connection.request("POST", "/v1/chat/completions", body, {"authorization": "Bearer key"})
    return connection.getresponse()


def test_a_request_a_line_and_an_end_that_finishes_answers(models: Models) -> None:
    run = json_inside(models.endless_chat, "a", "-n", 30, "--seed", 4, "--temp", 0.5).document
    with server(models.endless_chat, "--temp", 0.5, "--plain", SPECDEC_API_KEY="key") as (process, port):
        response = ask(port, stream=True, max_tokens=30, seed=4)
        first = response.readline()
        process.send_signal(signal.SIGTERM)
        text = (first + response.read()).decode()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        log = process.stderr.read()
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == run["text"]
    assert text.endswith("data: [DONE]\n\n")
    assert re.search(r"^\d\d:\d\d:\d\d /v1/chat/completions · ok · prompt \d+ · 30 tokens", log, re.MULTILINE)


def test_a_second_signal_ends_the_answer_and_says_so(models: Models) -> None:
    with server(models.endless_chat, "--ctx", 16384, "--draft", "none", "--grace", 600) as (process, port):
        response = ask(port, stream=True)
        response.readline()
        process.send_signal(signal.SIGINT)
        refused = False
        while not refused:  # the first signal has arrived when nobody is let in any more
            try:
                refused = ask(port).status == 503
            except OSError:
                refused = True
        process.send_signal(signal.SIGINT)
        text = response.read().decode()
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    assert '"type":"unavailable_error"' in text
    assert "[DONE]" not in text


def test_what_cannot_be_served(models: Models, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = inside("serve", models.ring, "--port", taken.getsockname()[1])
        assert (done.code, "Cannot listen at 127.0.0.1" in done.err) == (2, True)
    for arguments, code, words in (
        ((models.ring, "--host", "1.2.3.4"), 2, "Cannot listen"),
        ((models.ring, "--api-key", ""), 2, "--api-key needs a key"),
        ((models.ring, "--cache-ram", "much"), 2, "--cache-ram"),
        ((models.ring, "--port", "99999"), 2, "port"),
        ((tmp_path / "none.gguf", "--port", 0), 3, "none.gguf"),
    ):
        done = inside("serve", *arguments)
        assert (done.code, words in done.err) == (code, True), done.err
