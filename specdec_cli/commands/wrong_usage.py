"""Turns usage errors of typer into errors with a hint."""

from typing import Any

from specdec_cli.errors import UsageError

_ELSEWHERE = {
    "-c": "Use --ctx.",
    "-t": "Use --threads.",
    "-m": "MODEL is an argument: specdec run MODEL PROMPT",
    "--model": "MODEL is an argument: specdec run MODEL PROMPT",
    "-p": "The prompt is an argument: specdec run MODEL PROMPT",
    "--prompt": "The prompt is an argument: specdec run MODEL PROMPT",
    "--model-draft": "Use --draft.",
    "--draft-model": "Use --draft.",
    "--draft-max": "Use -k.",
    "--draft-n": "Use -k.",
    "--draft-p-min": "Use --p-min.",
    "--n-predict": "Use -n.",
    "--max-tokens": "Use -n.",
    "--ctx-size": "Use --ctx.",
    "--num-ctx": "Use --ctx.",
    "--n-gpu-layers": "Use --ngl.",
    "--gpu-layers": "Use --ngl.",
    "--temperature": "Use --temp.",
    "--cache-type-k": "Use --kv.",
    "--cache-type-v": "Use --kv.",
    "--no-stream": "Use --json.",
    "--system-prompt": "Use --system.",
}
"""Options of other tools, and what does the same here."""


def wrong_usage(error: Any) -> UsageError:
    """An error of typer as one sentence and a hint."""
    parameter, faults = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if parameter is not None and faults is not None:  # pydantic's, which typer reads values with
        return _value(parameter, faults()[0], error)
    said, _, meant = error.format_message().partition(" Did you mean ")
    said = said.partition(" (Possible options")[0].rstrip(".")
    elsewhere = _ELSEWHERE.get(getattr(error, "option_name", None) or "")
    if elsewhere is not None:
        return UsageError(f"{said}.", hint=elsewhere)
    possible = meant.rstrip("?") or " or ".join(getattr(error, "possibilities", None) or ())
    return UsageError(f"{said}.", hint=f"Did you mean {possible}?" if possible else _help_for(error))


def _value(parameter: Any, fault: dict[str, Any], error: Any) -> UsageError:
    """A value of the wrong type, or out of range."""
    name = parameter.name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
    bounds = fault.get("ctx") or {}
    wanted = {
        "int_parsing": "Give a whole number.",
        "int_from_float": "Give a whole number.",
        "float_parsing": "Give a number.",
        "greater_than_equal": f"Give {bounds.get('ge')} or more.",
        "less_than_equal": f"Give {bounds.get('le')} or less.",
    }
    _, is_choice, choices = fault["msg"].partition(" is not one of ")
    if is_choice:
        wanted[fault["type"]] = f"Use one of {choices.rstrip('.')}."
    return UsageError(f"Invalid {name}: {fault['input']!r}.", hint=wanted.get(fault["type"]) or _help_for(error))


def _help_for(error: Any) -> str:
    return f"See {error.ctx.command_path if error.ctx is not None else 'specdec'} --help."
