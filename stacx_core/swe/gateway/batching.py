"""Questions of many threads, answered together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from stacx_core.rollout.engine import SamplingParams

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Waiting(Generic[Question, Answer]):
    question: Question
    params: SamplingParams
    future: Future[Answer]


class Batcher(Generic[Question, Answer]):
    """Hands questions on, in a thread of its own; those that come while others are being answered go together.

    Questions with other parameters make another batch. A question whose future was cancelled before its turn came is
    left out.

    Args:
        answer: One answer per question, in order.
        overlapping: Whether a batch begins before the one in front of it has ended, for whoever can answer several.
    """

    def __init__(
        self, answer: Callable[[Sequence[Question], SamplingParams], Sequence[Answer]], *, overlapping: bool = False
    ) -> None:
        self._answer = answer
        self._overlapping = overlapping
        self._queue: queue.SimpleQueue[_Waiting[Question, Answer] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stacx-gateway-batches", daemon=True)
        self._thread.start()

    def ask(self, question: Question, params: SamplingParams) -> Future[Answer]:
        """Have a question answered; the future raises what answering it raised."""
        future: Future[Answer] = Future()
        self._queue.put(_Waiting(question, params, future))
        return future

    def close(self) -> None:
        """Answer what was asked, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            waiting, ended = self._taken()
            for params in dict.fromkeys(item.params for item in waiting):
                batch = [item for item in waiting if item.params == params]
                if self._overlapping:
                    threading.Thread(target=self._hand_on, args=(batch, params), daemon=True).start()
                else:
                    self._hand_on(batch, params)

    def _taken(self) -> tuple[list[_Waiting[Question, Answer]], bool]:
        """All that waits, at least one, and whether there will be no more."""
        waiting: list[_Waiting[Question, Answer]] = []
        while True:
            try:
                item = self._queue.get(block=not waiting)
            except queue.Empty:
                return waiting, False
            if item is None:
                return waiting, True
            waiting.append(item)

    def _hand_on(self, batch: list[_Waiting[Question, Answer]], params: SamplingParams) -> None:
        batch = [item for item in batch if item.future.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            answers = self._answer([item.question for item in batch], params)
            pairs = list(zip(batch, answers, strict=True))
        except BaseException as error:  # whatever an engine raises is the answer, and the thread goes on
            for item in batch:
                item.future.set_exception(error)
            return
        for item, answer in pairs:
            item.future.set_result(answer)
