"""Prompt options of `specdec run`: input, template, prompt cache, length."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specdec_cli.commands.options import in_panel, say
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption
from specdec_cli.paths import state_folder

if TYPE_CHECKING:
    from specdec_cli.generation.chat import Conversation
    from specdec_cli.generation.pair import Pair
    from specdec_cli.generation.prompt_cache import PromptCache
    from specdec_cli.generation.writer import Limits

_text = in_panel("Text")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The prompt's, but for the prompt itself."""

    file: Annotated[
        Path | None,
        _text("-f", "--file", help="Read the prompt from a file, or - for standard input (after PROMPT, if given)."),
    ] = None
    system: Annotated[str | None, _text(help="System message.")] = None
    raw: Annotated[bool, _text("--raw", help="Continue the prompt as is, without the chat template.")] = False
    think: Annotated[bool | None, _text("--think/--no-think", help="Turn thinking on or off in the chat template.")] = (
        None
    )
    prompt_cache: Annotated[
        Path | None,
        _text(help="Save the evaluated prompt in this file, and reuse it for prompts that begin with the same tokens."),
    ] = None
    prompt_cache_ro: Annotated[bool, _text("--prompt-cache-ro", help="Read the prompt cache, but do not write it.")] = (
        False
    )
    n: Annotated[int | None, _text("-n", min=0, help="Maximum tokens (default: unlimited).")] = None
    no_history: Annotated[
        bool, _text("--no-history", help="Neither read nor save the chat history (a file that only you can read).")
    ] = False
    load: Annotated[Path | None, _text(help="Go on with a chat that /save has written.")] = None
    stop: Annotated[list[str] | None, _text(help="Stop before this string; repeatable.")] = None

    @property
    def reads(self) -> ByOption:
        return {
            "-f": self.file,
            "--load": self.load,
            "--prompt-cache-ro": self.prompt_cache if self.prompt_cache_ro else None,
        }

    @property
    def writes(self) -> ByOption:
        from specdec_cli.generation.prompt_cache import draft_file

        if self.prompt_cache is None or self.prompt_cache_ro:
            return {}
        return {
            "--prompt-cache": self.prompt_cache,
            "--prompt-cache (the draft's)": draft_file(self.prompt_cache),
        }

    @property
    def history(self) -> Path | None:
        """Where the questions of chats are kept."""
        return None if self.no_history else state_folder() / "chat-history"

    def prompt(self, argument: str | None) -> str | None:
        """The text to answer, None for a chat. Raises UsageError, also for options that exclude each other."""
        from specdec_cli.generation.prompt_cache import check_file
        from specdec_cli.generation.prompts import prompt_text

        text = prompt_text(argument, self.file, sys.stdin, say)
        if self.raw and text is None:
            raise UsageError("--raw needs a prompt: a chat uses the template.", hint="Give one, or omit --raw.")
        if self.load is not None and text is not None:
            raise UsageError("--load goes on with a chat, which has no prompt.", hint="Leave out one of the two.")
        if self.raw and self.system is not None:
            raise UsageError(
                "--system needs the chat template, which --raw turns off.", hint="Leave out one of the two."
            )
        if self.prompt_cache_ro and self.prompt_cache is None:
            raise UsageError("--prompt-cache-ro needs a cache file.", hint="Give it with --prompt-cache FILE.")
        if self.prompt_cache is not None and not self.prompt_cache.name:
            raise UsageError("--prompt-cache needs a file name.", hint="Give a file, or omit it.")
        if self.prompt_cache is not None:
            check_file(self.prompt_cache, writes=not self.prompt_cache_ro)
        return text

    def system_over(self, preset_system: str | None) -> str | None:
        """The system message: the user's own before the preset's; none without a template. Raises UsageError."""
        from specdec_cli.generation.prompts import argument_text

        if self.system is not None:
            return argument_text(self.system, "--system")
        return None if self.raw else preset_system

    @property
    def limits(self) -> "Limits":
        from specdec_cli.generation.writer import Limits

        return Limits(self.n, tuple(self.stop or ()))

    def settings(self, system: str | None) -> dict[str, Any]:
        """As documents and traces tell them."""
        return {
            "max_tokens": self.n,
            "stop": self.stop or [],
            "system": system,
            "raw": self.raw,
            "think": self.think,
        }

    def start_template(self) -> None:
        """So that the process of chat templates is there when the models are loaded."""
        from specdec_cli.generation.template_process import shared

        if not self.raw:
            shared.start()

    def conversation(self, pair: "Pair", system: str | None) -> "Conversation | None":
        """In the model's chat format; None where there is none, or none is wanted."""
        from specdec_cli.generation.prompts import conversation

        if self.raw:
            return None
        return conversation(
            pair.target.model,
            system=system,
            thinking=self.think,
            now=datetime.now,
            say=say,
            follower=pair.follower,
        )

    def ids_without_template(self, pair: "Pair", text: str, system: str | None) -> list[int]:
        """Of a prompt that is continued as it is. Raises UsageError."""
        from specdec_cli.generation.encode import text_ids

        if system is not None:
            raise UsageError("--system needs a chat template, and this model has none.", hint="Omit --system.")
        if not self.raw:
            say("This model has no chat template: the prompt is continued as is.")
        return text_ids(pair.target.model, text)

    def loaded_cache(self, pair: "Pair") -> "PromptCache | None":
        """What is in the prompt cache, read into the sessions; None without --prompt-cache."""
        from specdec_cli.drafters.model import ModelDrafter
        from specdec_cli.generation.pair import own_name
        from specdec_cli.generation.prompt_cache import PromptCache

        if self.prompt_cache is None:
            return None
        cache = PromptCache(self.prompt_cache, pair, writes=not self.prompt_cache_ro, say=say)
        cache.load()
        if pair.auto is not None:
            pair.auto.has_read(own_name(ModelDrafter.name, pair.draft), cache.n_draft_tokens)
        return cache
