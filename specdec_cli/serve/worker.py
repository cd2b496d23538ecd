"""The one thread that computes: jobs in the order they came, each with a way out while it waits and while it runs."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_cli.decode.logprobs import logprobs
from specdec_cli.decode.types import TokenLogprob
from specdec_cli.errors import Interrupted, SpecdecError
from specdec_cli.generation.pair import Pair
from specdec_cli.generation.responder import AnswerRequest, Responder, TokenText
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.serve.api_error import ApiError, as_api_error, stopping
from specdec_cli.serve.prefixes import Prefixes
from specdec_cli.serve.shapes import Ended


@dataclass(frozen=True, slots=True)
class Scored:
    """What the target thought of a prompt: (token, None for the first)."""

    answer: int
    tokens: Sequence[tuple[int, TokenLogprob | None]]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Tokens of answer number `answer`."""

    answer: int
    tokens: Sequence[TokenText]


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """Answer number `answer` is complete."""

    answer: int
    ended: Ended


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Nothing more comes; `error` says why a job ended early."""

    error: ApiError | None = None


Event = Scored | Wrote | AnswerEnded | JobEnded


@dataclass(eq=False)
class Job:
    """Answers that one client waits for. `tell` is called in the worker's thread; JobEnded is its last call.

    With `score_prompts` the log-probabilities of the prompts come first, with that many likeliest tokens.
    """

    asked: Sequence[AnswerRequest]
    tell: Callable[[Event], None]
    score_prompts: int | None = None


class QueueFull(Exception):
    """As many jobs wait as may; `n_waiting` of them."""

    def __init__(self, n_waiting: int) -> None:
        super().__init__(f"{n_waiting} requests are waiting already")
        self.n_waiting = n_waiting


class Worker:
    """Answers jobs with one pair, in a thread of its own. At most `most_waiting` jobs wait."""

    def __init__(self, responder: Responder, abort: AbortFlag, prefixes: Prefixes, *, most_waiting: int) -> None:
        self._responder = responder
        self._abort = abort
        self._prefixes = prefixes
        self._most_waiting = most_waiting
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)

    @property
    def pair(self) -> Pair:
        return self._responder.pair

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    @property
    def n_prefixes(self) -> int:
        """How many texts are kept beside the one in the sessions."""
        return len(self._prefixes)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Raises QueueFull, ApiError while the worker is being closed."""
        with self._changed:
            if self._is_closed:
                raise stopping()
            if len(self._waiting) >= self._most_waiting and (self._running is not None or self._waiting):
                raise QueueFull(len(self._waiting))
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Nobody waits for it any more: it leaves the queue, or ends within one node of llama.cpp's graph."""
        with self._changed:
            was_waiting = job in self._waiting
            if was_waiting:
                self._waiting.remove(job)
            elif self._running is job:
                self._abort.set(0)
        if was_waiting:
            job.tell(JobEnded(stopping()))

    def close(self, seconds: float | None) -> None:
        """Take no more jobs, refuse those that wait, and give the one that runs so many seconds (None: all it needs).

        Returns when the thread has ended.
        """
        with self._changed:
            self._is_closed = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in refused:
            job.tell(JobEnded(stopping()))
        if not self._thread.is_alive():
            return
        self._thread.join(seconds)
        with self._changed:
            if self._running is not None:
                self._abort.set(0)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            error: ApiError | None = None
            try:
                self._answer(job)
            except Interrupted as interrupted:
                error = as_api_error(interrupted)
            except SpecdecError as failure:
                error = as_api_error(failure)
            except Exception as failure:  # one job must not end the server
                error = ApiError(500, f"{type(failure).__name__} in the server.")
            with self._changed:
                self._running = None
                self._abort.clear()
            job.tell(JobEnded(error))

    def _next(self) -> Job | None:
        """The next job; None when the worker is closed."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            self._running = self._waiting.popleft() if self._waiting else None
            return self._running

    def _answer(self, job: Job) -> None:
        for i, asked in enumerate(job.asked):
            self._prefixes.prepare(asked.prompt)
            if job.score_prompts is not None:
                job.tell(Scored(i, self._scores(asked.prompt, job.score_prompts)))
            answer = self._responder.start(asked)
            for tokens in answer:
                job.tell(Wrote(i, tokens))
            finish = answer.finish or "length"
            ended = Ended(finish, answer.prompt_tokens, answer.cached_tokens, answer.seed, answer.stats, answer.rest)
            job.tell(AnswerEnded(i, ended))

    def _scores(self, prompt: Sequence[int], n_likeliest: int) -> list[tuple[int, TokenLogprob | None]]:
        """Log-probabilities of a prompt's tokens, in passes of as many rows as the context gives."""
        session, n_shared = self.pair.target.session, self.pair.rule.law.n_shared
        most = self.pair.target.context.max_rows
        found: list[tuple[int, TokenLogprob | None]] = [(token, None) for token in prompt[:1]]
        for at in range(1, len(prompt), most):
            tokens = prompt[at : at + most]
            rows = session.score(prompt[: at + len(tokens) - 1], len(tokens))
            found += zip(tokens, logprobs(rows, tokens, n_likeliest, n_shared), strict=True)
        return found
