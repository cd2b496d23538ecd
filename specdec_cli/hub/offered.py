"""The other number formats in which a repository offers a model, and their headers."""

from specdec_cli.hub.choose_file import ModelFiles, models_in, quant_of
from specdec_cli.hub.client import Hub
from specdec_cli.hub.inspect import read_headers
from specdec_cli.models.gguf import GgufHeader, parts_of
from specdec_cli.presets.schema import HubFile

_USUAL = ("Q4_K_M", "Q8_0", "Q4_0", "BF16", "F16", "Q6_K", "Q5_K_M", "Q3_K_M", "IQ4_XS", "Q2_K", "F32")
"""The most telling first: what most people have, and what drafts gain most with."""


def offered(hub: Hub, chosen: HubFile) -> list[ModelFiles]:
    """The same model in each format that the repository has whole, `chosen` first and then the usual ones.

    Another model in the same repository has the same formats: a file counts if its name differs in its format alone.
    Raises HubError.
    """
    commit = hub.info(chosen.repo, chosen.revision).commit
    models = [model for model in models_in(hub.files(chosen.repo, commit)) if _is_whole(model)]
    alike = [model for model in models if _name(model.path) == _name(chosen.file) and quant_of(model.path)]
    return sorted(alike, key=lambda model: (model.path != chosen.file, _rank(quant_of(model.path) or ""), model.size))


def headers_of(hub: Hub, chosen: HubFile, model: ModelFiles) -> tuple[GgufHeader, ...]:
    """Of all parts of a model that is offered beside `chosen`. Raises HubError, ModelError."""
    return read_headers(hub, hub.info(chosen.repo, chosen.revision), model)[0]


def _is_whole(model: ModelFiles) -> bool:
    return {part.path for part in model.parts} == set(parts_of(model.path))


def _name(path: str) -> str:
    """A file's name without its folder, its format and the number of its parts."""
    name = path.rpartition("/")[2].lower()
    quant = (quant_of(path) or "").lower()
    before, found, _ = name.rpartition(quant) if quant else (name, "", "")
    return before if found else name


def _rank(quant: str) -> int:
    return _USUAL.index(quant) if quant in _USUAL else len(_USUAL)
