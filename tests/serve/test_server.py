"""The server over HTTP: shapes, streams, errors, keys, clients that go away."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from specdec_cli.serve.app import HttpSettings
from tests.cli import Models, json_inside
from tests.serving import PATIENCE, Running, serving, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def words(models: Models) -> Iterator[Running]:
    with serving(models.words, models.draft) as found:
        yield found


@pytest.fixture(scope="module")
def chat(models: Models) -> Iterator[Running]:
    with serving(models.chat) as found:
        yield found


@pytest.fixture(scope="module")
def slow(models: Models) -> Iterator[Running]:
    """Writes without end."""
    settings = HttpSettings(ping_seconds=0.05)
    with serving(models.endless_chat, k=0, n_ctx=16384, queue=1, http_settings=settings) as found:
        yield found


def test_a_seed_gives_the_text_of_run_whatever_was_asked_before(words: Running, models: Models) -> None:
    run = json_inside(models.words, "a b c", "--raw", "--seed", 7, "-n", 40, "--draft", models.draft).document
    asked = {"prompt": "a b c", "seed": 7, "max_tokens": 40}
    for other in ("a b c d", "x y", "a b"):
        _, found = words.post(COMPLETIONS, asked)
        assert found["choices"][0] == {"index": 0, "text": run["text"], "logprobs": None, "finish_reason": "length"}
        words.post(COMPLETIONS, {"prompt": other, "max_tokens": 9, "temperature": 1.5})
    parts = words.stream(COMPLETIONS, asked)
    assert "".join(part["choices"][0]["text"] for part in parts[:-1]) == run["text"]


def test_the_shape_of_a_completion(words: Running) -> None:
    status, found = words.post(COMPLETIONS, {"prompt": "a b", "max_tokens": 20, "seed": 1, "model": "anything"})
    assert status == 200
    assert found["object"] == "text_completion"
    assert found["model"] == "tiny"
    assert found["id"].startswith("cmpl-")
    usage, timings = found["usage"], found["timings"]
    assert usage["completion_tokens"] == timings["predicted_n"] == 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + 20
    assert usage["prompt_tokens"] == timings["cache_n"] + timings["prompt_n"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    assert 0 < timings["draft_n_accepted"] < timings["draft_n"]
    assert timings["predicted_per_second"] > 0


def test_the_shape_of_a_chat(chat: Running) -> None:
    _, found = chat.post(CHAT, {"messages": MESSAGES})
    assert found["object"] == "chat.completion"
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " a b c d e", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_a_stream_of_a_chat(chat: Running) -> None:
    *parts, counts, done = chat.stream(CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert counts["choices"] == []
    assert counts["usage"]["completion_tokens"] == 6
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == " a b c d e"
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert "timings" in parts[-1]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert len({part["id"] for part in parts}) == 1


def test_variables_of_the_template(chat: Running) -> None:
    asked = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": True}}
    assert chat.post(CHAT, asked)[1]["choices"][0]["message"]["content"] == " b c d e"
    assert chat.post("/apply-template", asked)[1]["prompt"].endswith("assistant:+")


def test_a_system_message_of_the_server_is_for_chats_without_one(models: Models) -> None:
    with serving(models.chat, system="be brief") as found:
        assert "system:be brief" in found.post("/apply-template", {"messages": MESSAGES})[1]["prompt"]
        own = [{"role": "developer", "content": "own"}, *MESSAGES]
        prompt = found.post("/apply-template", {"messages": own})[1]["prompt"]
    assert "be brief" not in prompt
    assert "system:own" in prompt


def test_several_answers_have_seeds_that_follow_each_other(words: Running) -> None:
    asked = {"prompt": ["a b", "c d"], "max_tokens": 10, "n": 2, "seed": 5}
    choices = words.post(COMPLETIONS, asked)[1]["choices"]
    alone = [
        words.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 10, "seed": seed})[1]["choices"][0]["text"]
        for prompt in ("a b", "c d")
        for seed in (5, 6)
    ]
    assert [choice["text"] for choice in choices] == alone
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    texts = ["", "", "", ""]
    for part in words.stream(COMPLETIONS, asked)[:-1]:
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == alone


def test_stop_strings(chat: Running) -> None:
    _, found = chat.post(CHAT, {"messages": MESSAGES, "stop": ["c d"]})
    assert found["choices"][0]["message"]["content"] == " a b "
    parts = chat.stream(CHAT, {"messages": MESSAGES, "stop": "c d"})[:-1]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == " a b "


def test_log_probabilities_of_a_chat(chat: Running) -> None:
    asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    content = chat.post(CHAT, asked)[1]["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in content] == [" a", " b", " c", " d", " e"]
    assert all(abs(one["logprob"]) < 0.01 for one in content)
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    assert content[0]["bytes"] == [32, 97]
    parts = chat.stream(CHAT, asked)[:-1]
    streamed = [one for part in parts if (found := part["choices"][0]["logprobs"]) for one in found["content"]]
    assert [one["token"] for one in streamed] == [one["token"] for one in content]


def test_an_echo_with_the_prompts_log_probabilities(models: Models) -> None:
    """What lm-eval asks for, by ids: more of them than one pass has rows."""
    with serving(models.ring) as server:
        ids = server.post("/tokenize", {"content": "a b c d e a b c a", "add_special": True})[1]["tokens"]
        asked = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
        choice = server.post(COMPLETIONS, asked)[1]["choices"][0]
        parts = server.stream(COMPLETIONS, asked)[:-1]
    logprobs = choice["logprobs"]
    n = len(ids)
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == n + 1
    assert logprobs["token_logprobs"][0] is None
    assert [one > -0.01 for one in logprobs["token_logprobs"][1:]] == [True] * (n - 2) + [False, True]
    assert choice["text"].endswith(" a b")
    assert "".join(part["choices"][0]["text"] for part in parts) == choice["text"]
    assert [one for part in parts for one in part["choices"][0]["logprobs"]["tokens"]] == logprobs["tokens"]
    assert [one for part in parts for one in part["choices"][0]["logprobs"]["text_offset"]] == logprobs["text_offset"]


def test_structured_output(words: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for seed in range(2):
        asked = {"prompt": "a", "seed": seed, "response_format": form}
        text = words.post(COMPLETIONS, asked)[1]["choices"][0]["text"]
        assert json.loads(text)["n"] in (1, 2)
    assert words.post(COMPLETIONS, {"prompt": "a", "grammar": 'root ::= "yes"'})[1]["choices"][0]["text"] == "yes"


TOOL = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_tool_that_must_be_called(chat: Running, choice: object) -> None:
    asked = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "temperature": 0}
    found = chat.post(CHAT, asked)[1]["choices"][0]
    (call,) = found["message"]["tool_calls"]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    assert (call["type"], call["function"]["name"]) == ("function", "pick")
    assert json.loads(call["function"]["arguments"])["n"] in (1, 2)
    parts = chat.stream(CHAT, asked)[:-1]
    deltas = [part["choices"][0]["delta"] for part in parts]
    (streamed,) = [one for delta in deltas for one in delta.get("tool_calls", ())]
    assert streamed["index"] == 0
    assert streamed["function"] == call["function"]
    assert not any(delta.get("content") for delta in deltas)


def test_the_model_is_told_of_tools_and_may_answer_in_words(chat: Running) -> None:
    asked = {"messages": MESSAGES, "tools": [TOOL]}
    found = chat.post(CHAT, asked)[1]["choices"][0]
    assert (found["message"]["content"], found["finish_reason"]) == (" a b c d e", "stop")
    assert '"pick"' in chat.post("/apply-template", asked)[1]["prompt"]
    results = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "pick", "arguments": '{"n": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
    ]
    prompt = chat.post("/apply-template", {"messages": results, "tools": [TOOL]})[1]["prompt"]
    assert '{"name": "pick", "arguments": {"n": 1}}' in prompt
    assert "<tool_response>\none" in prompt


def test_tokens_there_and_back(words: Running) -> None:
    ids = words.post("/tokenize", {"content": " a b"})[1]["tokens"]
    assert words.post("/detokenize", {"tokens": ids})[1]["content"].strip() == "a b"
    pieces = words.post("/tokenize", {"content": " é", "with_pieces": True})[1]["tokens"]
    assert [195] in [one["piece"] for one in pieces]


def test_what_the_server_says_of_itself(words: Running) -> None:
    assert words.get("/health") == (200, {"status": "ok"})
    (model,) = words.get("/v1/models")[1]["data"]
    assert model["id"] == "tiny"
    assert model["meta"]["n_ctx"] == 512
    assert words.get("/v1/models/tiny")[1] == model
    assert words.get("/v1/models/other")[0] == 404
    props = words.get("/props")[1]
    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8


def test_metrics(words: Running) -> None:
    words.post(COMPLETIONS, {"prompt": "a b", "max_tokens": 20})
    text = words.get("/metrics")[1]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["specdec:generation_tokens_total"]) >= 20
    drafts = float(values["specdec:spec_decode_num_drafts_total"])
    assert 0 < drafts < float(values["specdec:spec_decode_num_draft_tokens_total"])
    by_position = float(values['specdec:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'])
    assert by_position <= float(values["specdec:spec_decode_num_accepted_tokens_total"])
    assert values["specdec:num_requests_waiting"] == "0"
    assert 0 < float(values["specdec:spec_decode_acceptance_rate"]) < 1


def test_reports_tell_counts_and_no_text(words: Running) -> None:
    words.post(COMPLETIONS, {"prompt": "a secret word", "max_tokens": 5})
    until(lambda: words.reports)
    line = str(words.reports[-1])
    assert "/v1/completions · ok · prompt " in line
    assert "5 tokens" in line
    assert "secret" not in line
    words.post(COMPLETIONS, {"prompt": "a secret word", "mirostat": 2})
    until(lambda: "error 400" in str(words.reports[-1]))


@pytest.mark.parametrize(
    ("path", "body", "status", "words_"),
    [
        (CHAT, b"{", 400, "not valid JSON"),
        (CHAT, b"\xff\xfe", 400, "not valid JSON"),
        (CHAT, b"[]", 400, "JSON object"),
        (CHAT, b'{"messages": [{"role": "user", "content": NaN}]}', 400, "no number"),
        (CHAT, b'{"max_tokens": ' + b"9" * 5000 + b"}", 400, "not valid JSON"),
        (CHAT, b'{"a": ' + b"[" * 100_000, 400, "nested"),
        (CHAT, {"messages": [{"role": "king", "content": "a"}]}, 400, "role"),
        (CHAT, {"messages": ["a"]}, 400, "message"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "no content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
        (CHAT, {"messages": MESSAGES, "mirostat": 1}, 400, "mirostat is not supported"),
        (CHAT, {"messages": MESSAGES, "temperature": -1}, 400, "temperature"),
        (CHAT, {"messages": MESSAGES, "logit_bias": {"99999": 1}}, 400, "token id"),
        (CHAT, {"messages": MESSAGES, "stream": True, "grammar": "root ::= ("}, 400, "grammar"),
        (CHAT, {"messages": MESSAGES, "json_schema": {"type": "no"}}, 400, "schema"),
        (CHAT, {"messages": [{"role": "user", "content": "a " * 600}]}, 400, "leaves no room"),
        (COMPLETIONS, {"prompt": "a" * 10_000_000}, 400, "leaves no room"),
        (COMPLETIONS, {}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [99999]}, 400, "token ids"),
        ("/detokenize", {"tokens": ["a"]}, 400, "token ids"),
        ("/v1/embeddings", {}, 404, "nothing at this address"),
        ("/health", {}, 405, "method"),
    ],
)
def test_errors(chat: Running, path: str, body: object, status: int, words_: str) -> None:
    found, document = chat.post(path, body)
    assert (found, words_ in document["error"]["message"]) == (status, True), document
    assert document["error"].keys() >= {"message", "type", "param", "code"}


def test_a_prompt_that_is_too_long_says_so_as_openai_does(chat: Running) -> None:
    error = chat.post(CHAT, {"messages": [{"role": "user", "content": "a " * 600}]})[1]["error"]
    assert (error["code"], error["type"], error["n_ctx"]) == (
        "context_length_exceeded",
        "exceed_context_size_error",
        512,
    )


def test_a_model_without_a_template_completes_and_does_not_chat(words: Running) -> None:
    status, found = words.post(CHAT, {"messages": MESSAGES})
    assert (status, "no chat template" in found["error"]["message"]) == (400, True)


def test_a_body_that_is_too_large(models: Models) -> None:
    with serving(models.ring, http_settings=HttpSettings(most_bytes=1000)) as server:
        status, found = server.post(COMPLETIONS, b" " * 2000)
        assert (status, "larger than 1,000 bytes" in found["error"]["message"]) == (413, True)


def test_keys_and_origins(models: Models) -> None:
    settings = HttpSettings(keys=["one", "two"], origins=["http://page.example"])
    with serving(models.ring, http_settings=settings) as server:
        asked = {"prompt": "a", "max_tokens": 1}
        assert server.post(COMPLETIONS, asked)[0] == 401
        assert server.post(COMPLETIONS, asked, Authorization="Bearer three")[0] == 401
        assert server.post(COMPLETIONS, asked, Authorization="Bearer é".encode().decode("latin-1"))[0] == 401
        assert server.post(COMPLETIONS, asked, Authorization="Bearer two")[0] == 200
        assert server.post(COMPLETIONS, asked, **{"X-Api-Key": "one"})[0] == 200
        assert server.get("/health")[0] == 200
        assert server.get("/metrics")[0] == 401
        page = {"Origin": "http://page.example", "Authorization": "Bearer one"}
        answer = server.send("POST", COMPLETIONS, asked, page)
        assert answer.headers["access-control-allow-origin"] == "http://page.example"
        assert server.post(COMPLETIONS, asked, **{**page, "Origin": "http://evil.example"})[0] == 403
        asks_first = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
        assert server.send("OPTIONS", COMPLETIONS, None, asks_first).status == 200


def test_web_pages_are_kept_out_where_nobody_let_them_in(words: Running) -> None:
    assert words.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, Origin="http://evil.example")[0] == 403


def raw(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which the request has been sent."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_answer(slow: Running, stream: bool) -> None:
    n = len(slow.reports)
    with raw(slow, {"messages": MESSAGES, "stream": stream}) as connection:
        until(lambda: slow.worker.is_busy)
        found = b""
        while stream and b'"content":" a"' not in found:
            found += connection.recv(1000)
    until(lambda: not slow.worker.is_busy)
    until(lambda: len(slow.reports) > n)
    assert slow.reports[-1].outcome == "cancelled"
    assert slow.post(CHAT, {"messages": MESSAGES, "max_tokens": 3})[0] == 200


def test_a_full_queue_is_told_and_who_waits_hears_that_the_server_is_there(slow: Running) -> None:
    with raw(slow, {"messages": MESSAGES}):
        until(lambda: slow.worker.is_busy)
        with raw(slow, {"messages": MESSAGES, "stream": True}) as waits:
            until(lambda: slow.worker.n_waiting == 1)
            response = slow.send("POST", CHAT, {"messages": MESSAGES})
            assert response.status == 503
            assert response.headers["retry-after"] == "5"
            assert json.loads(response.read())["error"]["type"] == "unavailable_error"
            found = b""
            while b": still here\n\n" not in found:
                found += waits.recv(1000)
        until(lambda: slow.worker.n_waiting == 0)
    until(lambda: not slow.worker.is_busy)


def test_a_slow_reader_holds_nobody_up(slow: Running) -> None:
    asked = {"messages": MESSAGES, "stream": True, "max_tokens": 60, "logprobs": True, "top_logprobs": 20}
    with raw(slow, asked):
        until(lambda: slow.worker.is_busy)
        assert slow.post(CHAT, {"messages": MESSAGES, "max_tokens": 3})[0] == 200
