"""Rollouts through a router: what goes to it, what to the servers, and what becomes of a run when one of them fails."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stacx_core import SamplingParams
from stacx_core.rollout.engine import GenerationRequest
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool
from stacx_core.rollout.sglang.router import Router
from stacx_core.rollout.sglang.server import SGLangServer

WATCHED = ("--sglang-health-interval", "0.1", "--sglang-health-timeout", "2")
RESPONSES = 8
"""Of a rollout."""


class FakeRouter:
    """Passes generations on to its workers in turn, and elsewhere when a connection breaks, as sglang-router does.

    Args:
        workers: URLs of the servers that it uses from the start.
    """

    def __init__(self, *workers: str) -> None:
        self.workers = {f"id-{index}": url for index, url in enumerate(workers)}
        self.paths: set[str] = set()
        self.turn = count()
        self.statuses: list[int] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def kill(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def route(self, body: bytes) -> tuple[int, bytes]:
        """A worker's answer."""
        for _ in range(6):
            workers = list(self.workers.values())
            if not workers:
                break
            parts = urlsplit(workers[next(self.turn) % len(workers)])
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
            try:
                connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        return 503, b'{"error": {"message": "No available workers"}}'

    def change(self, method: str, path: str, body: bytes) -> None:
        if method == "DELETE":
            del self.workers[path.rpartition("/")[2]]
        else:
            self.workers[f"id-{len(self.paths)}-{next(self.turn)}"] = json.loads(body)["url"]

    def listing(self) -> bytes:
        return json.dumps({"workers": [{"id": name, "url": url} for name, url in self.workers.items()]}).encode()

    def _handler(router) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def answer(self) -> None:
                router.paths.add("/workers" if self.path.startswith("/workers/") else self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, said = 200, b""
                if self.path == "/generate":
                    status, said = router.route(body)
                    router.statuses.append(status)
                elif self.path == "/workers" and self.command == "GET":
                    said = router.listing()
                elif self.path.startswith("/workers"):
                    router.change(self.command, self.path, body)
                    status = 202
                elif self.path != "/health":
                    status = 404
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = do_DELETE = answer

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle()

        return Handler


@pytest.fixture
def route() -> Iterator[Callable[..., FakeRouter]]:
    """Makes routers, which are gone after the test."""
    made: list[FakeRouter] = []

    def make(*servers: Any) -> FakeRouter:
        made.append(FakeRouter(*(server.url for server in servers)))
        return made[-1]

    yield make
    for router in made:
        router.kill()


@pytest.fixture
def serve(fake: Any, checkpoint: Path) -> Callable[..., Any]:
    """A server that says it has the tiny checkpoint."""
    return lambda *faults, **options: fake(*faults, **{"model": str(checkpoint), **options})


@pytest.fixture
def grpo(train: Any) -> Callable[..., Any]:
    """`stacx train --algorithm grpo` on servers behind a router."""

    def run(router: str, servers: Any, *flags: str) -> Any:
        options = ["--rollout-engine", "sglang", "--sglang-url", ",".join(server.url for server in servers)]
        options += ["--sglang-router", router, "--rm-type", "exact", "--num-rollout", "2"]
        options += ["--n-samples-per-prompt", "2", "--parity-probe-limit", "0", "--sglang-retry-wait", "0.05"]
        return train("grpo", *options, *flags)

    return run


def test_requests_go_to_the_router_and_everything_else_to_the_servers(
    grpo: Any, serve: Any, route: Any, metrics: Any, tmp_path: Path
) -> None:
    servers = [serve(), serve()]
    router = route(*servers)
    done = grpo(router.url, servers)
    assert done.code == 0, done.err
    assert [line["rollout"] for line in metrics(tmp_path / "run")] == [1, 2]
    assert set(router.statuses) == {200}
    assert len(router.statuses) >= 2 * RESPONSES
    assert router.paths == {"/workers", "/generate"}
    assert [server.version for server in servers] == ["2", "2"]
    assert sum(len(server.bodies) for server in servers) == len(router.statuses)


def test_the_router_is_told_of_servers_that_it_does_not_know(grpo: Any, serve: Any, route: Any) -> None:
    servers = [serve(), serve()]
    router = route(servers[0])
    done = grpo(router.url, servers)
    assert done.code == 0, done.err
    assert sorted(router.workers.values()) == sorted(server.url for server in servers)
    assert all(server.bodies for server in servers)


def test_a_router_with_servers_of_somebody_else_is_refused(grpo: Any, serve: Any, route: Any) -> None:
    ours, other = serve(), serve()
    router = route(ours, other)
    done = grpo(router.url, [ours])
    assert done.code == 2
    assert f"--sglang-router {router.url} asks {other.url} too, which --sglang-url does not name" in done.err
    assert (ours.orders, ours.bodies, other.bodies) == ([], [], [])


def test_what_is_no_router_is_said_so(grpo: Any, serve: Any) -> None:
    server, other = serve(), serve()
    done = grpo(other.url, [server])
    assert done.code == 1
    assert f"error: --sglang-router: what answers at {other.url} is no sglang-router" in done.err
    done = grpo("http://127.0.0.1:9", [server])
    assert done.code == 1
    assert "error: http://127.0.0.1:9/workers: no connection" in done.err


def test_a_router_that_dies_ends_the_run(grpo: Any, serve: Any, route: Any) -> None:
    def die(answer: dict[str, Any]) -> dict[str, Any]:
        threading.Thread(target=router.kill).start()
        return answer

    server = serve(*[None] * RESPONSES, die)
    router = route(server)
    done = grpo(router.url, [server], "--num-rollout", "4", "--sglang-retries", "2")
    assert done.code == 1
    assert f"{router.url}/" in done.err.rpartition("error: ")[2]


def test_a_server_that_was_started_anew_gives_no_sample(
    grpo: Any, serve: Any, route: Any, metrics: Any, caplog: Any, tmp_path: Path
) -> None:
    """It has weights of its own, and nobody is to look at it for a minute but for the answer that shows it."""

    def start_anew(answer: dict[str, Any]) -> dict[str, Any]:
        servers[0].label = answer["meta_info"]["weight_version"] = "default"
        return answer

    servers = [serve(None, start_anew), serve()]
    router = route(*servers)
    done = grpo(router.url, servers, "--sglang-health-interval", "60", "--sglang-retries", "2")
    assert done.code == 0, done.err
    assert f"{router.url} sampled with weights labelled 'default', which this run did not send" in caplog.text
    assert f"{servers[0].url} has weights labelled 'default', which this run did not send" in caplog.text
    assert [line["rollout/staleness"] for line in metrics(tmp_path / "run")] == [0, 0]
    assert [server.version for server in servers] == ["default", "2"]
    assert list(router.workers.values()) == [servers[1].url]


def test_a_server_that_was_started_anew_is_given_the_weights_and_used(
    grpo: Any, serve: Any, route: Any, eventually: Any, caplog: Any
) -> None:
    """The other server holds its responses until it is back."""
    anew, other = serve(), serve(*[None] * 3, always="hold")
    router = route(anew, other)
    labels = []

    def start_anew() -> None:
        other.wait_for(4)
        anew.label = "default"
        eventually(lambda: f"{anew.url} is healthy again, and used" in caplog.text)
        labels.append(anew.version)
        other.release()

    thread = threading.Thread(target=start_anew)
    thread.start()
    done = grpo(router.url, [anew, other], *WATCHED)
    thread.join()
    assert done.code == 0, done.err
    assert f"{anew.url} has weights labelled 'default', which this run did not send" in caplog.text
    assert labels == ["0"]
    assert sorted(router.workers.values()) == sorted([anew.url, other.url])


def test_a_server_that_stops_leaves_its_work_to_the_other(
    grpo: Any, serve: Any, route: Any, metrics: Any, tmp_path: Path
) -> None:
    """The router would wait for its answers."""
    servers = [serve(), serve(None, None, "stop")]
    router = route(*servers)
    done = grpo(router.url, servers, *WATCHED)
    assert done.code == 0, done.err
    assert [line["rollout/removed"] for line in metrics(tmp_path / "run")] == [0, 0]
    assert [server.version for server in servers] == ["2", "0"]
    assert list(router.workers.values()) == [servers[0].url]


def test_a_run_whose_servers_have_all_stopped_ends_with_the_first_cause(grpo: Any, serve: Any, route: Any) -> None:
    servers = [serve("stop"), serve("stop")]
    done = grpo(route(*servers).url, servers, *WATCHED)
    assert done.code == 1
    assert "error: no SGLang server is left; the first was lost because" in done.err
    assert "showed no sign of health for 2 s (--sglang-health-timeout)" in done.err


def test_the_servers_are_told_to_abort(fake: Any, route: Any) -> None:
    """The router knows no aborts."""
    servers = [fake(slow=lambda body: True), fake(slow=lambda body: True)]
    pool = ServerPool([SGLangServer(server.url) for server in servers], Limits(timeout=10))
    router = Router(route(*servers).url, pool)
    engine = SGLangEngine(router.pool, [0], 14, router=router)
    with engine.start([GenerationRequest([2, 3], [1, 2, 3, 4])], SamplingParams(3)) as batch:
        for server in servers:
            server.wait_for(2)
        rest = batch.abort()
    assert [(answer.ids, answer.finish) for answer in rest[0]] == [([5], "abort")] * 4
