"""Errors in OpenAI's shape, with llama-server's types and status codes."""

from collections.abc import Mapping
from typing import Any

from specdec_cli.errors import Interrupted, SpecdecError, UsageError

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    500: "server_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """A request that is answered with an error. `param` names the field, `kind` overrides the status code's type.

    `retry_after` is in seconds, None where another try would not help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        retry_after: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self._param = param
        self._kind = kind or _TYPES[status]
        self._more = dict(more or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document."""
        about = {"message": str(self), "type": self._kind, "param": self._param, "code": self.status}
        return {"error": {**about, **self._more}}

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's clients try 5xx again unless they are told not to."""
        if self.retry_after is not None:
            return {"retry-after": str(self.retry_after)}
        return {"x-should-retry": "false"}


def unsupported(field: str) -> ApiError:
    """For a field that would change the text and is not supported: ignoring it would give another text than asked."""
    return ApiError(400, f"{field} is not supported.", param=field)


def invalid(field: str, expected: str) -> ApiError:
    """For a field of the wrong type or range."""
    return ApiError(400, f"{field} must be {expected}.", param=field)


def too_long(n_prompt: int | None, n_ctx: int) -> ApiError:
    """For a prompt that leaves no room for an answer; its length is None where it was not worth counting."""
    length = f"{n_prompt:,} tokens" if n_prompt is not None else "more tokens than that"
    return ApiError(
        400,
        f"The prompt has {length} and the context {n_ctx:,}, which leaves no room for an answer.",
        param="messages",
        kind="exceed_context_size_error",
        more={"code": "context_length_exceeded", "n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
    )


def stopping() -> ApiError:
    """The server is being stopped."""
    return ApiError(503, "The server is shutting down.", retry_after=5)


def as_api_error(error: SpecdecError) -> ApiError:
    """What went wrong below, for a client. Options of the command line that a hint names mean nothing to it."""
    if isinstance(error, Interrupted):
        return stopping()
    return ApiError(400 if isinstance(error, UsageError) else 500, str(error))
