"""A server of OpenAI's protocol whose model is the expert, and episodes to write down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stacx_core.swe.agent.expert import next_action, task_in
from stacx_core.swe.evaluation.trajectory import Part, Trajectory
from stacx_core.swe.tasks import Task

Answer = Callable[[list[dict[str, str]]], str]


class Server(ThreadingHTTPServer):
    """Keeps what it was asked.

    Attributes:
        answer: From messages to what the model says.
        refusals: Code and text of what the next requests get instead, the last first.
        asked: Path, headers and body of every request.
    """

    answer: Answer
    refusals: list[tuple[int, str]]
    asked: list[tuple[str, dict[str, str], Any]]
    daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: Any) -> None:
        self.server.asked.append((self.path, dict(self.headers), body))
        if self.server.refusals:
            self._send(*self.server.refusals.pop())
        elif body is None:
            self._send(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))
        else:
            text = self.server.answer(body["messages"])
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self._send(200, json.dumps({"choices": [choice], "usage": {"completion_tokens": len(text)}}))

    def _send(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that submits at once."""
    made = Server(("127.0.0.1", 0), Handler)
    made.answer, made.refusals, made.asked = (lambda _: "```bash\nsubmit\n```"), [], []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def expert() -> Callable[[list[Task]], Answer]:
    """The expert as a model."""

    def build(tasks: list[Task]) -> Answer:
        by_name = {task.name: task for task in tasks}

        def answer(messages: list[dict[str, str]]) -> str:
            said = "\n".join(message["content"] for message in messages)
            return next_action(task_in(said, by_name), said)

        return answer

    return build


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """A short episode."""

    def build(task: str = "a", sample: int = 0, outcome: str = "done", reward: float = 0.0, **more: Any) -> Trajectory:
        parts = [Part("environment", "Mend it.", 3), Part("student", "<b>&</b>", 5, 1)]
        return Trajectory(task, sample, outcome, reward, parts, **more)

    return build
