"""`specdec race`: plain decoding and drafting side by side, each at its true speed."""

import os
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.comparison import tell_comparison, verdict
from specdec_cli.commands.drafting_options import DraftingOptions, DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, LogOpt, loading, say, waiting, write_log
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import GrammarOptions, SamplingOptions, TempOpt
from specdec_cli.commands.text_options import TextOptions
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs, write_output
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.generation.pair import Decoding, Pair
    from specdec_cli.generation.recording import Recording
    from specdec_cli.generation.writer import Limits
    from specdec_cli.ui.race import Lane
    from specdec_cli.ui.waiting import Waiting

_TOKENS = 200
"""Of a race whose length nobody chose."""
_WARM_UP = 8
_FORMS = (".svg", ".gif", ".cast")


@takes_groups
def race(
    model: Annotated[str, MODEL],
    prompt: Annotated[str | None, typer.Argument(help="The prompt. Without one, standard input is read.")] = None,
    *,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|gif|cast",
            help="Save the race: a picture of its end, an animation (needs Pillow), or a recording for asciinema.",
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Show only the figures.")] = False,
    pairing: DraftOptions,
    drafting: DraftingOptions,
    text: TextOptions,
    temp: TempOpt = None,
    sampling: SamplingOptions,
    grammar: GrammarOptions,
    placement: PlacementOptions,
    log: LogOpt = None,
) -> None:
    """Show plain decoding and drafting side by side: same prompt, same seed, each at its true speed.

    They are measured one after the other, then shown together. Without -n, answers end after 200 tokens.
    """
    guard_terminal()
    raise_on_sigterm()
    line = waiting()
    line.show(f"Loading {model} ...")
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.drafting import decide
    from specdec_cli.planning.request import PairRequest

    line.hide()
    drafting.check(pairing.draft)
    question = _question(text, prompt)
    _check_form(save)
    reads = {"MODEL": Path(model), **pairing.reads, **drafting.reads, **text.reads, **grammar.reads}
    check_outputs({"--save": save, "--log": log, **drafting.writes}, reads)
    text = replace(text, n=_TOKENS if text.n is None else text.n)
    abort = AbortFlag()
    with ExitStack() as stack:
        files = pairing.files_for(model)
        write_log(log, *files.paths)
        text.start_template()
        profile = drafting.profile_of(files, pairing.draft)
        placed, params = placement.asked(profile), sampling.over(files.sampling, temp)
        request = PairRequest(
            files.target,
            decide(drafting.asked(), files, profile, placed.longest_draft),
            sampling.asked(params, seed=secrets.randbits(32), grammar=grammar.source()),
            placed,
            files.adapters,
        )
        with stoppable(abort), line:
            line.show(loading(*files.paths))
            pair = stack.enter_context(open_pair(request, say=line.say, abort=abort))
            ids = _ids(pair, text, question, files.preset.system if files.preset is not None else None)
            drafted, alone = _measured(pair, ids, text, line)
        _show(pair, drafted, alone, save, plain)


def _question(text: TextOptions, prompt: str | None) -> str:
    """Raises UsageError."""
    question = text.prompt(prompt)
    if question is None:
        raise UsageError("race needs a prompt.", hint="Give one as an argument, with -f, or through a pipe.")
    if text.prompt_cache is not None:
        raise UsageError("race reads each prompt anew.", hint="Omit --prompt-cache.")
    return question


def _check_form(save: Path | None) -> None:
    """Raises UsageError for a file that could not be written when all is measured."""
    if save is None:
        return
    if save.suffix.lower() not in _FORMS:
        raise UsageError(f"Unknown format: {save.name}.", hint=f"Use a name that ends in {', '.join(_FORMS)}.")
    if save.suffix.lower() == ".gif":
        try:
            import specdec_cli.ui.race_gif  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"A GIF needs Pillow, and importing it failed: {error}.",
                hint='Install it: pip install "specdec-cli[gif]" (or: pip install pillow).',
            ) from error


def _ids(pair: "Pair", text: TextOptions, question: str, preset_system: str | None) -> list[int]:
    from specdec_cli.generation.prompts import check_prompt

    system = text.system_over(preset_system)
    talk = text.conversation(pair, system)
    ids = talk.ask(question) if talk is not None else text.ids_without_template(pair, question, system)
    return check_prompt(list(ids), pair.target.session.n_ctx)


def _measured(pair: "Pair", ids: list[int], text: TextOptions, line: "Waiting") -> "tuple[Recording, Recording]":
    """Drafted, and plain. What ends one early is raised."""
    from specdec_cli.generation.pair import plain_decoding
    from specdec_cli.generation.recording import record

    def measured(what: str, decoding: "Decoding", limits: "Limits") -> "Recording":
        line.show(what)
        recording = record(pair, ids, limits, decoding, time.perf_counter)
        if recording.answer.error is not None:
            raise recording.answer.error
        return recording

    alone = plain_decoding(pair.rule)
    measured("Warming up ...", alone, replace(text.limits, max_tokens=_WARM_UP))
    plain = measured("Measuring plain decoding ...", alone, text.limits)
    return measured("Measuring with drafts ...", pair.decoding, text.limits), plain


def _show(pair: "Pair", drafted: "Recording", alone: "Recording", save: Path | None, plain: bool) -> None:
    """The race at a terminal, then its figures, and the file."""
    from specdec_cli.generation.recording import Comparison
    from specdec_cli.ui.race import Lane, RaceView, frame_times
    from specdec_cli.ui.terminal import Terminal

    comparison = Comparison.of(drafted.answer.stats, drafted.token_ids, alone)
    lanes = (Lane("plain", alone.moments), Lane("drafted", drafted.moments))
    outcome = verdict(comparison, pair)
    terminal = Terminal(sys.stdout, os.environ)
    if plain or not terminal.can_draw:
        tell_comparison(comparison, pair)
    else:
        with RaceView(lanes, terminal) as view:
            began = time.perf_counter()
            for seconds in frame_times(lanes):
                time.sleep(max(0.0, began + seconds - time.perf_counter()))
                view.show(seconds)
            view.finish(outcome)
    if save is not None:
        write_output(save, _file(save, lanes, outcome, f"specdec race {pair.target.model.path.name}"))
        say(f"Wrote {save}.")


def _file(save: Path, lanes: "tuple[Lane, Lane]", outcome: str, title: str) -> str | bytes:
    if save.suffix.lower() == ".gif":
        from specdec_cli.ui.race_gif import race_gif

        return race_gif(lanes, outcome)
    from specdec_cli.ui.race_files import race_cast, race_svg

    return race_cast(lanes, outcome, title) if save.suffix.lower() == ".cast" else race_svg(lanes, outcome, title)
