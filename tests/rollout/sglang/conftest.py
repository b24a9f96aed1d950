"""A server that speaks like SGLang over real sockets and fails in whatever way a test wants."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

VOCABULARY = 14
SECONDS = 20.0
Change = Callable[[dict[str, Any]], Any]
Fault = int | str | Change | None


def log_softmax(temperature: float) -> list[float]:
    """The one distribution of the fake's model: each id is less likely than the one before."""
    logits = [-0.3 * index / temperature for index in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


class Listener(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 256


class FakeServer:
    """Answers like SGLang, but for faults.

    Args:
        faults: What becomes of the first requests for a generation or a score, one after another; the rest is
            answered well, as ``None`` is. A status, a change of the good answer, ``reset`` the connection, ``hold`` the
            answer until `release`, or ``stop`` and answer nothing at all until then.
        always: What becomes of the rest instead.
        model: What it says its model's folder is.
        scales: Whether it tells log-probs of given tokens at the temperature of the request; SGLang does not.
        slow: Which requests it works on until they are aborted, when one token is there.
    """

    def __init__(
        self,
        *faults: Fault,
        always: Fault = None,
        model: str = "",
        scales: bool = False,
        slow: Callable[[dict[str, Any]], bool] = lambda body: False,
    ) -> None:
        self.faults = deque(faults)
        self.always = always
        self.model = model
        self.scales = scales
        self.slow = slow
        self.faults_of: dict[str, deque[Fault]] = {}
        """Like `faults`, of requests to other paths."""
        self.label = "3"
        """Of its weights, as it tells it."""
        self.awaited = 0
        """How many requests are to come in before any is answered."""
        self.orders: list[str] = []
        """Paths of the other requests that were not only questions, once they were done as asked, or failed."""
        self.stopped = False
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.aborted: set[str] = set()
        self.connections: list[socket.socket] = []
        self.running = self.most_running = 0
        self.healthy = True
        self.looks = 0
        """How often it was asked for its health."""
        self.released = False
        self.changed = threading.Condition()
        self._http = Listener(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @property
    def version(self) -> str:
        """Of its weights: what their label begins with."""
        return self.label.partition("-")[0]

    def wait_for(self, requests: int) -> None:
        """Until so many requests have come in."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.bodies) >= requests, SECONDS), len(self.bodies)

    def release(self) -> None:
        """Answer what was held."""
        with self.changed:
            self.released, self.stopped = True, False
            self.changed.notify_all()

    def kill(self) -> None:
        """Be gone, with every connection."""
        self._http.shutdown()
        self._http.server_close()
        for connection in self.connections:
            reset(connection)
        self.release()

    def fault(self) -> Fault:
        with self.changed:
            return self.faults.popleft() if self.faults else self.always

    def fault_of(self, path: str) -> Fault:
        with self.changed:
            faults = self.faults_of.get(path)
            return faults.popleft() if faults else None

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """What SGLang would say."""
        sampling = body["sampling_params"]
        count, prompt = sampling["max_new_tokens"], body["input_ids"]
        row = log_softmax(sampling["temperature"] or 1.0)
        ids = [(sum(prompt) + step) % VOCABULARY for step in range(count)]
        finish: dict[str, Any] = {"type": "length", "length": count}
        if body.get("rid") in self.aborted:
            ids, finish = ids[:1], {"type": "abort", "message": "Aborted"}
        elif set(ids) & set(sampling.get("stop_token_ids") or []):
            ids = ids[: min(ids.index(i) for i in sampling["stop_token_ids"] if i in ids) + 1]
            finish = {"type": "stop", "matched": ids[-1]}
        meta: dict[str, Any] = {"finish_reason": finish, "weight_version": self.label}
        meta["output_token_logprobs"] = [[row[index], index, None] for index in ids]
        meta["output_top_logprobs"] = [[[row[i], i, None] for i in range(body.get("top_logprobs_num", 0))] for _ in ids]
        if "logprob_start_len" in body:
            self._score(meta, body)
        return {"text": "", "output_ids": ids, "meta_info": meta}

    def obey(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What SGLang would say to an order."""
        if path == "/abort_request":
            with self.changed:
                self.aborted.add(body["rid"])
                self.changed.notify_all()
        elif path == "/update_weights_from_disk":
            self.model = body["model_path"]
        elif path == "/update_weight_version":
            self.label = body["new_version"]
        elif path == "/weights_checker":
            return {"ranks": [{"checksums": {}}]}
        return {"success": True}

    def about(self) -> dict[str, dict[str, Any]]:
        """What it says of itself. On a GPU its checksums are another hash, which nobody can compare."""
        return {
            "/model_info": {
                "model_path": self.model,
                "tokenizer_path": self.model,
                "weight_version": self.label,
            },
            "/server_info": {"dtype": "float32", "device": "cuda", "tp_size": 1, "pp_size": 1, "dp_size": 1},
        }

    def go_on(self) -> None:
        """Return once it is not stopped."""
        with self.changed:
            self.changed.wait_for(lambda: not self.stopped, SECONDS)

    def _score(self, meta: dict[str, Any], body: dict[str, Any]) -> None:
        row = log_softmax(body["sampling_params"]["temperature"] if self.scales else 1.0)
        first, *rest = body["input_ids"][body["logprob_start_len"] :]
        meta["input_token_logprobs"] = [[None, first, None], *([row[i], i, None] for i in rest)]
        for name, ids in (
            ("input_top_logprobs", range(body.get("top_logprobs_num", 0))),
            ("input_token_ids_logprobs", body.get("token_ids_logprob", [])),
        ):
            meta[name] = [None, *([[row[i], i, None] for i in ids] for _ in rest)]

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                fake.connections.append(self.connection)

            def log_message(self, *arguments: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

            def do_GET(self) -> None:
                fake.go_on()
                if self.path in fake.about():
                    self.fail_or_reply(fake.fault_of(self.path), fake.about()[self.path])
                else:
                    fake.looks += 1
                    self.reply(200 if fake.healthy else 503, None)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.go_on()
                if self.path != "/generate":
                    fault = fake.fault_of(self.path)
                    good = {} if fault else fake.obey(self.path, body)
                    fake.orders.append(self.path)
                    self.fail_or_reply(fault, good)
                    return
                with fake.changed:
                    fake.bodies.append(body)
                    fake.headers.append(dict(self.headers))
                    fake.times.append(time.monotonic())
                    fake.running += 1
                    fake.most_running = max(fake.most_running, fake.running)
                    fake.changed.notify_all()
                fault = fake.fault()
                with fake.changed:
                    fake.changed.wait_for(lambda: len(fake.bodies) >= fake.awaited, SECONDS)
                    if fault == "hold" or fake.slow(body):
                        fake.changed.wait_for(lambda: fake.released or body.get("rid") in fake.aborted, SECONDS)
                    fake.running -= 1
                self.fail_or_reply(fault, fake.answer(body))

            def fail_or_reply(self, fault: Fault, good: dict[str, Any]) -> None:
                if fault == "stop":
                    fake.stopped = True
                    fake.go_on()
                if fault == "reset":
                    reset(self.connection)
                    self.close_connection = True
                elif isinstance(fault, int):
                    self.reply(fault, {"error": {"message": "no such luck"}})
                else:
                    self.reply(200, fault(good) if callable(fault) else good)

            def reply(self, status: int, body: Any) -> None:
                content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "text/html" if content.startswith(b"<") else "application/json")
                self.end_headers()
                self.wfile.write(content)

        return Handler


def reset(connection: socket.socket) -> None:
    """End a connection without a word."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeServer]]:
    """Makes servers, which are gone after the test."""
    made: list[FakeServer] = []

    def make(*faults: Fault, **options: Any) -> FakeServer:
        made.append(FakeServer(*faults, **options))
        return made[-1]

    yield make
    for server in made:
        server.kill()
