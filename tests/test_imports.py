"""Who may import whom: the table is the architecture, and it is exact.

A new import is a new entry here, or a mistake.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "specdec_cli"

IMPORTS = {
    "errors": "",
    "vocabulary": "",
    "names": "",
    "machine": "",
    "guard": "",
    "text": "",
    "interrupt": "errors",
    "types": "numpy",
    "noise": "numpy",
    "folders": "",
    "tokens": "",
    "settings": "errors",
    "gguf": "errors",
    "memory": "settings",
    "facts": "gguf memory",
    "head_checks": "errors gguf",
    "heads": "errors gguf head_checks memory",
    "fit": "memory settings",
    "sampling": "errors numpy",
    "history": "sampling numpy",
    "law": "errors history sampling types numpy",
    "verify": "law noise sampling tokens types numpy",
    "rejection": "law noise sampling tokens types verify numpy",
    "chance": "rejection types numpy",
    "strict": "tokens types verify numpy",
    "logprobs": "sampling types numpy",
    "same": "strict types verify numpy",
    "rewind_cost": "types",
    "costs": "",
    "course": "types",
    "kinds": "errors",
    "stats": "types",
    "draft_length": "types",
    "pass_costs": "",
    "chances": "",
    "calibrate": "errors pass_costs types",
    "engine": "draft_length logprobs strict tokens types verify",
    "copy_odds": "",
    "suffixes": "copy_odds",
    "ngram_store": "copy_odds errors folders vocabulary numpy",
    "safetensors": "errors numpy",
    "medusa_heads": "errors safetensors sampling types numpy",
    "drafters": "copy_odds errors medusa_heads ngram_store sampling suffixes tokens types verify",
    "vocab_check": "errors vocabulary",
    "chat": "errors jinja2",
    "presets": "errors folders names sampling settings yaml",
    "derive": "errors presets",
    "resolve": "derive errors folders names presets",
    "refusals": "errors names",
    "hub": "errors names refusals huggingface_hub httpx2",
    "pick": "errors gguf hub names",
    "store": "folders gguf names presets",
    "download": "errors gguf hub store",
    "inventory": "download errors folders hub presets store",
    "advice": "memory stats types",
    "splice": "gguf",
    "llama": "errors gguf heads settings splice stats tokens types vocabulary llama_cpp numpy",
    "examine": "errors facts gguf heads hub llama.apart memory pick presets vocabulary",
    "profile": "drafters folders llama.build llama.devices machine settings",
    "learned": "calibrate chances folders pass_costs profile settings types",
    "auto_length": "chances learned types",
    "plan": "advice drafters drafters.lookahead errors facts fit gguf heads llama.build llama.devices llama.model "
    "machine memory sampling settings vocab_check",
    "pull": "download errors examine fit heads hub pick plan presets settings store vocab_check",
    "rules": "drafters errors history law llama.grammar llama.model plan rejection strict verify",
    "pairing": "auto_length drafters drafters.lookahead drafters.medusa drafters.mixed drafters.model drafters.none "
    "errors learned llama.abort llama.devices llama.head llama.head_kinds llama.model llama.session llama.weights "
    "medusa_heads memory ngram_store plan profile rewind_cost rules settings strict types verify",
    "prompt_cache": "errors folders gguf llama.build pairing plan tokens numpy",
    "prompts": "chat errors llama.model",
    "ui": "stats types vocab_check vocabulary rich",
    "trace": "stats types ui.view",
    "answer": "advice errors stats text trace types ui.view",
    "running": "answer chat draft_length engine pairing prompts stats text trace ui.view",
    "document": "llama.build pairing running trace types numpy",
    "bench": "costs draft_length drafters drafters.lookahead drafters.none engine errors pairing same sampling "
    "settings stats types verify",
    "remembered": "medusa_heads sampling types numpy",
    "audit": "bench chance draft_length drafters drafters.none engine law medusa_heads pairing rejection remembered "
    "rules same sampling types verify numpy",
    "audit_report": "audit",
    "bench_report": "bench costs course",
    "plot": "bench bench_report course errors ui.clean matplotlib",
    "tune": "bench errors llama.abort pairing settings",
    "bench_compare": "errors",
    "bench_table": "bench_compare costs drafters errors",
    "layers": "gguf numpy",
    "agreement": "costs types verify",
    "recipes": "gguf layers llama.quantize",
    "workshop": "costs errors folders gguf layers llama.abort llama.quantize recipes",
    "make_draft": "agreement bench folders gguf kinds layers llama.abort llama.build llama.layers llama.quantize "
    "llama.session machine pairing plan recipes workshop",
    "replay": "costs errors",
    "commands": "advice audit audit_report bench bench_compare bench_report bench_table chat costs derive "
    "document drafters drafters.mixed drafters.model errors "
    "fit folders gguf guard heads hub interrupt inventory kinds llama.abort llama.devices llama.grammar "
    "llama.log llama.model llama.quantize machine make_draft pairing plan plot presets profile prompt_cache prompts "
    "pull recipes replay resolve rules running sampling settings store trace tune ui.check_report ui.clean "
    "ui.make ui.progress ui.ratios ui.silent ui.steps ui.table ui.terminal ui.view ui.words "
    "vocab_check vocabulary workshop typer",
    "app": "commands.audit commands.bench commands.check commands.draft commands.files commands.plan commands.presets "
    "commands.pull commands.replay commands.run errors ui.clean typer",
    "__main__": "app",
    "__init__": "",
}
"""By module or folder: what it imports, besides the standard library and its own folder."""

DOORS = {
    "llama_cpp": {"llama"},
    "huggingface_hub": {"hub"},
    "httpx2": {"hub"},
    "rich": {"ui"},
    "matplotlib": {"plot"},
    "typer": {"commands", "app"},
    "jinja2": {"chat"},
    "yaml": {"presets"},
}

CORE = (
    *("engine", "verify", "same", "costs", "rejection", "chance", "strict", "law", "history", "sampling", "noise"),
    *("logprobs", "drafters", "draft_length", "stats", "text", "tokens", "types", "course"),
)
OUTSIDE = {"llama", "ui", "presets", "commands", "app", "chat", "trace", "running", "pairing", "hub"}


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere, also inside functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (_module_of(node.module or "", alias.name) for alias in node.names)


def _module_of(module: str, name: str) -> str:
    """`from a import b` imports the module a.b if there is one."""
    place = ROOT.parent / module.replace(".", "/") / name
    return f"{module}.{name}" if place.is_dir() or place.with_suffix(".py").exists() else module


def row_of(module: str) -> str:
    return module.split(".")[0]


def files(row: str) -> list[Path]:
    return sorted((ROOT / row).glob("*.py")) if (ROOT / row).is_dir() else [ROOT / f"{row}.py"]


def used(row: str) -> set[str]:
    """As the table has it: our own modules without our name, of others the package."""
    found = {name for path in files(row) for name in imports(path)} - {ROOT.name}
    ours = {name.removeprefix(f"{ROOT.name}.") for name in found if name.startswith(f"{ROOT.name}.")}
    others = {name.split(".")[0] for name in found} - {ROOT.name} - sys.stdlib_module_names
    return {name for name in ours if row_of(name) != row} | others


def test_every_module_has_its_row() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__pycache__"} == set(IMPORTS)


@pytest.mark.parametrize("row", IMPORTS)
def test_a_module_imports_what_its_row_says(row: str) -> None:
    assert used(row) == set(IMPORTS[row].split())


def test_nothing_imports_a_row_below_its_own() -> None:
    order = list(IMPORTS)
    upwards = {
        (row, name)
        for row in IMPORTS
        for name in IMPORTS[row].split()
        if row_of(name) in IMPORTS and order.index(row_of(name)) > order.index(row)
    }
    assert upwards == set()


@pytest.mark.parametrize("package", DOORS)
def test_each_package_has_one_door(package: str) -> None:
    assert {row for row in IMPORTS if package in used(row)} == DOORS[package]


@pytest.mark.parametrize("row", CORE)
def test_the_core_knows_neither_llama_cpp_nor_the_screen_nor_presets(row: str) -> None:
    """By whatever way round."""
    reached, waiting = set(), {row}
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting |= {row_of(name) for name in used(module) if row_of(name) in IMPORTS} - reached
    assert reached & OUTSIDE == set()


HEAVY = ("llama_cpp", "huggingface_hub", "httpx2", "numpy", "matplotlib")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *([name, "--help"] for name in ("run", "bench", "check", "pull", "plan", "presets", "list")),
        ["draft", "make", "--help"],
        ["--version"],
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import json, sys, time
began = time.perf_counter()
from specdec_cli.app import main
sys.argv = ["specdec", *{arguments!r}]
try:
    main()
except SystemExit as end:
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    print(json.dumps([end.code, loaded, time.perf_counter() - began]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, loaded, seconds = json.loads(done.stdout.splitlines()[-1])
    print(f"specdec {' '.join(arguments)}: {seconds:.2f} s")
    assert (exit_code or 0, loaded) == (0, [])
