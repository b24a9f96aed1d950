"""Sessions: the tree of calls that one run of a harness made, and the episode that it is."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from stacx_core.data.sample import Message
from stacx_core.errors import TeacherError
from stacx_core.rollout.episodes import Episode, EpisodeTask, Outcome, Turn
from stacx_core.swe.gateway.errors import ApiError, unavailable, unknown_session
from stacx_core.swe.gateway.messages import message_key, newest_text, system_text
from stacx_core.swe.gateway.rendering import Renderer, Tools

COUNTED = ("malformed_tool_calls", "context_overflows", "cut", "refused", "abandoned")
"""What is counted: calls that could not be read, requests without room for an answer, answers ended by a limit, and
requests that were refused or whose client had gone."""


@dataclass
class Call:
    """One answered request.

    Args:
        turn: The context that the engine was given and the ids that it gave back.
        next: The calls whose context goes on from this one's ids.
    """

    turn: Turn
    next: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A request before it is answered.

    Args:
        messages: Of the request.
        tools: Of the request.
        context: Token ids to answer behind.
        parent: The call that the context goes on from, if any.
        number: Of the request, counted from 0; one that came to nothing leaves its number to another.
    """

    messages: Sequence[Message]
    tools: Tools
    context: list[int]
    parent: Call | None
    number: int

    @property
    def observation(self) -> str:
        """What was said since the assistant spoke last."""
        return newest_text(self.messages)


class Session:
    """What a harness said under one base URL.

    A request whose messages begin with those of an earlier request and the answer to it goes on from that request's
    very ids. All other requests are rendered anew, and so are those in which the chat template shows the earlier
    messages in another way than before. So the requests form trees: a harness that rewrites its history, or has
    several agents at work, makes branches.

    Args:
        name: Part of the base URL.
        base_url: To be given to the harness in place of the one it would use.
        task: What is being done; names the seeds.
        rollout: Number of the rollout, which is the version of the weights.
    """

    def __init__(self, name: str, base_url: str, task: EpisodeTask, rollout: int) -> None:
        self.name = name
        self.base_url = base_url
        self.task = task
        self.rollout = rollout
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        """How often each of ``COUNTED`` happened."""
        self.trouble: tuple[Outcome, str] | None = None
        """Why the last request was not answered."""
        self._roots: list[Call] = []
        self._by_conversation: dict[bytes, Call] = {}
        """By the digest of the tools and the messages that the answer ended."""
        self._numbers: set[int] = set()
        self.over = False
        """Whether it takes no more requests."""

    @property
    def answered(self) -> bool:
        """Whether any request was answered."""
        return bool(self._roots)

    def begin(self, messages: Sequence[Message], tools: Tools, renderer: Renderer | None) -> Asked:
        """Find what a request goes on from, and its context.

        Args:
            messages: Of the request.
            tools: Of the request.
            renderer: Makes ids of messages; None where the model's ids are not known, so that the context is empty.

        Raises:
            ApiError: The chat template refuses the messages, or they cannot be tokenised.
        """
        if renderer is None:
            return Asked(messages, tools, [], self._earlier(messages, tools)[0], self._number())
        whole = renderer.text(messages, tools)
        parent, answer = self._earlier(messages, tools)
        behind = None if parent is None else renderer.behind(whole, messages, answer, tools)
        if parent is None or behind is None:
            return Asked(messages, tools, renderer.ids(whole), None, self._number())
        said = [*parent.turn.context, *parent.turn.ids]
        ids = renderer.ids(behind)
        context = [*said, *(ids[1:] if ids[:1] == said[-1:] else ids)]
        return Asked(messages, tools, context, parent, self._number())

    def record(self, asked: Asked, turn: Turn, answer: Message, malformed: int = 0) -> None:
        """Keep the answer to a request.

        Args:
            asked: From :meth:`begin`.
            turn: What was generated.
            answer: The assistant's message, in the form of a request's messages.
            malformed: Tool calls that could not be read.

        Raises:
            ApiError: The session is over.
        """
        if self.over:
            raise unknown_session(self.name)
        call = Call(turn)
        siblings = self._roots if asked.parent is None else asked.parent.next
        turn.branch = bool(siblings)
        turn.system = system_text(asked.messages) if asked.parent is None else ""
        siblings.append(call)
        self._by_conversation[_digests([*asked.messages, answer], asked.tools)[-1]] = call
        self.trouble = None
        self.counts.update(cut=turn.cut, malformed_tool_calls=malformed)

    def abandon(self, asked: Asked) -> None:
        """Nobody takes the answer to a request, or there is none."""
        self._numbers.discard(asked.number)

    def overflowed(self, told: ApiError) -> ApiError:
        """A request had no room in the context; returns what its client is told."""
        self.counts["context_overflows"] += 1
        self.trouble = ("context_overflow", "")
        return told

    def failed(self, error: Exception) -> ApiError:
        """A request could not be answered, and may be sent again; returns what its client is told."""
        outcome: Outcome = "teacher_failed" if isinstance(error, TeacherError) else "env_error"
        self.trouble = (outcome, f"{type(error).__name__}: {error}")
        return unavailable(error)

    def end(self, reward: float, outcome: Outcome = "done", error: str = "") -> Episode:
        """End the session; what is still being answered is not recorded.

        Args:
            reward: Of the whole run.
            outcome: How it ended. In the place of ``done`` stands why the last request was not answered, if so.
            error: What went wrong.

        Returns:
            The calls as turns, in the order of a walk along each branch to its end before the next one. That is the
            order in which :meth:`stacx_core.rollout.episodes.Episode.samples` makes one sample of each branch, in
            which the ids shared with an earlier branch are the prompt, so that every id is trained once.
        """
        self.over = True
        if outcome == "done" and self.trouble is not None:
            outcome, error = self.trouble
        task = self.task
        turns = [call.turn for call in self._walk()]
        version, counts = str(self.rollout), Counter(self.counts)
        return Episode(task.task, task.sample, task.seed, task.task_id, version, turns, reward, outcome, error, counts)

    def _number(self) -> int:
        number = next(number for number in count() if number not in self._numbers)
        self._numbers.add(number)
        return number

    def _earlier(self, messages: Sequence[Message], tools: Tools) -> tuple[Call | None, int]:
        """The call with the longest conversation that the messages begin with, and the number of its answer."""
        digests = _digests(messages, tools)
        for number in range(len(messages) - 1, 0, -1):
            call = self._by_conversation.get(digests[number])
            if call is not None:
                return call, number
        return None, 0

    def _walk(self) -> Iterator[Call]:
        waiting = self._roots[::-1]
        while waiting:
            call = waiting.pop()
            yield call
            waiting += call.next[::-1]


def _digests(messages: Sequence[Message], tools: Tools) -> list[bytes]:
    """Of the tools and the messages up to each one."""
    digests = [hashlib.sha256(repr(tools).encode(errors="surrogatepass")).digest()]
    for message in messages:
        digests.append(hashlib.sha256(digests[-1] + repr(message_key(message)).encode()).digest())
    return digests[1:]
