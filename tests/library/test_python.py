"""The Python interface: the text of `run`, chunks that add up, drafters of one's own, the examples."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest

import specdec_cli
from specdec_cli.errors import ModelError, UsageError
from tests.cli import Models, json_inside

DOCS = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def open_pair(
    models: Models, **options: object
) -> "specdec_cli.library.opening.AbstractContextManager[specdec_cli.Pair]":
    return specdec_cli.open(models.words, **{"draft": models.draft, "threads": 1, **options})


class Knows:
    """Knows the text and proposes it; every fifth token wrong."""

    name = "knows"

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def propose(self, tokens: list[int], k: int, more: Callable[..., bool] | None = None) -> specdec_cli.Draft:  # noqa: ARG002
        places = range(len(tokens), min(len(tokens) + k, len(self.text)))
        return specdec_cli.Draft(tuple(self.text[i] if i % 5 else 260 for i in places))


def test_the_text_is_that_of_run(models: Models) -> None:
    run = json_inside(models.words, "a b c", "--raw", "--seed", 7, "-n", 40, "--draft", models.draft).document
    with open_pair(models, k=3) as pair:
        answers = [pair.generate("a b c", seed=7, max_tokens=40) for _ in range(2)]
        pair.generate("d e f", max_tokens=10)  # another text in the caches
        answers.append(pair.generate("a b c", seed=7, max_tokens=40))
    assert [(a.text, a.tokens) for a in answers] == [(run["text"], run["token_ids"])] * 3
    assert answers[0].prompt_tokens == run["prompt_tokens"]
    assert answers[0].stats.drafted > 0


def test_chunks_add_up_to_the_answer(models: Models) -> None:
    with open_pair(models, k=3) as pair:
        answer = pair.generate("a b", seed=3, max_tokens=30, logprobs=2)
        *chunks, last = pair.stream("a b", seed=3, max_tokens=30, logprobs=2)
    assert "".join(map(str, chunks)) + last.text == answer.text
    assert [chunk.token for chunk in chunks] == answer.tokens
    assert [chunk.drafted for chunk in chunks] == answer.drafted
    assert [chunk.logprob for chunk in chunks] == answer.logprobs
    assert any(answer.drafted)
    assert (last.token, last.finish_reason, last.stats.tokens) == (None, "length", 30)
    assert all(chunk.finish_reason is None for chunk in chunks)
    assert len(answer.logprobs[0].likeliest) == 2


def test_a_stop_string_ends_the_text_before_it_and_nothing_of_it_was_in_a_chunk(models: Models) -> None:
    with specdec_cli.open(models.ring, draft="ngram", k=4, threads=1) as pair:
        *chunks, last = pair.stream("a b", temperature=0, stop="d e", max_tokens=30)
        same = pair.generate("a b", temperature=0, stop=["d e", "x"], max_tokens=30)
    assert "".join(map(str, chunks)) + last.text == " c " == same.text
    assert (last.finish_reason, same.finish_reason) == ("stop", "stop")


def test_two_answers_at_a_time(models: Models) -> None:
    """Each is handed its whole text, so they cannot be mixed up."""
    with open_pair(models) as pair:
        alone = [pair.generate(prompt, seed=5, max_tokens=20).tokens for prompt in ("a b", "c d")]
        streams = [pair.stream(prompt, seed=5, max_tokens=20) for prompt in ("a b", "c d")]
        found = zip(*streams, strict=True)
        together = [[c.token for c in chunks if c.token is not None] for chunks in zip(*found, strict=True)]
    assert together == alone


def test_each_answer_has_a_seed_of_its_own_that_repeats_it(models: Models) -> None:
    with open_pair(models) as pair:
        first, second = (pair.generate("a b", max_tokens=20) for _ in range(2))
        again = pair.generate("a b", max_tokens=20, seed=first.seed)
    assert first.tokens != second.tokens
    assert first.tokens == again.tokens


def test_messages_go_through_the_template(models: Models) -> None:
    with specdec_cli.open(models.chat, threads=1) as pair:
        answer = pair.generate([{"role": "user", "content": "a"}])
        thinking = pair.chat_ids([{"role": "user", "content": "a"}], enable_thinking=True)
        assert pair.generate(thinking).text == " b c d e"
    assert (answer.text, answer.finish_reason) == (" a b c d e", "stop")


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_drafter_of_ones_own(models: Models, verify: str) -> None:
    with specdec_cli.open(models.words, threads=1, k=0) as pair:
        plain = pair.generate("a b c", seed=7, max_tokens=40, temperature=1.0)
        prompt = pair.tokenize("a b c")
    knows = Knows([*prompt, *plain.tokens])
    with specdec_cli.open(models.words, draft=knows, threads=1, k=4, verify=verify) as pair:
        answer = pair.generate("a b c", seed=7, max_tokens=40, temperature=1.0)
    assert answer.stats.drafted > 0
    if verify == "coupled":
        assert answer.tokens == plain.tokens
        assert 0.4 < answer.stats.acceptance < 1


def test_what_cannot_be_asked_is_refused_before_the_first_chunk(models: Models) -> None:
    with open_pair(models) as pair:
        for prompt, options in (
            ("a " * 5000, {}),
            ("a", {"temperature": -1}),
            ("a", {"logit_bias": {10**6: 1.0}}),
            ("a", {"regex": "a+", "json_schema": "{}"}),
            ([{"role": "user", "content": "a"}], {}),  # no template
        ):
            with pytest.raises(UsageError):
                pair.stream(prompt, **options)
        assert pair.generate("a b", max_tokens=2).tokens


def test_what_cannot_be_opened(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ModelError), specdec_cli.open(tmp_path / "none.gguf"):
        pass
    with pytest.raises(UsageError), specdec_cli.open(models.words, draft="nobody"):
        pass


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, specdec_cli; print([n for n in ('numpy', 'llama_cpp', 'specdec_cli.library') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert all(getattr(specdec_cli, name) is not None for name in specdec_cli.__all__)
    assert set(specdec_cli.__all__) <= set(dir(specdec_cli))
    with pytest.raises(AttributeError):
        _ = specdec_cli.nothing


def test_llama_writes_its_own_text_with_any_drafter(models: Models) -> None:
    def text(draft: object) -> str:
        llama = llama_cpp.Llama(str(models.ring), draft_model=draft, n_ctx=128, n_threads=1, verbose=False)
        try:
            return llama.create_completion("a b c a b", max_tokens=24, temperature=0)["choices"][0]["text"]
        finally:
            llama.close()

    asked: list[int] = []

    class Counting(specdec_cli.NgramDrafter):
        def propose(self, tokens: list[int], k: int, *rest: object) -> specdec_cli.Draft:
            asked.append(k)
            return super().propose(tokens, k, *rest)

    assert text(specdec_cli.LlamaDraft(Counting(), k=3)) == text(None)
    assert asked
    assert set(asked) == {3}


@pytest.mark.parametrize("code", EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_the_examples_of_the_documentation_run(
    models: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    for name, path in (("target", models.words), ("draft", models.draft), ("chat", models.chat), ("ring", models.ring)):
        link = models.folder / f"{name}.gguf"
        if link != path and not link.exists():
            link.symlink_to(path)
    monkeypatch.chdir(models.folder)
    exec(code, {"__name__": "example"})
    assert capsys.readouterr().out.strip()


def test_a_prediction_is_drafted_from_and_changes_nothing(models: Models) -> None:
    with specdec_cli.open(models.words, k=4, threads=1) as pair:
        plain = pair.generate("a b c", seed=7, max_tokens=40)
        spoilt = plain.text.replace(" C", " x", 1)
        predicted = pair.generate("a b c", seed=7, max_tokens=40, prediction=spoilt)
    assert predicted.tokens == plain.tokens
    assert predicted.stats.accepted_by_source["prediction"] > 15
    assert predicted.stats.passes < plain.stats.passes
