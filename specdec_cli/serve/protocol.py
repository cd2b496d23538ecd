"""Requests of OpenAI's interface, and llama-server's additions, as settings of an answer. Pure functions.

Unknown fields are ignored, as by other servers. Known ones that would change the text and are not supported are
refused: the text would not be the one that was asked for.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.planning.request import Sampling
from specdec_cli.serve.api_error import ApiError, invalid, unsupported
from specdec_cli.serve.fields import Fields
from specdec_cli.serve.tools import Tools, read_tools
from specdec_cli.structured.source import GrammarSource

_MOST_ANSWERS = 128
_MOST_STOPS = 64
_MOST_LOGPROBS = 20
_LONGEST_PREDICTION = 1 << 20
_LARGEST_BIAS = 1e30
"""Logits are float32; sums with it must not be infinite."""
_NO_LIMIT = 2**31 - 1

_OFF: Mapping[str, tuple[Any, ...]] = {
    "adaptive_target": (-1,),
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "dynatemp_range": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "lora": ([],),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_indent": (0,),
    "samplers": (),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "suffix": ("",),
    "t_max_predict_ms": (0, -1),
    "thinking_token_budget": (-1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Fields that would change the text and are not supported, with the values that leave it as it is."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing: the command line's settings. `new_seed` is asked where it gives none."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    new_seed: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to write the answers to a request, and how to tell them. Answer i has the seed of `sampling` plus i."""

    sampling: Sampling
    max_tokens: int | None
    stop_strings: tuple[str, ...]
    n: int
    n_logprobs: int | None
    stream: bool
    include_usage: bool
    prediction: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for chat completions. `variables` are for the template."""

    wanted: Wanted
    messages: Sequence[Any]
    tools: Tools
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for completions: each prompt is text or token ids. With `echo` the answers begin with the prompts."""

    wanted: Wanted
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool


def chat_request(body: Any, defaults: Defaults) -> ChatRequest:
    """Raises ApiError (400), UsageError for samplers out of range."""
    fields = Fields(body)
    tools = read_tools(fields)
    n_likeliest = fields.whole("top_logprobs", most=_MOST_LOGPROBS)
    if n_likeliest is not None and not fields.flag("logprobs"):
        raise invalid("logprobs", "true where top_logprobs is given")
    n_logprobs = (n_likeliest or 0) if fields.flag("logprobs") else None
    wanted = _wanted(fields, defaults, n_logprobs, tools.grammar)
    messages = fields.items("messages")
    if not messages:
        raise invalid("messages", "a list of at least one message")
    return ChatRequest(wanted, messages, tools, template_variables(fields))


def template_variables(fields: Fields) -> dict[str, Any]:
    """What the chat template is given beside messages and tools."""
    effort = fields.text("reasoning_effort")
    given = dict(fields.table("chat_template_kwargs") or {})
    return {**({"reasoning_effort": effort} if effort is not None else {}), **given}


def completion_request(body: Any, defaults: Defaults, n_vocab: int) -> CompletionRequest:
    """Raises ApiError (400), UsageError for samplers out of range."""
    fields = Fields(body)
    n_logprobs = None
    if fields.get("logprobs") is not None and fields.get("logprobs") is not False:
        n_logprobs = 0 if fields.get("logprobs") is True else fields.whole("logprobs", most=_MOST_LOGPROBS)
    wanted = _wanted(fields, defaults, n_logprobs, None)
    return CompletionRequest(wanted, _prompts(fields.get("prompt"), n_vocab), fields.flag("echo"))


def _prompts(prompt: Any, n_vocab: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt or len(prompt) > _MOST_ANSWERS:
        raise invalid("prompt", f"a string, a list of token ids, or a list of at most {_MOST_ANSWERS} of either")
    return tuple(_prompt(one, n_vocab) for one in prompt)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int) and not isinstance(prompt[0], bool)


def _prompt(prompt: Any, n_vocab: int) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if not _is_ids(prompt) or not all(type(one) is int and 0 <= one < n_vocab for one in prompt):
        raise invalid("prompt", f"text, or token ids from 0 to {n_vocab - 1:,}")
    return tuple(prompt)


def _wanted(fields: Fields, defaults: Defaults, n_logprobs: int | None, tool_grammar: GrammarSource | None) -> Wanted:
    _refuse(fields)
    options = Fields(fields.table("stream_options") or {})
    max_tokens = fields.whole(fields.first("max_completion_tokens", "max_tokens", "n_predict"), least=-1)
    return Wanted(
        _sampling(fields, defaults, tool_grammar),
        defaults.max_tokens if max_tokens is None else None if max_tokens == -1 else max_tokens,
        fields.texts("stop", _MOST_STOPS),
        fields.whole("n", 1, _MOST_ANSWERS) or 1,
        n_logprobs,
        fields.flag("stream"),
        options.flag("include_usage"),
        _prediction(fields.table("prediction")),
    )


def _refuse(fields: Fields) -> None:
    for name, off in _OFF.items():
        value = fields.get(name)
        if value is not None and value not in off:
            raise unsupported(name)


def _prediction(prediction: Mapping[str, Any] | None) -> str:
    """The text that the answer will mostly repeat, empty without one. Whatever it is, the answer is the same."""
    if prediction is None:
        return ""
    content = prediction.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [one.get("text") if isinstance(one, dict) else one for one in parts]
    found = [text for text in texts if isinstance(text, str)]
    if prediction.get("type") != "content" or len(found) < len(texts):
        raise invalid("prediction", 'an object with type "content" and content as text or parts of text')
    text = "".join(found)
    if len(text) > _LONGEST_PREDICTION:
        raise invalid("prediction", f"at most {_LONGEST_PREDICTION:,} characters long")
    return text


def _sampling(fields: Fields, defaults: Defaults, tool_grammar: GrammarSource | None) -> Sampling:
    base = defaults.sampling
    bias, banned = _biases(fields.get("logit_bias"))
    breakers = fields.get("dry_sequence_breakers")
    return replace(
        base,
        params=_samplers(fields, base.params),
        seed=_seed(fields, defaults),
        ignore_end=fields.flag("ignore_eos", base.ignore_end),
        bias=tuple({**dict(base.bias), **bias}.items()),
        banned=(*base.banned, *banned),
        dry_breakers=base.dry_breakers if breakers is None else fields.texts("dry_sequence_breakers", _MOST_STOPS),
        grammar=_grammar(fields, tool_grammar),
    )


def _seed(fields: Fields, defaults: Defaults) -> int:
    """-1 asks for any, as in llama-server."""
    seed = fields.whole("seed", -(2**63), 2**64 - 1)
    if seed is not None and seed != -1:
        return seed % 2**64
    return defaults.new_seed() if defaults.new_seed is not None else defaults.sampling.seed


def _samplers(fields: Fields, base: SamplingParams) -> SamplingParams:
    given: dict[str, float | int | None] = {
        "temperature": fields.number("temperature"),
        "top_k": _at_least_off(fields.whole("top_k", least=-1), 0),
        "top_p": fields.number("top_p"),
        "min_p": fields.number("min_p"),
        "typical": fields.number("typical_p"),
        "top_n_sigma": _at_least_off(fields.number("top_n_sigma"), 0.0),
        "repeat_penalty": fields.number(fields.first("repeat_penalty", "repetition_penalty")),
        "frequency_penalty": fields.number("frequency_penalty"),
        "presence_penalty": fields.number("presence_penalty"),
        "repeat_last_n": _at_least_off(fields.whole("repeat_last_n", least=-1), _NO_LIMIT),
        "dry_multiplier": fields.number("dry_multiplier"),
        "dry_base": fields.number("dry_base"),
        "dry_allowed_length": fields.whole("dry_allowed_length"),
        "dry_last_n": _at_least_off(fields.whole("dry_penalty_last_n", least=-1), _NO_LIMIT),
    }
    return replace(base, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _at_least_off(value: Any, otherwise: Any) -> Any:
    """Other servers write -1 for "off", or for "all"."""
    return otherwise if value is not None and value < 0 else value


def _biases(given: Any) -> tuple[dict[int, float], list[int]]:
    """By token id, and ids that must not come: an object as OpenAI has it, or llama-server's pairs (false bans)."""
    if given is None:
        return {}, []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise invalid("logit_bias", "an object of biases by token id")
    bias: dict[int, float] = {}
    banned = []
    for token, amount in pairs:
        if amount is False:
            banned.append(_token(token))
        elif isinstance(amount, bool) or not isinstance(amount, int | float) or not abs(amount) <= _LARGEST_BIAS:
            raise invalid("logit_bias", "an object whose values are numbers")
        else:
            bias[_token(token)] = float(amount)
    return bias, banned


def _token(token: Any) -> int:
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= 10:
        return int(token)
    if type(token) is int and token >= 0:
        return token
    raise invalid("logit_bias", "an object whose keys are token ids")


def _grammar(fields: Fields, tool_grammar: GrammarSource | None) -> GrammarSource | None:
    """What the text keeps to: one of response_format, json_schema, grammar and a tool that must be called."""
    schema, gbnf = fields.get("json_schema"), fields.text("grammar")
    found = [
        _response_format(fields.table("response_format")),
        GrammarSource("json-schema", json.dumps(schema)) if schema is not None else None,
        GrammarSource("gbnf", gbnf) if gbnf else None,
        tool_grammar,
    ]
    given = [one for one in found if one is not None]
    if len(given) > 1:
        raise ApiError(
            400,
            "Give only one of response_format, json_schema, grammar, and a tool_choice that requires a call.",
            param="response_format",
        )
    return given[0] if given else None


def _response_format(form: Mapping[str, Any] | None) -> GrammarSource | None:
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") == "json_object":
        return GrammarSource("json-schema", json.dumps(form.get("schema") or {"type": "object"}))
    inner = form.get("json_schema")
    schema = inner.get("schema", form.get("schema")) if isinstance(inner, dict) else form.get("schema")
    if form.get("type") == "json_schema" and isinstance(schema, dict):
        return GrammarSource("json-schema", json.dumps(schema))
    raise invalid("response_format", 'of type "text", "json_object", or "json_schema" with a schema')
