"""`specdec run`: opens the pair, generates, shows the text."""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.chat import Chat, converse, stoppable
from specdec_cli.commands.chat_commands import complete, obey
from specdec_cli.commands.chat_files import load
from specdec_cli.commands.chat_options import RunOptions
from specdec_cli.commands.comparison import tell_comparison
from specdec_cli.commands.drafting_options import DraftingOptions, DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, loading, say, waiting, write_log
from specdec_cli.commands.output_options import OutputOptions
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.questions import Questions
from specdec_cli.commands.sampling_options import GrammarOptions, SamplingOptions, TempOpt
from specdec_cli.commands.text_options import TextOptions
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.generation.chat import Conversation
    from specdec_cli.generation.pair import Pair
    from specdec_cli.generation.prompt_cache import PromptCache
    from specdec_cli.generation.recording import Recording
    from specdec_cli.generation.trace import Trace
    from specdec_cli.generation.writer import Writer, Written
    from specdec_cli.ui.view import Header, View
    from specdec_cli.ui.waiting import Waiting


@takes_groups
def run(
    model: Annotated[
        str,
        MODEL,
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt. Without one, standard input is read if piped; otherwise a chat starts."),
    ] = None,
    *,
    pairing: DraftOptions,
    drafting: DraftingOptions,
    text: TextOptions,
    temp: TempOpt = None,
    sampling: SamplingOptions,
    grammar: GrammarOptions,
    placement: PlacementOptions,
    output: OutputOptions,
) -> None:
    """Generate text, or chat, with speculative decoding: the target's own text, faster.

    Ctrl-C stops the answer, keeps what has been written and shows the summary.
    """
    _guard()
    line = waiting()
    line.show(f"Loading {model} ...")  # before the imports, which take long enough to be noticed
    from specdec_cli.generation.json_document import plain
    from specdec_cli.generation.live_pair import LivePair
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag

    line.hide()
    drafting.check(pairing.draft)
    question = text.prompt(prompt)
    output.check(is_chat=question is None)
    reads = {"MODEL": Path(model), **pairing.reads, **drafting.reads, **text.reads, **grammar.reads}
    check_outputs({**output.writes, **text.writes, **drafting.writes}, reads)
    abort = AbortFlag()
    with ExitStack() as stack:
        files = pairing.files_for(model)
        write_log(output.log, *files.paths)
        text.start_template()
        system = text.system_over(files.preset.system if files.preset is not None else None)
        profile = drafting.profile_of(files, pairing.draft)
        placed, seed = placement.asked(profile), secrets.randbits(32)
        options = RunOptions(model, pairing, drafting, text, temp, sampling, grammar, placed, files, profile, seed)
        request = options.request()
        with stoppable(abort), line:
            line.show(loading(*files.paths))
            pair = stack.enter_context(open_pair(request, say=line.say, abort=abort))
            if pair.tokenizers is not None:
                line.say(pair.tokenizers)
        trace = stack.enter_context(output.trace())
        settings, open_view = plain({**request.as_settings(), **text.settings(system)}), output.view_opener()
        cache, talk = text.loaded_cache(pair), text.conversation(pair, system)
        if question is None:
            chat = Chat(
                LivePair(pair, request, say=line.say, abort=abort, stack=stack),
                _needed(talk),
                options,
                abort,
                make_writer=lambda pair, text, settings: _writer(pair, text, output, open_view, trace, settings),
                line=line,
            )
            if text.load is not None:
                say(f"Loaded {load(chat, text.load, keep_given=True)} turns.")
            _converse(chat, cache, Questions(text.history, complete))
            return
        writer = _writer(pair, text, output, open_view, trace, settings)
        ids = talk.ask(question) if talk is not None else text.ids_without_template(pair, question, system)
        with stoppable(abort):
            written = writer.write(ids)
        if cache is not None:
            cache.save(written.prompt_tokens - 1, pair)  # the last token is evaluated with what follows it
        with stoppable(abort), line:
            alone = _plainly(pair, ids, text, line) if output.compare and written.answer.error is None else None
        _finish(pair, written, settings if output.as_json else None, alone)


def _guard() -> None:
    """Before anything starts a thread, which a fork would not bring along."""
    guard_terminal()
    raise_on_sigterm()


def _writer(
    pair: "Pair",
    text: TextOptions,
    output: OutputOptions,
    open_view: "Callable[[Header], View]",
    trace: "Trace",
    settings: dict[str, Any],
) -> "Writer":
    from specdec_cli.generation.writer import Writer

    return Writer(
        pair,
        text.limits,
        open_view=open_view,
        trace=trace,
        settings=settings,
        clock=time.perf_counter,
        n_logprobs=output.logprobs,
    )


def _needed(talk: "Conversation | None") -> "Conversation":
    if talk is None:
        raise UsageError(
            "This model has no chat template, so it cannot chat.",
            hint="Give a prompt to continue, or use another model.",
        )
    return talk


def _converse(chat: Chat, cache: "PromptCache | None", questions: Questions) -> None:
    try:
        converse(chat, questions, obey)
    finally:
        if cache is not None:
            cache.save(chat.prompt_tokens - 1, chat.live.pair)


def _plainly(pair: "Pair", ids: Sequence[int], text: TextOptions, line: "Waiting") -> "Recording":
    """The same prompt, decoded plainly with the same seed."""
    from specdec_cli.generation.pair import plain_decoding
    from specdec_cli.generation.recording import record

    line.show("Decoding the same prompt plainly ...")
    return record(pair, ids, text.limits, plain_decoding(pair.rule), time.perf_counter)


def _finish(pair: "Pair", written: "Written", settings: dict[str, Any] | None, alone: "Recording | None") -> None:
    """Notes on the answer and how it compares, and the document that tells these settings, if one is wanted. Raises
    what ended an answer early."""
    from specdec_cli.generation.json_document import run_document
    from specdec_cli.generation.recording import Comparison

    _tell(pair)
    error, comparison = written.answer.error, None
    if alone is not None:
        error = alone.answer.error
        comparison = Comparison.of(written.answer.stats, written.reply.tokens, alone) if error is None else None
    if settings is not None:
        print(json.dumps(run_document(pair, written, settings, comparison)))
    elif comparison is not None:
        tell_comparison(comparison, pair)
    if error is not None:
        raise error


def _tell(pair: "Pair") -> None:
    """Notes on how the text was drafted and verified."""
    from specdec_cli.advice import strict_notes
    from specdec_cli.drafters import sources
    from specdec_cli.drafters.mixed import MixedDrafter

    drafter, strict = pair.decoding.drafter, pair.decoding.strict
    model = sources(drafter.name)[-1]
    if isinstance(drafter, MixedDrafter) and drafter.gave_up is not None:
        say(f"The draft ({model}) stopped ({drafter.gave_up}); n-gram lookup stayed on.")
    elif pair.auto is not None and pair.auto.left_out is not None:
        say(f"The draft ({model}) was not used ({pair.auto.left_out}); n-gram lookup stayed on.")
    for note in strict_notes(strict.longest, strict.noise, strict.n_settled) if strict is not None else ():
        say(note)
