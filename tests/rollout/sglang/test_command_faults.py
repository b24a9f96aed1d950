"""`stacx train` on servers that somebody else started: what becomes of the run when they fail or were never right."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, Qwen2Config

WATCHED = ("--sglang-health-interval", "0.1", "--sglang-health-timeout", "2")
SLACK = 20.0
"""Seconds that a run of two rollouts may take on a busy machine, beside what it waits for."""

PAUSE, DISK, BUCKET, LABEL = (
    "/pause_generation",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/update_weight_version",
)
RESPONSES = 8
"""Of a rollout."""

Ran = tuple[Any, float]


@pytest.fixture
def serve(fake: Any, checkpoint: Path) -> Callable[..., Any]:
    """A server that says it has the tiny checkpoint."""

    def make(*faults: Any, **options: Any) -> Any:
        return fake(*faults, **{"model": str(checkpoint), **options})

    return make


@pytest.fixture
def grpo(train: Any) -> Callable[..., Ran]:
    """`stacx train --algorithm grpo` on servers, whose one distribution is not the policy's; and how long it took."""

    def run(servers: Any, *flags: str | Path, **given: Any) -> Ran:
        url = servers if isinstance(servers, str) else ",".join(server.url for server in servers)
        options = ["--rollout-engine", "sglang", "--sglang-url", url, "--rm-type", "exact", "--num-rollout", "2"]
        options += ["--n-samples-per-prompt", "2", "--parity-probe-limit", "0", "--sglang-retry-wait", "0.01"]
        began = time.monotonic()
        done = train("grpo", *options, *flags, **given)
        return done, time.monotonic() - began

    return run


def test_503_twice_is_asked_again(grpo: Any, serve: Any, metrics: Any, tmp_path: Path) -> None:
    server = serve(503, 503)
    done, _ = grpo([server])
    assert done.code == 0, done.err
    assert [line["rollout"] for line in metrics(tmp_path / "run")] == [1, 2]
    assert len(server.bodies) > 2 * RESPONSES
    assert server.version == "2"


def test_503_for_ever_ends_the_run_with_what_was_said(grpo: Any, serve: Any) -> None:
    server = serve(always=503)
    done, seconds = grpo([server], "--sglang-retries", "2")
    assert done.code == 1
    assert f"{server.url}/generate answered 503: no such luck" in done.err
    assert seconds < SLACK


def test_503_for_ever_of_one_server_leaves_the_run_to_the_other(
    grpo: Any, serve: Any, metrics: Any, tmp_path: Path
) -> None:
    servers = [serve(), serve(always=503)]
    done, _ = grpo(servers, "--sglang-retries", "2")
    assert done.code == 0, done.err
    assert [line["rollout/removed"] for line in metrics(tmp_path / "run")] == [0, 0]


def test_a_slow_server_is_waited_for(grpo: Any, serve: Any) -> None:
    server = serve("hold")
    timer = threading.Timer(1.0, server.release)
    timer.start()
    done, seconds = grpo([server])
    assert done.code == 0, done.err
    assert seconds >= 1


def test_a_late_server_is_given_up(grpo: Any, serve: Any) -> None:
    server = serve(always="hold")
    done, seconds = grpo([server], "--sglang-retries", "1", "--sglang-timeout", "1")
    assert done.code == 1
    assert f"{server.url}/generate: no answer within 1 seconds" in done.err
    assert seconds < 2 * 1 + SLACK


def test_a_server_that_stops_leaves_its_work_to_the_other(grpo: Any, serve: Any, metrics: Any, tmp_path: Path) -> None:
    servers = [serve(), serve(None, None, "stop")]
    done, seconds = grpo(servers, *WATCHED)
    assert done.code == 0, done.err
    assert 2 <= seconds < 2.1 + SLACK
    assert [line["rollout/removed"] for line in metrics(tmp_path / "run")] == [0, 0]
    assert [server.version for server in servers] == ["2", "0"]


def test_a_run_whose_servers_have_all_stopped_ends_with_the_first_cause(grpo: Any, serve: Any) -> None:
    done, seconds = grpo([serve("stop"), serve("stop")], *WATCHED)
    assert done.code == 1
    assert "error: no SGLang server is left; the first was lost because" in done.err
    assert "showed no sign of health for 2 s (--sglang-health-timeout)" in done.err
    assert 2 <= seconds < 2.1 + SLACK


@pytest.mark.parametrize("away", ["stopped", "ended"])
def test_a_server_that_is_back_is_given_the_weights_first(
    grpo: Any, serve: Any, eventually: Any, caplog: Any, away: str
) -> None:
    """It fails in the first rollout; the other one holds its last response of the third until it is back."""
    gone, other = serve("stop"), serve(*[None] * (3 * RESPONSES - 1), "hold")
    if away == "ended":
        gone.faults, gone.always, gone.healthy = deque(), 503, False
    labels = []

    def return_in_the_third_rollout() -> None:
        other.wait_for(3 * RESPONSES)
        eventually(lambda: f"{gone.url} is taken out of rotation" in caplog.text)
        looks, labelled = gone.looks, gone.orders.count(LABEL)
        eventually(lambda: away == "stopped" or gone.looks > looks + 1)
        gone.always, gone.healthy, gone.label = None, True, "default"
        gone.release()
        eventually(lambda: gone.orders.count(LABEL) > labelled)
        labels.append(gone.version)
        other.release()

    thread = threading.Thread(target=return_in_the_third_rollout)
    thread.start()
    done, _ = grpo([gone, other], *WATCHED, "--sglang-retries", "2", "--num-rollout", "4")
    thread.join()
    assert done.code == 0, done.err
    assert labels == ["2"]
    assert (gone.version, other.version) == ("4", "4")


def test_a_server_that_somebody_started_anew_is_not_sampled_from(grpo: Any, serve: Any, caplog: Any) -> None:
    """It is healthy again before anybody noticed, with weights of its own."""

    def start_anew(answer: dict[str, Any]) -> dict[str, Any]:
        servers[0].label = answer["meta_info"]["weight_version"] = "default"
        return answer

    servers = [serve(start_anew), serve()]
    done, _ = grpo(servers)
    assert done.code == 0, done.err
    assert "sampled with weights labelled 'default', which this run did not send" in caplog.text
    assert [server.version for server in servers] == ["2", "2"]


def test_two_runs_on_one_server_do_not_take_each_others_samples(grpo: Any, serve: Any) -> None:
    """The other run's weights have the same version, and another label."""
    server = serve()
    mode = "--update-weight-mode", "tensor"
    done, _ = grpo([server], *mode)
    assert done.code == 0, done.err
    others = server.label

    def sent_weights(answer: dict[str, Any]) -> dict[str, Any]:
        server.label = answer["meta_info"]["weight_version"] = others
        return answer

    server.faults.append(sent_weights)
    done, _ = grpo([server], *mode, output="another")
    assert done.code == 1
    assert f"weights labelled {others!r}, which this run did not send" in done.err


@pytest.mark.parametrize("path", ["/server_info", PAUSE, DISK])
def test_a_server_that_stops_before_an_update_is_left_out(
    grpo: Any, serve: Any, metrics: Any, tmp_path: Path, path: str
) -> None:
    stopping, other = serve(), serve()
    stopping.faults_of[path] = deque([None, "stop"])
    done, seconds = grpo([stopping, other], *WATCHED, "--sglang-timeout", "3")
    assert done.code == 0, done.err
    assert seconds < 2 * 10 + SLACK
    assert len(metrics(tmp_path / "run")) == 2
    assert (stopping.version, other.version) == ("0", "2")


def test_a_server_too_busy_to_say_what_it_runs_is_asked_again(grpo: Any, serve: Any) -> None:
    server = serve()
    server.faults_of["/server_info"] = deque([None, 503, 503])
    done, _ = grpo([server])
    assert done.code == 0, done.err
    assert server.version == "2"


def test_a_server_that_stays_too_busy_for_an_update_is_left_out(grpo: Any, serve: Any) -> None:
    busy, other = serve(), serve()
    busy.faults_of["/server_info"] = deque([None, 503, 503, 503])
    done, _ = grpo([busy, other], "--sglang-retries", "2")
    assert done.code == 0, done.err
    assert (busy.version, other.version) == ("0", "2")


BUCKETS = ("--update-weight-mode", "tensor", "--update-weight-buffer-size", "60000")
"""Two to an update."""


def test_a_refused_second_bucket_ends_the_run_under_the_old_label(grpo: Any, serve: Any, tmp_path: Path) -> None:
    servers = [serve(), serve()]
    servers[1].faults_of[BUCKET] = deque([None, None, None, 503])
    done, seconds = grpo(servers, *BUCKETS)
    assert done.code == 1
    assert "error: bucket 2 of 2 (model." in done.err
    assert f"did not reach a server: {servers[1].url}{BUCKET} answered 503: no such luck" in done.err
    assert "its label is still '0-" in done.err
    assert seconds < SLACK
    assert [server.version for server in servers] == ["0", "0"]
    assert [server.orders[-1] for server in servers] == ["/continue_generation"] * 2
    assert sum(len(server.bodies) for server in servers) == RESPONSES


def test_a_connection_that_breaks_in_a_second_bucket_costs_its_server(grpo: Any, serve: Any) -> None:
    servers = [serve(), serve()]
    servers[1].faults_of[BUCKET] = deque([None, None, None, "reset"])
    done, _ = grpo(servers, *BUCKETS)
    assert done.code == 0, done.err
    assert [server.version for server in servers] == ["2", "0"]
    assert len(servers[0].bodies) + len(servers[1].bodies) == 2 * RESPONSES
    assert len(servers[1].bodies) <= RESPONSES / 2


def test_the_last_server_that_breaks_in_a_second_bucket_ends_the_run(grpo: Any, serve: Any) -> None:
    server = serve()
    server.faults_of[BUCKET] = deque([None, None, None, "reset"])
    done, _ = grpo([server], *BUCKETS)
    assert done.code == 1
    assert "no SGLang server is left; the first was lost because bucket 2 of 2" in done.err
    assert len(server.bodies) == RESPONSES


LIMITED = """
import resource, sys
from stacx_core.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""
"""A run of which no file may be larger than 30 kB; a full disk says no in the same places."""


def test_weights_that_cannot_be_written_end_the_run(grpo: Any, serve: Any, child: Any, tmp_path: Path) -> None:
    done, _ = grpo([serve()], "--num-rollout", "1")
    assert done.code == 0, done.err
    resumed = ["-c", tmp_path / "run" / "config.toml", "--resume", "--num-rollout", "2", "--sglang-url", serve().url]
    ended = child("-c", LIMITED, "train", *map(str, resumed))
    weights = tmp_path / "run" / "sglang" / "weights"
    assert ended.returncode == 1
    assert f"error: the weights cannot be written to {weights}: " in ended.stderr
    assert not [folder for folder in weights.iterdir() if folder.name.startswith(".")]


def test_a_rollout_whose_weights_are_refused_keeps_its_line(
    grpo: Any, serve: Any, metrics: Any, tmp_path: Path
) -> None:
    server = serve()
    server.faults_of[DISK] = deque([None, 400])
    done, _ = grpo([server])
    assert done.code == 1
    assert f"{server.url}{DISK} answered 400: no such luck" in done.err
    (line,) = metrics(tmp_path / "run")
    assert line["rollout"] == 1
    assert line["rollout/response_tokens"] > 0
    assert "train/loss" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "the trainer's weights lack model.layers.2."),
        ({"num_hidden_layers": 1}, "its model has no model.layers.1."),
        ({"intermediate_size": 48}, "has shape (64, 32) and its model takes (48, 32)"),
        ({"vocab_size": 15}, "its model has vocab_size 15, the trainer's 14"),
        ({"tie_word_embeddings": True}, "its model has tie_word_embeddings True, the trainer's False"),
        (Qwen2Config(vocab_size=14), "it runs a model of type 'qwen2', the trainer one of 'llama'"),
    ],
)
def test_another_model_is_refused_before_the_first_byte(
    grpo: Any, serve: Any, checkpoint: Path, tmp_path: Path, change: Any, said: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    if isinstance(change, dict):
        change = AutoConfig.from_pretrained(checkpoint, **change)
    change.save_pretrained(other)
    server = serve(model=str(other))
    done, seconds = grpo([server])
    assert done.code == 1
    assert f"error: the trainer's weights do not fit {server.url}: " in done.err
    assert said in done.err
    assert seconds < SLACK
    assert (server.orders, server.bodies) == ([], [])


def test_another_tokenizer_is_refused(grpo: Any, serve: Any, checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace('"1": 3', '"1": 4').replace('"2": 4', '"2": 3'))
    server = serve(model=str(other))
    done, _ = grpo([serve(), server])
    assert done.code == 2
    assert f"error: --sglang-url {str(other)!r} has another tokenizer than the policy: id 3 is '2' there" in done.err
    assert (server.orders, server.bodies) == ([], [])


@pytest.fixture(params=[None, b"", b"SSH-2.0-Something\r\n", b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of no server, and of programs that say nothing, or something else, to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def speak() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return
            taken[-1].sendall(request.param)

    if request.param is None:
        listener.close()
        yield "http://127.0.0.1:9"
        return
    threading.Thread(target=speak, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in taken:
        connection.close()


def test_what_is_no_sglang_server_is_said_so(grpo: Any, stranger: str) -> None:
    done, seconds = grpo(stranger, "--sglang-timeout", "2")
    assert done.code == 1
    assert f"error: --sglang-url: {stranger}/model_info" in done.err
    assert "start an SGLang server there, or mend --sglang-url" in done.err
    assert seconds < SLACK


def test_a_web_page_is_no_sglang_server(grpo: Any, serve: Any) -> None:
    server = serve()
    server.faults_of["/model_info"] = deque([lambda _: b"<html>Welcome</html>"])
    done, _ = grpo([server])
    assert done.code == 1
    assert f"error: --sglang-url: what answers at {server.url} is no SGLang server: '<html>Welcome" in done.err
