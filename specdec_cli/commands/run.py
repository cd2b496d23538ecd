"""`specdec run`: opens the pair, generates, shows the text."""

import json
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.chat import chat, stoppable
from specdec_cli.commands.comparison import tell_comparison
from specdec_cli.commands.drafting_options import DraftingOptions, DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, loading, say, waiting, write_log
from specdec_cli.commands.output_options import OutputOptions
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.questions import Questions
from specdec_cli.commands.sampling_options import GrammarOptions, SamplingOptions, TempOpt
from specdec_cli.commands.text_options import TextOptions
from specdec_cli.outputs import check_outputs
from specdec_cli.signals import hold_continuation, raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.generation.chat import Conversation
    from specdec_cli.generation.pair import Pair
    from specdec_cli.generation.prompt_cache import PromptCache
    from specdec_cli.generation.recording import Recording
    from specdec_cli.generation.trace import Trace
    from specdec_cli.generation.writer import Writer, Written
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.profile import Profile
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.resolve import Resolved
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
        request = _request(files, profile, drafting, temp, sampling, grammar, placement)
        with stoppable(abort), line:
            line.show(loading(*files.paths))
            pair = stack.enter_context(open_pair(request, say=line.say, abort=abort))
            if pair.tokenizers is not None:
                line.say(pair.tokenizers)
        trace = stack.enter_context(output.trace())
        settings = plain({**request.as_settings(), **text.settings(system)})
        writer = _writer(pair, text, output, trace, settings)
        cache, talk = text.loaded_cache(pair), text.conversation(pair, system)
        if question is None:
            _converse(writer, talk, abort, cache, Questions(text.history))
            return
        ids = talk.ask(question) if talk is not None else text.ids_without_template(pair, question, system)
        with stoppable(abort):
            written = writer.write(ids)
        if cache is not None:
            cache.save(written.prompt_tokens - 1)  # the last token is evaluated with what follows it
        with stoppable(abort), line:
            alone = _plainly(pair, ids, text, line) if output.compare and written.answer.error is None else None
        _finish(pair, written, settings if output.as_json else None, alone)


def _guard() -> None:
    """Before anything starts a thread: each keeps the signals that are held when it starts."""
    guard_terminal()
    raise_on_sigterm()
    hold_continuation()


def _request(
    files: "Resolved",
    profile: "Profile | None",
    drafting: DraftingOptions,
    temp: float | None,
    sampling: SamplingOptions,
    grammar: GrammarOptions,
    placement: PlacementOptions,
) -> "PairRequest":
    from specdec_cli.planning.drafting import decide
    from specdec_cli.planning.request import PairRequest

    placed, params = placement.asked(profile), sampling.over(files.sampling, temp)
    return PairRequest(
        files.target,
        decide(drafting.asked(), files, profile, placed.longest_draft),
        sampling.asked(params, seed=secrets.randbits(32), grammar=grammar.source()),
        placed,
        files.adapters,
    )


def _writer(
    pair: "Pair", text: TextOptions, output: OutputOptions, trace: "Trace", settings: dict[str, Any]
) -> "Writer":
    from specdec_cli.generation.writer import Writer

    return Writer(
        pair,
        text.limits,
        open_view=output.view_opener(),
        trace=trace,
        settings=settings,
        clock=time.perf_counter,
        n_logprobs=output.logprobs,
    )


def _converse(
    writer: "Writer", talk: "Conversation | None", abort: "AbortFlag", cache: "PromptCache | None", questions: Questions
) -> None:
    try:
        chat(writer, talk, abort, questions)
    finally:  # most chats end with Ctrl-C
        questions.keep()
        if cache is not None:
            cache.save(writer.prompt_tokens - 1)


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
