"""What a server shows: lines alone, or lines above the state of things."""

from specdec_cli.ui.serving import ServingView
from tests.ui_fakes import FakeTty


def test_lines_above_the_state_of_things() -> None:
    tty, said = FakeTty(), []
    with ServingView(tty.terminal, lambda: "1 running · 0 waiting", plain=False, say=said.append) as view:
        view.show("12:00:00 /v1/completions · ok")
        view.show("12:00:01 /v1/completions · [red]\x1b[2J")
    rows = [row for row in tty.everything() if row]
    assert rows[0] == "12:00:00 /v1/completions · ok"
    assert rows[1] == "12:00:01 /v1/completions · [red]␛[2J"
    assert rows[-1] == "1 running · 0 waiting"
    assert said == []


def test_lines_alone() -> None:
    tty, said = FakeTty(), []
    with ServingView(tty.terminal, lambda: "never asked", plain=True, say=said.append) as view:
        view.show("a line")
    assert (said, tty.getvalue()) == (["a line"], "")
