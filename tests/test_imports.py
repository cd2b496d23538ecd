"""Which room may import which: the table is the architecture, and it is exact.

A new arrow between rooms is a new entry here, or a mistake.
"""

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "specdec_cli"

IMPORTS = {
    "untrusted": "",
    "untrusted_files": "",
    "errors": "untrusted",
    "paths": "",
    "marks": "paths",
    "child_process": "errors",
    "outputs": "errors paths",
    "signals": "errors",
    "foreground": "",
    "terminal_guard": "foreground",
    "settings": "errors",
    "decode": "errors numpy",
    "models": "errors settings",
    "drafters": "errors untrusted_files paths decode models numpy",
    "llama": "errors child_process marks settings decode models llama_cpp numpy",
    "structured": "errors child_process marks decode llguidance numpy",
    "advice": "decode models",
    "presets": "errors untrusted_files untrusted paths settings decode models drafters yaml",
    "planning": "errors untrusted untrusted_files paths settings decode models drafters llama structured advice "
    "presets",
    "lengths": "errors untrusted_files paths settings decode planning",
    "forecast": "errors untrusted_files paths settings models llama planning lengths numpy",
    "hub": "errors untrusted paths settings models llama presets planning httpcore2 huggingface_hub",
    "ui": "foreground decode models prompt_toolkit rich PIL",
    "generation": "errors child_process untrusted_files paths settings decode models drafters llama structured advice "
    "planning lengths ui jinja2 numpy",
    "bench": "errors untrusted_files outputs settings decode drafters llama presets planning lengths ui generation "
    "matplotlib numpy",
    "audit": "decode drafters generation bench numpy",
    "export": "errors drafters",
    "make_draft": "errors untrusted_files paths decode models llama planning lengths generation bench numpy",
    "doctor": "errors paths settings models llama presets planning lengths hub generation bench",
    "library": "errors settings decode llama structured presets planning hub generation",
    "serve": "errors decode drafters llama structured planning generation numpy starlette uvicorn",
    "commands": "errors untrusted untrusted_files outputs paths signals terminal_guard settings decode models drafters "
    "llama structured advice presets planning lengths forecast hub ui generation bench audit make_draft export doctor "
    "serve typer",
    "app": "errors ui commands typer",
    "__main__": "app",
    "__init__": "errors decode drafters llama library",
}
"""By room or module at the top: what it imports, besides the standard library and its own room."""

DOORS = {
    "llama_cpp": {"llama"},
    "huggingface_hub": {"hub"},
    "httpcore2": {"hub"},
    "rich": {"ui"},
    "matplotlib": {"bench/plot.py"},
    "PIL": {"ui/race_gif.py"},
    "llguidance": {"structured"},
    "typer": {"commands", "app"},
    "prompt_toolkit": {"ui/line_editor.py"},
    "jinja2": {"generation/template_worker.py"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "yaml": {"presets/strict_yaml.py"},
}
"""The rooms, modules or single files that a package is imported in."""


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports anywhere, also inside functions and for type checkers."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
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


def files(row: str) -> list[Path]:
    return sorted((ROOT / row).rglob("*.py")) if (ROOT / row).is_dir() else [ROOT / f"{row}.py"]


def used(paths: list[Path]) -> set[str]:
    """Our own rooms without our name, of others the package."""
    found = {name for path in paths for name in imports(path)} - {ROOT.name}
    ours = {name.split(".")[1] for name in found if name.startswith(f"{ROOT.name}.")}
    return ours | {name.split(".")[0] for name in found} - {ROOT.name} - sys.stdlib_module_names


def test_every_room_and_module_has_its_row() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__pycache__"} == set(IMPORTS)


def test_a_room_imports_what_its_row_says() -> None:
    found = {row: used(files(row)) - {row} for row in IMPORTS}
    assert found == {row: set(names.split()) for row, names in IMPORTS.items()}


def test_nothing_imports_a_row_below_its_own() -> None:
    """So there are no circles."""
    order = list(IMPORTS)
    upwards = {
        (row, name)
        for row in IMPORTS
        for name in IMPORTS[row].split()
        if name in IMPORTS and order.index(name) > order.index(row)
    }
    assert upwards == set()


def test_each_package_has_one_door() -> None:
    for package, names in DOORS.items():
        doors = [path for door in names for path in (files(door) if "/" not in door else [ROOT / door])]
        found = {path for path in ROOT.rglob("*.py") if package in used([path])}
        assert found, f"{package} is not used"
        assert found <= set(doors), package


def test_decode_imports_no_other_room() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert used(files("decode")) & rooms <= {"decode"}


@pytest.mark.parametrize("room", [row for row in IMPORTS if (ROOT / row).is_dir()])
def test_each_room_says_what_it_holds_and_its_arrows(room: str) -> None:
    words = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    holds, _, arrows = words.partition("\n\nImports: ")
    told, _, callers = arrows.partition(".\nCalled by: ")
    assert holds
    used_rooms = [name for name in IMPORTS[room].split() if (ROOT / name).is_dir()]
    assert " ".join(told.split()) == (", ".join(used_rooms) or "no room")
    assert " ".join(callers.split()) == ", ".join(row for row in IMPORTS if room in IMPORTS[row].split()) + "."


HEAVY = (
    "llama_cpp",
    "huggingface_hub",
    "httpx2",
    "httpcore2",
    "llguidance",
    "numpy",
    "matplotlib",
    "PIL",
    "starlette",
    "prompt_toolkit",
)


COMMANDS = [
    *([name] for name in ("run", "serve", "bench", "race", "check", "doctor", "pull", "plan", "presets", "list")),
    ["draft", "make"],
    ["audit"],
    ["replay"],
]


def test_help_loads_nothing_heavy() -> None:
    code = f"""
import json, sys
from specdec_cli.app import main
found = []
for arguments in {[["--help"], ["--version"], *([*command, "--help"] for command in COMMANDS)]!r}:
    sys.argv = ["specdec", *arguments]
    try:
        main()
        end = 0
    except SystemExit as error:
        end = error.code
    found.append([arguments, end or 0, [name for name in {HEAVY!r} if name in sys.modules]])
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 + len(COMMANDS)
    assert [row for row in found if row[1:] != [0, []]] == []


def test_generate_has_one_caller() -> None:
    """Who drafts, how long and by which rule is put together in one place."""
    callers = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("generate", "engine.generate")
    }
    assert callers == {"generation/pair.py"}


def test_commands_share_options_and_nothing_of_each_other() -> None:
    """What two of them need is an option's file, or a room's."""
    names = ("audit", "bench", "draft", "race", "replay", "run", "serve")
    others = {f"specdec_cli.commands.{name}" for name in names}
    for name in [*names, "draft_steps"]:
        assert not others & set(imports(ROOT / "commands" / f"{name}.py")), name
