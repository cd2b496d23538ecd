"""What every test stands on: a neutral environment, and models that are made once per session."""

import itertools
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# Before anything loads llama.cpp: threads that wait must not spin, or two test runs on one machine starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import HealthCheck, settings

from specdec_cli.errors import SpecdecError
from tests import real_models, secrets
from tests.planted import PlantedPair, write_pair

_COLOUR = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_HUB = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_homes = itertools.count()

# What a shell starts in the background ignores Ctrl-C, and so would every program that a test starts.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# A busy machine takes longer than the 0.2 s that an example may usually take.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that ends ignores further signals. Run inside a test, it would leave them so to every later program."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def neutral_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No settings of the user's: 80 x 24 columns, no word on colour, no token, folders of the test's own.

    `real_models` read where its cache is before this ran: models are shared by all tests.
    """
    ours = [name for name in os.environ if name.startswith("SPECDEC_")]
    for name in (*_COLOUR, *_HUB, "PYTHONUNBUFFERED", *ours):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECDEC_TRUST", "1")  # the tests' own models; those of test_trial.py want the trial
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    home = tmp_path_factory.getbasetemp() / f"home{next(_homes)}"
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))


@pytest.fixture(autouse=True)
def no_error_tells_a_secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever raises it, and whoever catches it."""
    told: list[str] = []
    make = SpecdecError.__init__

    def listen(self: SpecdecError, message: str, **options: Any) -> None:
        make(self, message, **options)
        told.append(f"{self} {self.hint}")

    monkeypatch.setattr(SpecdecError, "__init__", listen)
    yield
    assert [text for text in told if secrets.are_in(text)] == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that prints a secret has failed."""
    report = yield
    if report.passed and any(secrets.are_in(text) for _, text in report.sections):
        report.outcome, report.longrepr = "failed", "A secret was printed."
    return report


@pytest.fixture(scope="session")
def planted_pair(tmp_path_factory: pytest.TempPathFactory) -> PlantedPair:
    """A target and a draft of 320 tokens with known probabilities, which write words and never end."""
    return write_pair(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    return real_models.need(real_models.smollm2, "Q4_0")


@pytest.fixture(scope="session")
def smollm2_q8_0() -> Path:
    return real_models.need(real_models.smollm2, "Q8_0")


@pytest.fixture(scope="session")
def gemma_q4_0() -> Path:
    return real_models.need(real_models.gemma3_270m, "Q4_0")


@pytest.fixture(scope="session")
def vocab_path() -> Callable[[str], Path]:
    """`vocab_path("qwen2")`: a tokenizer without weights."""
    return lambda name: real_models.need(real_models.vocab, name)
