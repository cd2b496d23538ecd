"""The formats of one model in its repository: whole ones of the same name, the usual ones first."""

from pathlib import Path

from specdec_cli.hub.client import Hub
from specdec_cli.hub.offered import headers_of, offered
from specdec_cli.models.gguf import read_model
from specdec_cli.presets.schema import HubFile
from tests.hubstub import HubStub
from tests.planted import random_chain, write_planted
from tests.shop import add

REPO = "acme/model-GGUF"


def test_formats_of_the_same_model(tmp_path: Path) -> None:
    names = [
        "Model-7B-Q4_K_M.gguf",
        "Model-7B-Q8_0-00001-of-00002.gguf",
        "Model-7B-Q8_0-00002-of-00002.gguf",
        "Model-7B-BF16-00001-of-00002.gguf",  # its second part is missing
        "Model-7B-IQ1_S.gguf",
        "Model-7B-Q4_0.gguf",
        "Model-1B-Q4_0.gguf",
        "mmproj-Model-7B-F16.gguf",
        "Model-7B.gguf",
    ]
    for name in names:
        add(tmp_path, REPO, name, b"GGUF")
    with HubStub(tmp_path) as stub:
        found = offered(Hub(stub.endpoint), HubFile(REPO, "Model-7B-Q4_0.gguf"))
    assert [model.path for model in found] == [names[5], names[0], names[1], names[4]]
    assert len(found[2].parts) == 2


def test_a_header_is_read_without_the_weights(tmp_path: Path) -> None:
    here = write_planted(tmp_path / "here.gguf", random_chain(1024, 1), n_layers=4)
    add(tmp_path / "hub", REPO, "Model-Q8_0.gguf", here)
    chosen = HubFile(REPO, "Model-Q8_0.gguf")
    with HubStub(tmp_path / "hub") as stub:
        hub = Hub(stub.endpoint)
        (model,) = offered(hub, chosen)
        (header,) = headers_of(hub, chosen, model)
        sent = sum(request["sent"] for request in stub.log if request["method"] == "GET" and "/cdn/" in request["path"])
    assert header.tensors == read_model(here)[0].tensors
    assert sent < here.stat().st_size / 4
