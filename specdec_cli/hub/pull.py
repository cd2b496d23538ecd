"""The steps of `specdec pull`: find both models, judge the pair by its headers, download what is missing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specdec_cli.errors import HubError, ModelError, NoNetwork, NotHere, OutOfMemory, SpecdecError, UsageError
from specdec_cli.hub.cache import RepoStore, cached
from specdec_cli.hub.choose_file import HubSpec, cached_choice, parse_spec
from specdec_cli.hub.client import Hub
from specdec_cli.hub.download import Downloader, Progress, check_file, with_retries
from specdec_cli.hub.inspect import Examined, RemoteModel, check_is_same, examine_local, examine_remote, find_remote
from specdec_cli.models.heads import read_head, refuse_as_target
from specdec_cli.models.tokenizer_check import Report, compare, refusal
from specdec_cli.planning.placement import Fit, Machine, Sized, changes, place
from specdec_cli.planning.plan import size_notes, size_up
from specdec_cli.planning.request import Drafting, PairRequest
from specdec_cli.presets.resolve import first_shard, shard_note
from specdec_cli.presets.schema import HubFile, ModelSource
from specdec_cli.settings import LONGEST_AUTO

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One model of a pair: a file of this machine, one of the Hub's as a preset names it, or as the user did."""

    role: str
    path: Path | None = None
    hub: HubFile | None = None
    spec: HubSpec | None = None


@dataclass(frozen=True, slots=True)
class Located:
    """A wanted model, found here (a path) or on the Hub. `hub` is its name there, if it has one."""

    role: str
    place: Path | RemoteModel
    hub: HubFile | None
    examined: Examined

    @property
    def remote(self) -> RemoteModel | None:
        """None for a model that is here."""
        return None if isinstance(self.place, Path) else self.place

    @property
    def source(self) -> ModelSource:
        """As a preset would name it."""
        return ModelSource(hub=self.hub) if self.hub is not None else ModelSource(path=str(self.place))


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair before its weights come: `report` is the tokenizer check's (None without a draft), `to_fetch` in bytes."""

    models: tuple[Located, ...]
    report: Report | None
    fit: Fit
    to_fetch: int


class Puller:
    """One pull. Sleeping is an argument, so that tests need not.

    `unreachable` is how often a Hub that cannot be reached is tried again before anything came from it.
    """

    def __init__(
        self,
        hub: Hub,
        root: Path,
        progress: Progress,
        *,
        sleep: Callable[[float], None] = time.sleep,
        unreachable: int = 1,
    ) -> None:
        self._unreachable = unreachable
        self._hub = hub
        self._root = root
        self._progress = progress
        self._sleep = sleep
        self._downloader = Downloader(hub, root, progress, sleep=sleep)

    def locate(self, wanted: Wanted) -> Located:
        """Find one model and read its headers. Asks no network for files that are here. Raises HubError, ModelError."""
        if wanted.path is not None:
            path = first_shard(wanted.path.absolute(), self._progress.note)
            return Located(wanted.role, path, None, examine_local(path))
        here = self._here(wanted)
        if here is not None:
            return here
        try:
            remote = self._retried(lambda: self._find(wanted))
            examined = self._retried(lambda: examine_remote(self._hub, remote))
        except (NoNetwork, NotHere) as error:
            return self._without_network(wanted, error)
        return Located(wanted.role, remote, remote.hub_file, examined)

    def _without_network(self, wanted: Wanted, error: SpecdecError) -> Located:
        """What was pulled before of a branch that cannot be looked up now. Raises `error` if that is not all of it."""
        try:
            hub = wanted.hub if wanted.spec is None else cached_choice(self._root, wanted.spec)
        except HubError:
            hub = None
        places = cached(self._root, hub) if hub is not None else None
        if hub is None or places is None:
            raise error
        if isinstance(error, NoNetwork):
            self._progress.note(f"{error} Using the files of {hub.repo} that are on this machine.")
        return Located(wanted.role, places[0], hub, examine_local(places[0]))

    def _here(self, wanted: Wanted) -> Located | None:
        """A pinned file that was pulled before; a damaged one is put aside, to be fetched anew. Raises ModelError for
        one whose bytes are right: fetching them again would not help."""
        if wanted.hub is None or not wanted.hub.is_pinned:
            return None
        places = cached(self._root, wanted.hub)
        if places is None:
            return None
        try:
            return Located(wanted.role, places[0], wanted.hub, examine_local(places[0]))
        except ModelError as error:
            store = RepoStore(self._root, wanted.hub.repo)
            damaged = [place for place in places if _is_damaged(place, store.etag_of(place) or wanted.hub.sha256)]
            if not damaged:
                raise
            for place in damaged:
                store.set_aside(place)
            self._progress.note(f"{error} It is set aside and downloaded again.")
            return None

    def judge(self, models: tuple[Located, ...], machine: Machine, *, force: bool, cross: bool = False) -> Judged:
        """Everything that can be refused before the weights come. `force` lets a pair through whatever is found,
        `cross` one whose tokenizers differ.

        Raises VocabularyMismatch, OutOfMemory, DiskFull.
        """
        target, draft = models[0].examined, models[1].examined if len(models) > 1 else None
        refuse_as_target(target.headers, target.name)
        head = read_head(draft.headers, target.headers, draft.name, draft.file) if draft is not None else None
        report = None
        if draft is not None and target.vocabulary is not None and draft.vocabulary is not None:
            report = compare(target.vocabulary, draft.vocabulary)
        if report is not None and report.verdict == "mismatch" and not (force or cross):
            raise refusal(report)
        if draft is not None and head is None:
            for note in size_notes(target.facts, draft.facts, force=force):
                self._progress.note(note)
        usual = PairRequest(Path(target.name), Drafting("model", LONGEST_AUTO, auto=True))
        facts = draft.facts if draft is not None else None
        sized, sized_draft = size_up(usual, target.facts, facts, self._progress.note, head=head)
        fit = place(sized, sized_draft, machine)
        if not fit.fits and not force:
            raise _too_large(fit, sized, sized_draft)
        to_fetch = sum(self._missing(m.remote) for m in models if m.remote is not None)
        if not force:
            self._downloader.check_disk(to_fetch)
        return Judged(models, report, fit, to_fetch)

    def fetch(self, model: Located) -> Path:
        """The model's first file, after all of its files have come. Raises HubError, DiskFull, DamagedFile."""
        if isinstance(model.place, Path):
            if model.hub is None or self._is_sound(model.hub):
                return model.place
            return self.fetch(self.locate(Wanted(model.role, hub=model.hub)))
        info = model.place.info
        places = [self._downloader.fetch(info.repo, info.commit, part) for part in model.place.files.parts]
        self._downloader.remember(info.repo, model.place.revision, info.commit)
        return places[0]

    def _is_sound(self, hub: HubFile) -> bool:
        """Whether the files that are here are those of their hashes, as far as hashes are known."""
        store, places = RepoStore(self._root, hub.repo), cached(self._root, hub) or ()
        known = [(place, store.etag_of(place) or hub.sha256) for place in places]
        return all(self._downloader.is_sound(store, place, place.name, etag) for place, etag in known if etag)

    def _find(self, wanted: Wanted) -> RemoteModel:
        if wanted.hub is None:
            if wanted.spec is None:
                raise UsageError(f"No {wanted.role} given.", hint="Give a preset, or --target REPO:QUANT.")
            remote = find_remote(self._hub, wanted.spec)
            if (wanted.spec.choice or "").lower().endswith(".gguf") and wanted.spec.choice != remote.files.path:
                self._progress.note(shard_note(str(wanted.spec.choice), remote.files.path))
            return remote
        hub = wanted.hub
        remote = find_remote(self._hub, HubSpec(hub.repo, hub.file, hub.revision))
        check_is_same(remote, hub)
        return remote

    def _missing(self, remote: RemoteModel) -> int:
        return self._downloader.missing_bytes(remote.info.repo, remote.info.commit, remote.files.parts)

    def _retried(self, action: Callable[[], T]) -> T:
        return with_retries(action, sleep=self._sleep, note=self._progress.note, unreachable=self._unreachable)


def _is_damaged(place: Path, etag: str | None) -> bool:
    """A file that cannot be read says nothing about its bytes."""
    try:
        return check_file(place, etag) is not None
    except OSError:
        return False


def wanted_model(role: str, text: str) -> Wanted:
    """What `--target` or `--draft` names: a file here, or REPO[:FILE|QUANT][@REVISION]. Raises UsageError."""
    path = Path(text).expanduser()
    if path.exists() or text.startswith((".", "/", "~")):
        return Wanted(role, path=path)
    return Wanted(role, spec=parse_spec(text))


def _too_large(fit: Fit, target: Sized, draft: Sized | None) -> OutOfMemory:
    found = changes(target, draft, fit.machine)
    return OutOfMemory(
        f"The pair needs about {(fit.ram + fit.gpu) / 1e9:.1f} GB of memory at a context of "
        f"{target.context.n_ctx}; {(fit.machine.free_bytes or 0) / 1e9:.1f} GB are free.",
        hint=f"What would fit: {found[0].text}. specdec pull --force downloads it regardless."
        if found
        else "Use a smaller model or quantization. specdec pull --force downloads it regardless.",
    )
