"""The queue and the thread that computes, with an answer that waits until it is told to go on."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from specdec_cli.decode.stats import RunStats
from specdec_cli.errors import DecodeFailed, Interrupted, UsageError
from specdec_cli.generation.responder import AnswerRequest, Responder, TokenText
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Sampling
from specdec_cli.serve.api_error import ApiError
from specdec_cli.serve.prefixes import Prefixes
from specdec_cli.serve.worker import AnswerEnded, Event, Job, JobEnded, QueueFull, Worker, Wrote
from tests.serving import PATIENCE, until


class FakeAnswer:
    """Writes token `prompt[0]` again and again, one when `go` is set; ends when the abort flag is set, or at `n`."""

    finish, rest, seed, prompt_tokens, cached_tokens = "stop", "", 0, 1, 0

    def __init__(self, owner: "FakeResponder", asked: AnswerRequest) -> None:
        self.owner, self.asked, self.stats = owner, asked, RunStats()

    def __iter__(self) -> Iterator[list[TokenText]]:
        self.owner.began.append(self.asked.prompt[0])
        for _ in range(self.asked.max_tokens or 0):
            while not self.owner.go.wait(0.002):
                if self.owner.abort.is_set:
                    raise Interrupted(0)
            if self.owner.failure is not None:
                raise self.owner.failure
            yield [TokenText(self.asked.prompt[0], "x", "target")]


class FakeResponder:
    def __init__(self) -> None:
        self.abort = AbortFlag()
        self.go = threading.Event()
        self.began: list[int] = []
        self.failure: Exception | None = None

    def start(self, asked: AnswerRequest) -> FakeAnswer:
        return FakeAnswer(self, asked)


class NoPrefixes:
    def prepare(self, _: object) -> None:
        pass

    def __len__(self) -> int:
        return 0


class Client:
    """A job and what was told of it."""

    def __init__(self, token: int, n: int = 2, answers: int = 1) -> None:
        self.told: list[Event] = []
        self.job = Job([AnswerRequest([token], Sampling(), max_tokens=n)] * answers, self.told.append)

    @property
    def end(self) -> JobEnded | None:
        return next((event for event in self.told if isinstance(event, JobEnded)), None)

    def wait(self) -> ApiError | None:
        until(lambda: self.end is not None)
        assert self.told[-1] is self.end
        return cast(JobEnded, self.end).error


@pytest.fixture
def fake() -> FakeResponder:
    return FakeResponder()


@pytest.fixture
def worker(fake: FakeResponder) -> Iterator[Worker]:
    found = Worker(cast(Responder, fake), fake.abort, cast(Prefixes, NoPrefixes()), most_waiting=2)
    found.start()
    yield found
    found.close(0.0)


def submitted(worker: Worker, *clients: Client) -> None:
    for client in clients:
        worker.submit(client.job)


def test_jobs_are_answered_in_the_order_they_came(worker: Worker, fake: FakeResponder) -> None:
    clients = [Client(token) for token in (3, 1, 2)]
    submitted(worker, clients[0])
    until(lambda: worker.is_busy)
    submitted(worker, *clients[1:])
    fake.go.set()
    assert [client.wait() for client in clients] == [None] * 3
    assert fake.began == [3, 1, 2]
    for client in clients:
        kinds = [type(event) for event in client.told]
        assert kinds == [Wrote, Wrote, AnswerEnded, JobEnded]
        assert {one.token for event in client.told if isinstance(event, Wrote) for one in event.tokens} == {
            client.job.asked[0].prompt[0]
        }


def test_several_answers_to_one_prompt(worker: Worker, fake: FakeResponder) -> None:
    fake.go.set()
    client = Client(1, answers=3)
    submitted(worker, client)
    assert client.wait() is None
    assert [event.answer for event in client.told if isinstance(event, AnswerEnded)] == [0, 1, 2]


def test_a_full_queue_refuses(worker: Worker, fake: FakeResponder) -> None:
    clients = [Client(token) for token in range(3)]
    submitted(worker, clients[0])
    until(lambda: worker.is_busy)
    submitted(worker, *clients[1:])
    with pytest.raises(QueueFull):
        worker.submit(Client(9).job)
    fake.go.set()
    assert [client.wait() for client in clients] == [None] * 3


def test_a_queue_of_nobody_still_answers_one() -> None:
    fake = FakeResponder()
    worker = Worker(cast(Responder, fake), fake.abort, cast(Prefixes, NoPrefixes()), most_waiting=0)
    worker.start()
    first = Client(1)
    submitted(worker, first)
    until(lambda: worker.is_busy)
    with pytest.raises(QueueFull):
        worker.submit(Client(2).job)
    worker.close(0.0)


def test_cancelling_ends_the_running_job_and_only_that(worker: Worker, fake: FakeResponder) -> None:
    first, second, third = (Client(token) for token in (1, 2, 3))
    submitted(worker, first)
    until(lambda: fake.began == [1])
    submitted(worker, second, third)
    worker.cancel(second.job)  # it has not begun
    assert second.wait() is not None
    worker.cancel(first.job)
    assert first.wait() is not None
    until(lambda: fake.began == [1, 3])
    worker.cancel(first.job)  # it is over already: nobody else's job ends of it
    worker.cancel(second.job)
    fake.go.set()
    assert third.wait() is None


@pytest.mark.parametrize(
    ("failure", "status"), [(UsageError("no"), 400), (DecodeFailed("no"), 500), (ZeroDivisionError("no"), 500)]
)
def test_a_failure_ends_its_own_job(worker: Worker, fake: FakeResponder, failure: Exception, status: int) -> None:
    fake.failure = failure
    fake.go.set()
    first = Client(1)
    submitted(worker, first)
    error = first.wait()
    assert error is not None
    assert error.status == status
    fake.failure = None
    second = Client(2)
    submitted(worker, second)
    assert second.wait() is None


def test_closing_refuses_who_waits_and_lets_the_running_answer_end(fake: FakeResponder, worker: Worker) -> None:
    first, second = Client(1), Client(2)
    submitted(worker, first)
    until(lambda: fake.began == [1])
    submitted(worker, second)
    closing = threading.Thread(target=worker.close, args=(PATIENCE,))
    closing.start()
    error = second.wait()
    assert error is not None
    assert error.status == 503
    with pytest.raises(ApiError):
        worker.submit(Client(3).job)
    fake.go.set()
    closing.join(PATIENCE)
    assert first.wait() is None


def test_closing_at_once_ends_the_running_answer(fake: FakeResponder, worker: Worker) -> None:
    first = Client(1)
    submitted(worker, first)
    until(lambda: fake.began == [1])
    worker.close(0.0)
    error: Any = first.wait()
    assert error.status == 503
