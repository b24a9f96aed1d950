"""Updating the weights of real servers, in each transport."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import AutoModelForCausalLM

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.server import SGLangServer
from stacx_core.rollout.sglang.weights.plan import TrainedWeights
from stacx_core.rollout.sglang.weights.sync import WeightSync, make_transport

PROMPT = [5, 17, 96, 3, 42, 88, 21]
LONG_PROMPT = [2 + 7 * i % 95 for i in range(200)]
BUCKETS = {1: 1, 10: 180_000, 100: 2**29}
"""Bytes of a bucket by the number of tensors that it then holds at most."""

MODES = ["disk", "tensor", "distributed"]
VERSIONS = map("v{}".format, itertools.count(1))
"""Labels that no server of this session has had; servers are shared between the tests."""


@pytest.fixture
def sync(tmp_path):
    """Update servers: `sync(mode, urls, model, version, buffer, timeout)`; one transport per mode and test."""
    transports = {mode: make_transport(mode, tmp_path) for mode in MODES}

    def update(mode, urls, weights, version, buffer=2**29, timeout=60.0):
        weights = TrainedWeights.of(weights) if isinstance(weights, torch.nn.Module) else weights
        servers = [SGLangServer(url) for url in urls]
        return asyncio.run(WeightSync(transports[mode], buffer, timeout).update(servers, weights, version))

    return update


def changed(folder, version):
    """The model of a folder with 0.01 and a little more, by version, on every weight."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 + 1e-4 * int(version[1:]))
    return model


def generate(server, prompt, tokens=16, temperature=0.0):
    params = {"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": True}
    return server.post("/generate", input_ids=prompt, sampling_params=params, return_logprob=True)


@torch.no_grad()
def greedy(model, prompt, tokens=16):
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def gap(model, prompt, answer):
    """The largest difference between the log-probabilities of a server and of a model."""
    ids = [*prompt, *answer["output_ids"]]
    own = model(torch.tensor([ids])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    own = own.gather(1, torch.tensor(answer["output_ids"])[:, None])[:, 0]
    return float((own - torch.tensor([row[0] for row in answer["meta_info"]["output_token_logprobs"]])).abs().max())


def label(server):
    with urllib.request.urlopen(server.url + "/model_info", timeout=30) as answer:
        return json.load(answer)["weight_version"]


def checksums(server):
    return server.post("/weights_checker", action="checksum")["ranks"][0]["checksums"]


DONE = "the request needs no other answer"


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server and notes their paths; ``fault`` sees the ``n``-th to one path first."""

    def __init__(self, target, path="", n=0, fault=None):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.target, self.path, self.n, self.fault = target, path, n, fault
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.paths = []


class ProxyHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.hand_on(None)

    def do_POST(self):
        self.hand_on(self.rfile.read(int(self.headers["Content-Length"])))

    def hand_on(self, body):
        proxy = self.server
        proxy.paths.append(self.path)
        if self.path == proxy.path and proxy.paths.count(self.path) == proxy.n and proxy.fault(self) == DONE:
            return
        request = urllib.request.Request(proxy.target + self.path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.reply(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self.reply(error.code, error.read())
        except OSError:
            self.cut()

    def refuse(self):
        self.reply(503, b'{"message": "out of order"}')
        return DONE

    def cut(self):
        self.connection.shutdown(socket.SHUT_RDWR)
        return DONE

    def reply(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def proxy(*arguments):
    with Proxy(*arguments) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("tensors", BUCKETS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_server_computes_with_the_new_weights(sync, sglang_server, models, tied, mode, tensors):
    version, server = next(VERSIONS), sglang_server(models[tied])
    model = changed(models[tied], version)
    report = sync(mode, [server.url], model, version, BUCKETS[tensors])
    assert report.buckets == {1: 20 + (not tied), 10: 2, 100: 1}[tensors]
    assert report.compared == len(checksums(server)) == 14 + (not tied)
    answer = generate(server, PROMPT)
    assert answer["output_ids"] == greedy(model, PROMPT)
    assert gap(model, PROMPT, answer) < 1e-4
    assert label(server) == answer["meta_info"]["weight_version"] == version


@pytest.fixture(scope="session")
def models(llama, make_llama):
    """The folders of an untied and a tied model."""
    return [llama, make_llama(tie_word_embeddings=True)]


def test_checksums_are_those_of_a_fresh_server(sync, sglang_server, make_llama, llama):
    version, server = next(VERSIONS), sglang_server(llama)
    model = changed(llama, version)
    folder = make_llama()
    model.save_pretrained(folder)
    sync("tensor", [server.url], model, version)
    fresh = sglang_server(folder)
    try:
        assert checksums(server) == checksums(fresh)
        assert generate(server, PROMPT)["output_ids"] == generate(fresh, PROMPT)["output_ids"]
    finally:
        fresh.end()


@pytest.mark.parametrize("mode", MODES)
def test_the_prefix_cache_is_empty_afterwards(sync, sglang_server, llama, mode):
    version, server = next(VERSIONS), sglang_server(llama)
    generate(server, LONG_PROMPT)
    assert generate(server, LONG_PROMPT)["meta_info"]["cached_tokens"] > 150
    model = changed(llama, version)
    sync(mode, [server.url], model, version, BUCKETS[10])
    answer = generate(server, LONG_PROMPT)
    assert answer["meta_info"]["cached_tokens"] == 0
    assert answer["output_ids"] == greedy(model, LONG_PROMPT)


@pytest.mark.parametrize("mode", MODES)
def test_two_servers_at_once(sync, sglang_server, llama, mode):
    version = next(VERSIONS)
    servers = [sglang_server(llama, number=number) for number in (0, 1)]
    sync(mode, [server.url for server in servers], changed(llama, version), version, BUCKETS[10])
    assert [label(server) for server in servers] == [version, version]
    assert checksums(servers[0]) == checksums(servers[1])


@pytest.mark.parametrize("mode", MODES)
def test_the_log_prob_gap_stays_over_20_updates(sync, sglang_server, llama, mode):
    server = sglang_server(llama)
    gaps = []
    for _ in range(20):
        version = next(VERSIONS)
        model = changed(llama, version)
        sync(mode, [server.url], model, version, BUCKETS[10])
        gaps.append(gap(model, PROMPT, generate(server, PROMPT, temperature=1.0)))
    assert max(gaps) < 1e-4


@pytest.mark.parametrize("mode", MODES)
def test_a_running_request_goes_on_with_the_new_weights(sync, sglang_server, llama, mode):
    version, server = next(VERSIONS), sglang_server(llama)
    model, before = changed(llama, version), label(server)
    params = {"max_new_tokens": 240, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"input_ids": PROMPT, "sampling_params": params, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        first = answer.readline()
        sync(mode, [server.url], model, version, BUCKETS[10])
        chunks = [line for line in (first, *answer) if line.startswith(b"data: {")]
    meta = json.loads(chunks[-1][len("data: ") :])["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == [before, version]
    assert meta["completion_tokens"] == 240


@pytest.mark.parametrize("fault", [ProxyHandler.refuse, ProxyHandler.cut])
@pytest.mark.parametrize("mode", ["tensor", "distributed"])
def test_a_failing_second_bucket_leaves_the_old_label(sync, sglang_server, llama, mode, fault):
    servers, old, new = [sglang_server(llama, number=number) for number in (0, 1)], next(VERSIONS), next(VERSIONS)
    sync(mode, [server.url for server in servers], changed(llama, old), old)
    model = changed(llama, new)
    with proxy(servers[1].url, f"/update_weights_from_{mode}", 2, fault) as faulty:
        urls = [servers[0].url, faulty.url]
        with pytest.raises(WeightSyncError, match=r"bucket 2 of 2 \(model\.layers\..* more\)") as caught:
            sync(mode, urls, model, new, BUCKETS[10])
        assert caught.value.url == faulty.url
        assert f"label is still {old!r}" in str(caught.value)
        for server in servers:
            assert generate(server, PROMPT)["meta_info"]["weight_version"] == label(server) == old
        sync(mode, urls, model, new, BUCKETS[10])
    for server in servers:
        answer = generate(server, PROMPT)
        assert answer["output_ids"] == greedy(model, PROMPT)
        assert answer["meta_info"]["weight_version"] == label(server) == new


def test_a_checkpoint_that_one_server_does_not_read_leaves_the_old_label(sync, sglang_server, llama):
    servers, old, new = [sglang_server(llama, number=number) for number in (0, 1)], next(VERSIONS), next(VERSIONS)
    sync("disk", [server.url for server in servers], changed(llama, old), old)
    with (
        proxy(servers[1].url, "/update_weights_from_disk", 1, ProxyHandler.refuse) as faulty,
        pytest.raises(WeightSyncError, match=f"the checkpoint .*{new} did not reach .*out of order"),
    ):
        sync("disk", [servers[0].url, faulty.url], changed(llama, new), new)
    for server in servers:
        assert generate(server, PROMPT)["meta_info"]["weight_version"] == label(server) == old


@pytest.mark.parametrize("path", ["/pause_generation", "/begin_weight_update", "/weights_checker"])
def test_a_failing_step_leaves_no_server_paused(sync, sglang_server, llama, path):
    servers = [sglang_server(llama, number=number) for number in (0, 1)]
    version, before = next(VERSIONS), list(map(label, servers))
    with proxy(servers[1].url, path, 1, ProxyHandler.refuse) as faulty:
        with pytest.raises(WeightSyncError, match=f"{path} answered 503: out of order") as caught:
            sync("tensor", [servers[0].url, faulty.url], changed(llama, version), version)
        assert caught.value.url == faulty.url
    for server, old in zip(servers, before, strict=True):
        assert generate(server, PROMPT)["meta_info"]["weight_version"] == old


def test_what_a_killed_run_left_open_is_closed(sync, sglang_server, llama):
    version, server = next(VERSIONS), sglang_server(llama)
    server.post("/pause_generation", mode="retract")
    server.post("/begin_weight_update")
    model = changed(llama, version)
    sync("tensor", [server.url], model, version)
    assert generate(server, PROMPT)["output_ids"] == greedy(model, PROMPT)


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_another_model_are_refused_before_the_first_byte(sync, sglang_server, llama, make_llama, mode):
    server = sglang_server(llama)
    old, version = label(server), next(VERSIONS)
    weights = TrainedWeights.of(changed(llama, version))
    name = "model.layers.0.mlp.up_proj.weight"
    others = {
        f"lack {name}": {key: value for key, value in weights.tensors.items() if key != name},
        f"{name} has shape": {**weights.tensors, name: torch.zeros(3, 3)},
    }
    cases = {said: TrainedWeights(tensors, weights.config) for said, tensors in others.items()}
    cases["has vocab_size 97, the trainer's 98"] = changed(make_llama(vocab_size=98), version)
    with proxy(server.url) as noting:
        for said, refused in cases.items():
            with pytest.raises(WeightSyncError, match=said):
                sync(mode, [noting.url], refused, version)
        assert set(noting.paths) == {"/model_info", "/server_info"}
    assert generate(server, PROMPT)["meta_info"]["weight_version"] == old


@pytest.mark.parametrize("mode", ["tensor", "distributed"])
@pytest.mark.parametrize("path", ["model_info", "bucket"])
def test_a_stopped_server_is_given_up_and_generates_when_it_goes_on(sync, sglang_server, llama, mode, path):
    servers, version = [sglang_server(llama, number=number) for number in (0, 1)], next(VERSIONS)
    old = list(map(label, servers))
    path, group = path.replace("bucket", f"update_weights_from_{mode}"), servers[1].process.pid
    began = time.monotonic()
    with proxy(servers[1].url, f"/{path}", 1, lambda _: os.killpg(group, signal.SIGSTOP)) as stopping:
        try:
            with pytest.raises(WeightSyncError, match="no answer within 2 seconds") as caught:
                sync(mode, [servers[0].url, stopping.url], changed(llama, version), version, timeout=2.0)
            assert caught.value.url == stopping.url
            assert time.monotonic() - began < 20
            assert generate(servers[0], PROMPT)["meta_info"]["weight_version"] == old[0]
        finally:
            os.killpg(group, signal.SIGCONT)
    assert generate(servers[1], PROMPT)["meta_info"]["weight_version"] == old[1]


def test_a_server_that_dies_of_an_update_is_named_and_the_other_generates(sync, sglang_server, llama):
    servers, version = [sglang_server(llama, number=number) for number in (0, 2)], next(VERSIONS)
    old = label(servers[0])
    with proxy(servers[1].url, "/update_weights_from_distributed", 1, lambda _: servers[1].end()) as dying:
        with pytest.raises(WeightSyncError) as caught:
            sync("distributed", [servers[0].url, dying.url], changed(llama, version), version, BUCKETS[10])
        assert caught.value.url == dying.url
    assert generate(servers[0], PROMPT)["meta_info"]["weight_version"] == old
