"""specdec run: open the pair, follow the rounds, show them."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from specdec_cli.commands import sampling_options as more
from specdec_cli.commands.chat import chat, stoppable
from specdec_cli.commands.options import JsonOpt, draft_length, find, in_panel, layers, quantize, say
from specdec_cli.commands.pull import offer_to_pull
from specdec_cli.commands.tune import as_tuned, profile_of
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs, open_output
from specdec_cli.settings import AUTO
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.generation.pair import Pair
    from specdec_cli.presets.resolve import Resolved
    from specdec_cli.presets.schema import Preset
    from specdec_cli.ui.view import Header, View

T = TypeVar("T")


_text = in_panel("Text")
_sampling = in_panel("Sampling (llama.cpp's defaults, unless a preset sets its own)")
_drafting = in_panel("Drafting")
_placement = in_panel("GPU, memory, threads")
_output = in_panel("Output")


def run(
    model: Annotated[str, typer.Argument(help="A preset's name (demo), or the path of the target's GGUF file.")],
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer. Without it: standard input if piped, else a chat.")
    ] = None,
    *,
    draft: Annotated[
        str | None,
        _drafting(
            help="Draft GGUF (a model or a trained head), Medusa heads (.safetensors), or ngram, lookahead, mtp, none "
            "(plain decoding). A preset brings its own."
        ),
    ] = None,
    k: Annotated[str, _drafting("-k", help="Draft tokens per round; auto: by measured cost.")] = AUTO,
    look_up: Annotated[
        bool, _drafting("--ngram/--no-ngram", help="With -k auto: look up drafts in the text, too.")
    ] = True,
    p_min: Annotated[
        float | None,
        _drafting(min=0, max=1, help="Stop a draft before a token less likely than this (0, or the preset's)."),
    ] = None,
    ngram_store: Annotated[
        Path | None,
        _drafting(
            help="Where lookup drafts: copy from texts of earlier runs, too. Your prompts and the answers are kept in "
            "this file (in a folder: one file for each tokenizer) as token ids, which anyone with the model can read; "
            "at most 262,144 tokens, the oldest go first. Without this option nothing is kept."
        ),
    ] = None,
    force: Annotated[bool, _drafting("--force", help="Run a pair whose draft is not smaller than its target.")] = False,
    profiled: Annotated[bool, _drafting("--profile/--no-profile", help="Use what bench --tune found here.")] = True,
    offline: Annotated[bool, _placement("--offline", help="Do not offer to fetch what is missing.")] = False,
    file: Annotated[
        Path | None,
        _text("-f", "--file", help="Read the prompt from a file, or - for standard input (after PROMPT, if given)."),
    ] = None,
    system: Annotated[str | None, _text(help="System message.")] = None,
    raw: Annotated[bool, _text("--raw", help="Continue the prompt as it is, without the chat template.")] = False,
    think: Annotated[bool | None, _text("--think/--no-think", help="Tell the chat template to think or not.")] = None,
    prompt_cache: Annotated[
        Path | None,
        _text(
            help="Keep what the models made of the prompt in this file, and start from it where the next prompt "
            "begins with the same tokens."
        ),
    ] = None,
    prompt_cache_ro: Annotated[bool, _text("--prompt-cache-ro", help="Use the prompt cache, write nothing.")] = False,
    n: Annotated[int | None, _text("-n", min=0, help="Most tokens to write (unlimited).")] = None,
    stop: Annotated[list[str] | None, _text(help="End the text before this string; may be repeated.")] = None,
    temp: Annotated[float | None, _sampling(help="Temperature (0.8); 0 is greedy.")] = None,
    top_k: Annotated[int | None, _sampling(help="Keep the k likeliest tokens (40); 0 is off.")] = None,
    top_p: Annotated[float | None, _sampling(help="Keep the tokens that make up p (0.95); 1 is off.")] = None,
    min_p: Annotated[
        float | None, _sampling(help="Drop tokens below this share of the likeliest (0.05); 0 is off.")
    ] = None,
    seed: Annotated[
        int | None, _sampling(min=0, max=2**64 - 1, help="Same seed, same text, whoever drafts (random).")
    ] = None,
    logit_bias: more.LogitBiasOpt = None,
    ban: more.BanOpt = None,
    ignore_eos: more.IgnoreEosOpt = False,
    repeat_penalty: more.RepeatPenaltyOpt = None,
    frequency_penalty: more.FrequencyPenaltyOpt = None,
    presence_penalty: more.PresencePenaltyOpt = None,
    repeat_last_n: more.RepeatLastNOpt = None,
    dry_multiplier: more.DryMultiplierOpt = None,
    dry_base: more.DryBaseOpt = None,
    dry_allowed_length: more.DryAllowedLengthOpt = None,
    dry_last_n: more.DryLastNOpt = None,
    dry_breaker: more.DryBreakerOpt = None,
    top_n_sigma: more.TopNSigmaOpt = None,
    typical: more.TypicalOpt = None,
    json_schema: more.JsonSchemaOpt = None,
    regex: more.RegexOpt = None,
    lark: more.LarkOpt = None,
    grammar: more.GrammarOpt = None,
    verify: more.VerifyOpt = "coupled",
    strict: more.StrictOpt = False,
    ngl: Annotated[str, _placement(help="Layers of the target on the GPU: auto, all or a number.")] = "auto",
    ngl_draft: Annotated[str, _placement(help="Layers of the draft on the GPU.")] = "auto",
    device: Annotated[
        list[str] | None, _placement(help="Device to use, by llama.cpp's name; may be repeated; cpu for none.")
    ] = None,
    main_gpu: Annotated[int, _placement(min=0, help="GPU for what is not split.")] = 0,
    tensor_split: Annotated[str | None, _placement(help="Shares of several GPUs, such as 3,1.")] = None,
    rpc: Annotated[list[str] | None, _placement(help="host:port of an RPC server whose devices to use.")] = None,
    require_gpu: Annotated[
        bool, _placement("--require-gpu", help="Fail rather than run the target without a GPU.")
    ] = False,
    flash_attn: Annotated[
        Literal["auto", "on", "off"] | None, _placement(help="Flash attention: auto, on or off (auto).")
    ] = None,
    kv: Annotated[str | None, _placement(help="Type of the target's cache: f16, q8_0, q4_0 ... (f16).")] = None,
    kv_draft: Annotated[
        str | None, _placement(help="Type of the draft's cache; 4 bits halve acceptance (f16).")
    ] = None,
    ctx: Annotated[
        int | None,
        _placement(
            min=0, help="Context in tokens (4096, or what the model was trained for); 0: all it was trained for."
        ),
    ] = None,
    ctx_draft: Annotated[int | None, _placement(min=0, help="The draft's context (the target's).")] = None,
    batch: Annotated[int, _placement(min=1, help="Prompt tokens per pass.")] = 512,
    ubatch: Annotated[int | None, _placement(min=1, help="Tokens computed at once (as --batch).")] = None,
    threads: Annotated[
        int | None, _placement(min=1, help="Threads of the target (the cores this process may use).")
    ] = None,
    threads_draft: Annotated[int | None, _placement(min=1, help="Threads of the draft (the target's).")] = None,
    mmap: Annotated[bool, _placement(help="Map the files instead of reading them.")] = True,
    mlock: Annotated[bool, _placement("--mlock", help="Keep the weights in memory.")] = False,
    plain: Annotated[bool, _output("--plain", help="Plain streaming text, no dashboard.")] = False,
    as_json: JsonOpt = False,
    jsonl: Annotated[Path | None, _output(help="Write a trace, one line per round.")] = None,
    logprobs: more.LogprobsOpt = None,
    log: Annotated[Path | None, _output(help="Write llama.cpp's log to this file.")] = None,
) -> None:
    """Write text with a draft that proposes and a target that decides: faster, and the same text.

    Ctrl-C ends the text, keeps what there is and shows the summary.
    """
    guard_terminal()
    raise_on_sigterm()

    from specdec_cli.advice import strict_notes
    from specdec_cli.drafters import sources, with_lookup
    from specdec_cli.drafters.mixed import MixedDrafter
    from specdec_cli.drafters.model import ModelDrafter
    from specdec_cli.generation.json_document import plain as plain_values
    from specdec_cli.generation.json_document import run_document
    from specdec_cli.generation.pair import open_pair, own_name
    from specdec_cli.generation.prompt_cache import PromptCache, check_file, draft_file
    from specdec_cli.generation.prompts import argument_text, conversation, prompt_text
    from specdec_cli.generation.template_process import shared as template_process
    from specdec_cli.generation.trace import Trace
    from specdec_cli.generation.writer import Limits, Writer
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.llama.log import log as llama_log
    from specdec_cli.planning.plan import PairRequest
    from specdec_cli.presets.resolve import DRAFTER_NAMES, resolve
    from specdec_cli.settings import USUAL_K

    fixed_k = draft_length(k)
    text = prompt_text(prompt, file, sys.stdin)
    if as_json and text is None:
        raise UsageError("--json needs a prompt.", hint="Give one as argument, with -f, or through a pipe.")
    if logprobs is not None and not as_json and jsonl is None:
        raise UsageError("--logprobs has no place in plain text.", hint="Add --json, or --jsonl FILE.")
    if raw and text is None:
        raise UsageError("--raw needs a prompt: a chat has a template.", hint="Give one, or leave out --raw.")
    if raw and system is not None:
        raise UsageError("--system needs the chat template that --raw leaves out.", hint="Leave out one of the two.")
    if prompt_cache_ro and prompt_cache is None:
        raise UsageError("--prompt-cache-ro needs the cache's file.", hint="Name it with --prompt-cache FILE.")
    for option, path in (("--prompt-cache", prompt_cache), ("--ngram-store", ngram_store)):
        if path is not None and not path.name:
            raise UsageError(f"{option} names no file.", hint="Give a file, or leave it out.")
    if ngram_store is not None and not ngram_store.parent.is_dir():
        raise UsageError(f"There is no folder {ngram_store.parent} for --ngram-store.", hint="Make it first.")
    if draft == "ngram" and not look_up:
        raise UsageError("--no-ngram leaves out what --draft ngram asks for.", hint="Leave out one of the two.")
    if prompt_cache is not None:
        check_file(prompt_cache, writes=not prompt_cache_ro)
    system = None if system is None else argument_text(system, "--system")
    written_cache = None if prompt_cache_ro else prompt_cache
    store_file = ngram_store if ngram_store is not None and not ngram_store.is_dir() else None
    check_outputs(
        {
            "--jsonl": jsonl,
            "--log": log,
            "--prompt-cache": written_cache,
            "--prompt-cache (the draft's)": draft_file(written_cache) if written_cache is not None else None,
            "--ngram-store": store_file,
        },
        {"MODEL": Path(model), "--draft": Path(draft) if draft else None, "-f": file, "--grammar": grammar}
        | {
            "--json-schema": json_schema,
            "--lark": lark,
            "--prompt-cache-ro": prompt_cache if prompt_cache_ro else None,
        },
    )
    abort = AbortFlag()
    with ExitStack() as stack:
        if not offline:
            offer_to_pull(model, draft)
        files = resolve(model, draft, quantize, find, say)
        are_there = all(path is None or path.exists() for path in (files.target, files.draft, files.head))
        if log is not None and are_there:  # it tells how models are loaded; a mistyped name leaves the last log
            llama_log.write_to(open_output(log))
        profile = profile_of(files) if profiled and draft not in DRAFTER_NAMES else None
        if profile is not None:
            files = as_tuned(files, profile, look_up)
            fixed_k = profile.k if fixed_k is None and profile.k != AUTO else fixed_k
        if fixed_k is None and verify != "coupled":  # the text depends on where drafts end, which must not be chance
            fixed_k = (files.preset.k if files.preset is not None else None) or USUAL_K
        is_auto = fixed_k is None
        if not raw:
            template_process.start()  # while the models load
        with stoppable(abort):
            if system is None and not raw and files.preset is not None:
                system = files.preset.system
            request = PairRequest(
                target=files.target,
                draft=files.draft,
                drafter=with_lookup(files.drafter) if is_auto and look_up and profile is None else files.drafter,
                k=_longest(files, ubatch or batch) if fixed_k is None else fixed_k,
                auto=is_auto and files.drafter != "none" and _longest(files, ubatch or batch) > 0,
                seed=_first(seed, secrets.randbits(32)),
                sampling=_over_preset(
                    files.preset,
                    temperature=temp,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    typical=typical,
                    top_n_sigma=top_n_sigma,
                    repeat_penalty=repeat_penalty,
                    frequency_penalty=frequency_penalty,
                    presence_penalty=presence_penalty,
                    repeat_last_n=repeat_last_n,
                    dry_multiplier=dry_multiplier,
                    dry_base=dry_base,
                    dry_allowed_length=dry_allowed_length,
                    dry_last_n=dry_last_n,
                ),
                p_min=_first(
                    p_min, profile.p_min if profile else None, files.preset.p_min if files.preset else None, 0.0
                ),
                ngram_store=ngram_store,
                verify=verify,
                strict=strict,
                ignore_end=ignore_eos,
                banned=tuple(ban or ()),
                bias=more.biases(logit_bias or ()),
                grammar=more.grammar_source(json_schema=json_schema, regex=regex, lark=lark, grammar=grammar),
                gpu_layers=layers(ngl, "--ngl"),
                gpu_layers_draft=layers(ngl_draft, "--ngl-draft"),
                devices=tuple(device or ()),
                main_gpu=main_gpu,
                tensor_split=_shares(tensor_split),
                rpc=tuple(rpc or ()),
                require_gpu=require_gpu,
                mmap=mmap,
                mlock=mlock,
                flash_attention=_first(flash_attn, profile.flash_attention if profile else None, "auto"),
                cache_type=_first(kv, profile.cache_type if profile else None, "f16"),
                cache_type_draft=_first(kv_draft, profile.cache_type_draft if profile else None, "f16"),
                n_ctx=ctx,
                n_ctx_draft=ctx_draft,
                n_batch=batch,
                n_ubatch=ubatch,
                threads=threads if threads is not None or profile is None else profile.threads,
                threads_draft=threads_draft,
                force=force,
                head=files.head,
                **more.breakers(dry_breaker),
            )
            pair = stack.enter_context(open_pair(request, say=say, abort=abort))
            beside = {"max_tokens": n, "stop": stop or [], "system": system, "raw": raw, "think": think}
            settings = plain_values({**asdict(request), **beside})
            if pair.tokenizers is not None:
                say(pair.tokenizers)
        trace = Trace(stack.enter_context(open_output(jsonl)) if jsonl is not None else None, say)
        writer = Writer(
            pair,
            request.k,
            Limits(n, tuple(stop or ())),
            open_view=_view_opener(plain, as_json),
            trace=trace,
            settings=settings,
            clock=time.perf_counter,
            n_logprobs=logprobs,
        )
        kept = None
        if prompt_cache is not None:
            kept = PromptCache(prompt_cache, pair, writes=not prompt_cache_ro, say=say)
            kept.load()
            if pair.auto is not None:
                pair.auto.has_read(own_name(ModelDrafter.name, pair.draft), kept.n_draft_tokens)
        talk = None
        if not raw:
            talk = conversation(pair.target.model, system=system, thinking=think, now=datetime.now, say=say)
        if text is None:
            try:
                chat(writer, talk, abort)
            finally:  # most chats end with Ctrl-C
                if kept is not None:
                    kept.save(writer.prompt_tokens - 1)
            return
        ids = talk.ask(text) if talk is not None else _raw_ids(pair, text, system, raw)
        with stoppable(abort):
            written = writer.write(ids)
        dear = sources(pair.drafter.name)[-1]
        if isinstance(pair.drafter, MixedDrafter) and pair.drafter.gave_up is not None:
            say(f"Drafts by {dear} ended ({pair.drafter.gave_up}); lookup in the text went on.")
        elif pair.auto is not None and pair.auto.left_out is not None:
            say(f"Drafts by {dear} were left out, and only lookup in the text was asked: {pair.auto.left_out}.")
        if pair.strict is not None:
            for note in strict_notes(pair.strict.longest, pair.strict.noise, pair.strict.n_settled):
                say(note)
        if as_json:
            print(json.dumps(run_document(pair, written, settings)))
        if written.answer.error is not None:
            raise written.answer.error
        if kept is not None:
            # The last token of a prompt is evaluated with what follows it.
            kept.save(written.prompt_tokens - 1)


def _longest(files: "Resolved", n_ubatch: int) -> int:
    """The longest draft that may be chosen: one that a pass can hold, and next to none where nobody drafts."""
    from specdec_cli.settings import LONGEST_AUTO

    return min(1 if files.drafter == "none" else LONGEST_AUTO, n_ubatch - 1)


def _raw_ids(pair: "Pair", text: str, system: str | None, raw: bool) -> list[int]:
    from specdec_cli.generation.encode import text_ids

    if system is not None:
        raise UsageError("--system needs a chat template, and this model has none.", hint="Leave out --system.")
    if not raw:
        say("This model has no chat template: the prompt is continued as it is.")
    return text_ids(pair.target.model, text)


def _view_opener(plain: bool, as_json: bool) -> Callable[["Header"], "View"]:
    from specdec_cli.ui.make import open_view
    from specdec_cli.ui.silent import SilentView

    if as_json:
        return lambda _: SilentView(say)
    return lambda header: open_view(header, plain=plain, stdout=sys.stdout, stderr=sys.stderr, environ=os.environ)


def _first(*values: T | None) -> T:
    """The first value that is given."""
    return next(v for v in values if v is not None)


def _over_preset(preset: "Preset | None", **given: Any) -> "SamplingParams":
    """llama.cpp's defaults, the preset's own over them, the command line's over those."""
    from specdec_cli.decode.sampling import SamplingParams

    base = preset.sampling if preset is not None else SamplingParams()
    return replace(base, **{key: value for key, value in given.items() if value is not None})


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        shares = (-1.0,)
    if all(0 <= share < float("inf") for share in shares) and (any(shares) or not shares):
        return shares
    raise UsageError(f"--tensor-split cannot be {text!r}.", hint="Give numbers with commas, such as 3,1.")
