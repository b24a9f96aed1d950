"""The gateway: an endpoint on the loopback interface, its sessions, and the thread that serves them."""

from __future__ import annotations

import re
import secrets
from contextlib import AbstractContextManager
from types import TracebackType
from uuid import uuid4

from aiohttp import web
from transformers import PreTrainedTokenizerBase

from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.episodes import Episode, EpisodeTask, Outcome
from stacx_core.rollout.playing import Who, student_only
from stacx_core.rollout.sglang.loop import LoopThread
from stacx_core.rollout.teachers.protocol import Actor
from stacx_core.swe.gateway.answering import Answerer
from stacx_core.swe.gateway.server import Endpoint, Model
from stacx_core.swe.gateway.sessions import Session
from stacx_core.swe.gateway.settings import GatewaySettings

CLOSING_SECONDS = 0.1
"""How long requests that are being answered are waited for when the gateway closes; aiohttp waits for ever at 0."""
_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")


class SessionServer(AbstractContextManager["SessionServer"]):
    """Serves a model to agent harnesses that speak the protocol of OpenAI, and records their runs.

    Args:
        model: Who answers.
    """

    def __init__(self, model: Model) -> None:
        self.settings = model.settings
        self.key = secrets.token_urlsafe(32)
        """What clients bring as their API key."""
        self._sessions: dict[str, Session] = {}
        self._model = model
        self.failed = model.failed
        """Has the first error that ends all sessions, once there is one."""
        endpoint = Endpoint(model, self._sessions, self.key)
        self._runner = web.AppRunner(
            endpoint.application(), handler_cancellation=True, access_log=None, shutdown_timeout=CLOSING_SECONDS
        )
        self._loop = LoopThread()
        self._open = True
        self.url = f"http://127.0.0.1:{self._loop.run(self._serve())}"
        """Of the endpoint; ``/v1`` and ``/session/NAME/v1`` are base URLs."""

    def open(self, task: EpisodeTask, rollout: int = 0, name: str | None = None) -> Session:
        """Begin a session, whose ``base_url`` is for one harness.

        Args:
            task: What the harness is to do.
            rollout: Number of the rollout.
            name: Of the session, in the URL; one of its own by default.

        Raises:
            ValueError: The name is in use, or no name for a URL.
        """
        name = uuid4().hex if name is None else name
        if not _NAME.fullmatch(name) or name in self._sessions:
            raise ValueError(f"a session cannot be called {name!r}: use letters, digits and ._~-, and each name once")
        session = Session(name, f"{self.url}/session/{name}/v1", task, rollout)
        self._sessions[name] = session
        return session

    def finish(self, session: Session, reward: float, outcome: Outcome = "done", error: str = "") -> Episode:
        """End a session, whose later requests are refused; see :meth:`Session.end`.

        Raises:
            ValueError: It has ended.
        """
        if session.over:
            raise ValueError(f"the session {session.name!r} has ended")

        async def ended() -> Episode:
            del self._sessions[session.name]
            return session.end(reward, outcome, error)

        return self._loop.run(ended())

    def close(self) -> None:
        """Serve no more; requests that wait for an answer get none. Closing twice does nothing."""
        if self._open:
            self._open = False
            self._loop.run(self._runner.cleanup())
            self._loop.close()
            self._model.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _serve(self) -> int:
        """Listen; returns the port, which the system chose."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port


class Gateway(SessionServer):
    """Serves the policy.

    Args:
        settings: What answers depend on.
        tokenizer: Of the policy, with a chat template.
        engine: Of the policy; it must not be given other weights while a session is open. None where ``who`` never
            names the student.
        teacher: Acts where ``who`` says so.
        who: Names the executor of each request of a session, by its number; a harness cannot tell who answered.

    Raises:
        ConfigError: The tokenizer has no chat template.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        tokenizer: PreTrainedTokenizerBase,
        engine: RolloutEngine | None,
        teacher: Actor | None = None,
        who: Who = student_only,
    ) -> None:
        super().__init__(Answerer(settings, tokenizer, engine, teacher, who))
