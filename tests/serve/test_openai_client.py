"""The server through OpenAI's own client: sync, async, streams, structured output, tools, errors."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import pytest
from pydantic import BaseModel

from tests.cli import Models
from tests.serving import Running, serving

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")

MESSAGES = [{"role": "user", "content": "a"}]


class Pick(BaseModel):
    n: Literal[1, 2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(Models(tmp_path_factory.mktemp("models")).chat) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> "Iterator[openai.OpenAI]":
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def test_models(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_chat(client: "openai.OpenAI") -> None:
    found = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=1)
    assert found.choices[0].message.content == " a b c d e"
    assert found.usage.completion_tokens == 6
    with_prediction = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=1, prediction={"type": "content", "content": " a b c d e"}
    )
    assert with_prediction.choices[0].message == found.choices[0].message
    assert with_prediction.usage.completion_tokens_details.accepted_prediction_tokens >= 1


def test_a_stream(client: "openai.OpenAI") -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *parts, last = stream
    assert "".join(part.choices[0].delta.content or "" for part in parts) == " a b c d e"
    assert last.usage.total_tokens > 6


def test_many_at_once(server: Running) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as client:
            answers = [client.chat.completions.create(model="tiny", messages=MESSAGES, seed=i) for i in range(6)]
            return [found.choices[0].message.content for found in await asyncio.gather(*answers)]

    assert asyncio.run(ask()) == [" a b c d e"] * 6


def test_a_completion_with_log_probabilities(client: "openai.OpenAI") -> None:
    found = client.completions.create(model="tiny", prompt="a b c", max_tokens=2, logprobs=2)
    assert found.choices[0].text == " d e"
    assert found.choices[0].logprobs.tokens == [" d", " e"]


def test_structured_output(client: "openai.OpenAI") -> None:
    found = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Pick)
    assert found.choices[0].message.parsed.n in (1, 2)


def test_a_tool(client: "openai.OpenAI") -> None:
    tools = [openai.pydantic_function_tool(Pick, name="pick")]
    asked = {"model": "tiny", "messages": MESSAGES, "tools": tools, "tool_choice": "required"}
    (call,) = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert call.function.parsed_arguments.n in (1, 2)
    with client.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.name == "pick"


def test_errors(client: "openai.OpenAI") -> None:
    with pytest.raises(openai.BadRequestError, match="not supported"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"mirostat": 2})
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a " * 600}])
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="a")
