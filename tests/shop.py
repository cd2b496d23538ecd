"""A stand-in Hub with a pair to sell, and a downloader that watches itself."""

import hashlib
import json
import multiprocessing
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from specdec_cli.hub.client import Hub, RemoteFile, RepoInfo
from specdec_cli.hub.download import Downloader
from tests.hubstub import HubStub

TARGET_REPO, DRAFT_REPO = "acme/target-GGUF", "acme/draft-GGUF"
TARGET, DRAFT = "target-Q8_0.gguf", "draft-Q4_0.gguf"


def fill(root: Path, target: Path, draft: Path) -> None:
    """A repository for each model of a pair, with the files that lie around in real ones."""
    for repo, name, source in ((TARGET_REPO, TARGET, target), (DRAFT_REPO, DRAFT, draft)):
        add(root, repo, name, source)
        (root / repo / "README.md").write_text("# A model\n")
        settings(root, repo, licence="apache-2.0")


def add(root: Path, repo: str, name: str, source: Path | bytes) -> Path:
    place = root / repo / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, bytes):
        place.write_bytes(source)
    else:
        shutil.copy(source, place)
    return place


def settings(root: Path, repo: str, **values: object) -> None:
    """How the stub treats a repository: gated, private, token, licence."""
    (root / repo / ".hub.json").write_text(json.dumps(values))


@dataclass
class Recorder:
    """A progress that remembers."""

    began: list[tuple[str, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    advanced: int = 0

    def expect(self, n_bytes: int) -> None:
        pass

    def begin(self, name: str, size: int, have: int) -> None:
        self.began.append((name, size, have))

    def advance(self, n: int) -> None:
        self.advanced += n

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Buyer:
    """Fetches from a stub without waiting: `slept` says how long it would have waited."""

    stub: HubStub
    root: Path
    stall_seconds: float = 2.0
    slept: list[float] = field(default_factory=list)
    progress: Recorder = field(default_factory=Recorder)

    @property
    def hub(self) -> Hub:
        return Hub(self.stub.endpoint, stall_seconds=self.stall_seconds)

    def downloader(self) -> Downloader:
        return Downloader(self.hub, self.root, self.progress, sleep=self.slept.append)

    def look_up(self, repo: str = TARGET_REPO, name: str = TARGET) -> tuple[RepoInfo, RemoteFile]:
        info = self.hub.info(repo, "main")
        return info, next(file for file in self.hub.files(repo, info.commit) if file.path == name)

    def fetch(self, repo: str = TARGET_REPO, name: str = TARGET) -> Path:
        info, file = self.look_up(repo, name)
        return self.downloader().fetch(repo, info.commit, file)

    def ranges(self) -> list[tuple[str | None, int]]:
        """What was asked of file bodies so far, and how many bytes the server announced for each."""
        return [(r["range"], r["sent"]) for r in self.stub.log if r["method"] == "GET" and "/cdn/" in r["path"]]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch_in_a_process(endpoint: str, root: Path, name: str, out: "multiprocessing.Queue[tuple[str, int]]") -> None:
    """What a process of its own does: it knows modules of the tests' folder, but not the tests."""
    buyer = Buyer(SimpleNamespace(endpoint=endpoint), root)  # type: ignore[arg-type]
    out.put((sha256(buyer.fetch(TARGET_REPO, name)), buyer.progress.advanced))
