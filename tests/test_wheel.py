"""The wheel that users get: what is in it, and that it works where no checkout is in reach."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import real_models

ROOT = Path(__file__).parent.parent


def run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="the wheel is made with the package `build`")
    pytest.importorskip("hatchling", reason="the wheel is made with hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel)
    return folder


def python(installed: Path, folder: Path, *arguments: object, **environ: str) -> str:
    """Python that sees the installed wheel, and its dependencies. Without `site` (-S) it reads no .pth
    file, so no editable install leads to the checkout."""
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    env: Mapping[str, str] = {**os.environ, "PYTHONPATH": path, **environ}
    return run(sys.executable, "-S", *arguments, cwd=folder, env=env)


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"specdec_cli/_presets/demo.yaml", "specdec_cli/py.typed", "specdec_cli/llama/session.py"} <= names
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "specdec_cli").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == code
    assert {name.split("/")[0].split("-")[0] for name in names} == {"specdec_cli"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_checkout_is_out_of_reach(installed: Path, tmp_path: Path) -> None:
    """Else the next test would prove nothing."""
    code = "import specdec_cli, sys; print(specdec_cli.__file__, *sys.path, sep='\\n')"
    file, *places = python(installed, tmp_path, "-c", code).splitlines()
    assert Path(file).parent == installed / "specdec_cli"
    assert str(ROOT) not in places


def test_it_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    real_models.need(real_models.smollm2, "Q4_1")
    script = installed / "bin" / "specdec"
    version = python(installed, tmp_path, script, "--version").split()
    assert version[0] == "specdec"
    assert (installed / f"specdec_cli-{version[1]}.dist-info").is_dir()
    # The models are made once per machine, as those of all tests are.
    cache = real_models.CACHE / "specdec"
    command = ("run", "demo", "Hi", "-n", 8, "-k", 2, "--json", "--seed", 1)
    document = json.loads(python(installed, tmp_path, script, *command, SPECDEC_CACHE=str(cache)))
    assert len(document["token_ids"]) == len(document["origins"]) == 8
    assert document["models"]["drafter"] == "model"
    assert document["stats"]["drafted"] > 0
    assert {path.name.split("-")[-1] for path in (cache / "derived").iterdir()} >= {"F32.gguf", "Q4_0.gguf"}
