"""What `specdec bench` measures, and where its results go."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.completion import drafters, kinds_of_text
from specdec_cli.commands.drafting_options import drafter_names
from specdec_cli.commands.options import in_panel, numbers, quoted, whole_number, whole_numbers, words
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption
from specdec_cli.settings import AUTO, Length

if TYPE_CHECKING:
    from specdec_cli.bench.grid import Wanted
    from specdec_cli.bench.prompt_set import BenchPrompt

_what = in_panel("What is measured")
_out = in_panel("Output")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Lists have commas between their parts; what is not given is chosen."""

    drafter: Annotated[
        str | None,
        _what(
            help="Drafters to measure, comma-separated: model, ngram ... (default: the draft, if there is one, "
            "and ngram). none measures plain decoding once more.",
            autocompletion=drafters,
        ),
    ] = None
    k: Annotated[
        str | None,
        _what("-k", "--k", help="Draft lengths, comma-separated: numbers or auto (default: 1,2,4,8 and the preset's)."),
    ] = None
    temp: Annotated[str | None, _what(help="Temperatures, comma-separated (default: 0 and the preset's).")] = None
    p_min: Annotated[
        str | None, _what(help="Minimum draft probabilities, comma-separated (default: the preset's, or 0).")
    ] = None
    n: Annotated[int, _what("-n", min=8, help="Tokens per answer.")] = 96
    repeats: Annotated[int, _what(min=1, help="Number of repeats.")] = 2
    kinds: Annotated[
        str | None, _what(help="Kinds of text, comma-separated (default: all).", autocompletion=kinds_of_text)
    ] = None
    prompts: Annotated[
        Path | None, _what(help="Your own prompts: a text file, or JSON lines with kind and prompt.")
    ] = None
    ctx_fill: Annotated[str | None, _what(help="Also time passes at these context lengths, comma-separated.")] = None
    budget: Annotated[float, _what(min=0.1, help="Time limit in minutes, approximate.")] = 10.0
    tune: Annotated[
        bool,
        _what(
            "--tune",
            help="Find the fastest drafter, draft length, --p-min, threads and --kv-draft, and save them for "
            "run. None of these changes the text (near ties aside).",
        ),
    ] = False
    tune_kv: Annotated[
        bool,
        _what(
            "--tune-kv",
            help="Like --tune, but also try the target's --kv and --flash-attn. Only settings that left every "
            "tested text unchanged are saved; other texts may still differ from those of an f16 cache.",
        ),
    ] = False

    @property
    def tunes(self) -> bool:
        return self.tune or self.tune_kv

    def chosen_prompts(self) -> "list[BenchPrompt]":
        """Raises UsageError."""
        from specdec_cli.bench.prompt_set import SHIPPED, choose, read_prompts

        return choose(read_prompts(self.prompts or SHIPPED), words(self.kinds))

    def fills(self) -> list[int]:
        """Contexts at which passes are timed, beside that of the runs. Raises UsageError."""
        return whole_numbers(self.ctx_fill, "--ctx-fill")

    def wanted(self) -> "Wanted":
        """Raises UsageError."""
        from specdec_cli.bench.grid import Wanted
        from specdec_cli.drafters import DRAFTERS

        p_mins = numbers(self.p_min, "--p-min")
        if any(not 0 <= value <= 1 for value in p_mins):
            raise UsageError(f"Invalid --p-min: {self.p_min!r}.", hint="Give numbers from 0 to 1.")
        lengths = _lengths(self.k) if self.k is not None else ()
        names = drafter_names(self.drafter, tuple(DRAFTERS))
        return Wanted(names, lengths, numbers(self.temp, "--temp"), p_mins, self.tunes)


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Files with results; - is stdout."""

    json_file: Annotated[Path | None, _out("--json", help="Write all results as JSON to FILE (- for stdout).")] = None
    md_file: Annotated[Path | None, _out("--md", help="Write verdict and table as Markdown to FILE.")] = None
    plot_file: Annotated[
        Path | None,
        _out("--plot", metavar="FILE.svg|png", help="Plot speedup, acceptance, costs and speed by kind of text."),
    ] = None

    @property
    def writes(self) -> ByOption:
        return {"--json": self.json_file, "--md": self.md_file, "--plot": self.plot_file}

    def check(self) -> None:
        """Before anything is measured. Raises UsageError."""
        if self.plot_file is not None:
            from specdec_cli.bench.plot import check_form

            check_form(self.plot_file)


def _lengths(text: str) -> Sequence[Length]:
    if not words(text):
        raise UsageError("--k needs at least one draft length.", hint="Give numbers separated by commas, or auto.")
    found: list[Length] = [AUTO if word == AUTO else _length(word, text) for word in words(text)]
    return list(dict.fromkeys(found))


def _length(word: str, text: str) -> int:
    number = whole_number(word)
    if number is None:
        raise UsageError(
            f"Invalid --k: {quoted(text)}.", hint="Give whole numbers separated by commas, such as 1,2,4, or auto."
        )
    if number < 1:
        raise UsageError("--k takes draft lengths of 1 or more.", hint="Plain decoding is measured in any case.")
    return number
