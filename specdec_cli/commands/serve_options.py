"""Where `specdec serve` listens, who may use it, and how many may wait."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.options import LogOpt, bytes_in, in_panel
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption

if TYPE_CHECKING:
    from specdec_cli.serve.app import HttpSettings

_server = in_panel("Server")
_answers = in_panel("Answers")
_output = in_panel("Output")

_MOST_CACHE = 8 << 30
"""Bytes of kept prompts that are taken without being asked for."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The server's own options."""

    host: Annotated[str, _server(help="Address to listen at; 0.0.0.0 is every network this machine is in.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _server(min=0, max=65535, help="Port to listen at; 0 picks a free one.")] = 8080
    api_key: Annotated[
        str | None,
        _server(envvar="SPECDEC_API_KEY", help="Key that clients must send; several with commas between them."),
    ] = None
    cors: Annotated[
        list[str] | None,
        _server(help="Origin of web pages that may use the server, such as http://localhost:3000, or *; repeatable."),
    ] = None
    alias: Annotated[str | None, _server(help="Name of the model for clients (default: the preset's or file's).")] = (
        None
    )
    queue: Annotated[int, _server(min=0, help="Requests that may wait; further ones are refused with status 503.")] = 32
    cache_ram: Annotated[
        str | None,
        _server(help="Memory for earlier prompts, such as 2G; 0 keeps none (default: a quarter of what is free)."),
    ] = None
    grace: Annotated[
        float, _server(min=0, help="Seconds that the running answer is given to end after Ctrl-C or SIGTERM.")
    ] = 10.0
    n: Annotated[int | None, _answers("-n", min=1, help="Maximum tokens, where a request gives none.")] = None
    system: Annotated[str | None, _answers(help="System message of chats that have none.")] = None
    think: Annotated[
        bool | None, _answers("--think/--no-think", help="Turn thinking on or off in the chat template.")
    ] = None
    plain: Annotated[bool, _output("--plain", help="A line for each request instead of the live view.")] = False
    log: LogOpt = None

    @property
    def writes(self) -> ByOption:
        return {"--log": self.log}

    def http(self) -> "HttpSettings":
        """Raises UsageError for an empty key, which would lock nobody out."""
        from specdec_cli.serve.app import HttpSettings

        keys = [key.strip() for key in (self.api_key or "").split(",")] if self.api_key is not None else []
        if not all(keys):
            raise UsageError("--api-key needs a key.", hint="Give one, or omit it (and unset SPECDEC_API_KEY).")
        return HttpSettings(keys, [origin.rstrip("/") for origin in self.cors or ()])

    def cache_bytes(self) -> int:
        """Memory for states of earlier prompts. Raises UsageError."""
        from specdec_cli.planning.machine import available_memory

        given = bytes_in(self.cache_ram, "--cache-ram")
        return min((available_memory() or 0) // 4, _MOST_CACHE) if given is None else given
