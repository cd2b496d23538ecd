"""Options that belong together are the same for every command that opens a pair."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from specdec_cli.app import app
from specdec_cli.commands.audit import audit
from specdec_cli.commands.bench import bench
from specdec_cli.commands.draft import make, trim
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.run import run
from specdec_cli.commands.sampling_options import SamplingOptions
from specdec_cli.planning.request import Placement


@pytest.mark.parametrize("command", [run, bench, audit, make, trim])
@pytest.mark.parametrize("group", [PlacementOptions, SamplingOptions])
def test_a_command_that_opens_a_pair_takes_whole_groups(command: Callable[..., None], group: type[Any]) -> None:
    options = inspect.signature(command).parameters
    for field in dataclasses.fields(group):
        assert options[field.name].default == field.default, field.name


def test_placement_has_an_option_for_everything() -> None:
    assert len(dataclasses.fields(PlacementOptions)) == len(dataclasses.fields(Placement))
    assert PlacementOptions().asked() == Placement()


@dataclasses.dataclass(frozen=True)
class Fruit:
    apples: Annotated[int, typer.Option(help="how many")] = 1
    pears: Annotated[int, typer.Option()] = 2


@takes_groups
def basket(name: Annotated[str, typer.Argument()], *, fruit: Fruit, heavy: bool = False) -> tuple[str, Fruit, bool]:
    return name, fruit, heavy


def test_a_command_is_given_its_groups() -> None:
    assert list(inspect.signature(basket).parameters) == ["name", "apples", "pears", "heavy"]
    assert basket(name="x", apples=3, pears=2, heavy=True) == ("x", Fruit(apples=3), True)


def test_two_options_of_one_name_are_refused_at_import() -> None:
    def twice(*, fruit: Fruit, apples: int = 0) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'apples'"):
        takes_groups(twice)


@pytest.mark.parametrize("command", ["run", "bench", "audit", "replay", "plan"])
def test_the_draft_length_has_both_names_everywhere(command: str) -> None:
    commands: dict[str, Any] = vars(get_command(app))["commands"]
    found = [parameter.opts for parameter in commands[command].params if "-k" in parameter.opts]
    assert found == [["-k", "--k"]]
