"""Real SGLang servers on the CPU. Tests that ask for one are skipped where STACX_SGLANG_PYTHON is not set.

STACX_SGLANG_PYTHON is an interpreter with the packages of `requirements.txt` and sglang; `nox -s sglang` makes one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stacx_core.rollout import keeper
from stacx_core.rollout.sglang.launch import LaunchPlan

HERE = Path(__file__).parent
START_SECONDS = 240
CPU_ARGUMENTS = (
    "--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch "
    "--disable-overlap-schedule --disable-cuda-graph --max-total-tokens 4096 --max-running-requests 8 "
    "--context-length 256 --random-seed 1 --sleep-on-idle"
)
CPU_ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "cpu"),
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class RunningServer:
    """A server of these tests.

    Args:
        url: Its address, without a slash at the end.
        process: Its keeper, which leads its process group.
        log: What it printed.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, seconds: float = 60.0, **body: Any) -> Any:
        """Send JSON, and return the JSON of the answer."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read() or b"null")

    @property
    def pid(self) -> int:
        """The process that answers."""
        return next(keeper.descendants(self.process.pid))

    def end(self) -> None:
        """Kill its processes, stopped ones too, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter that has sglang."""
    python = os.environ.get("STACX_SGLANG_PYTHON")
    if not python:
        pytest.skip("STACX_SGLANG_PYTHON names no interpreter with sglang (nox -s sglang makes one)")
    return python


@pytest.fixture(scope="session")
def sglang_server(
    sglang_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., RunningServer]]:
    """A server of a model folder: `sglang_server(folder, *arguments, number=0)`; the same call gives the same server.

    `number` tells servers of one folder apart. A server that a test killed is started anew at the next call.
    """
    servers: dict[tuple[Any, ...], RunningServer] = {}

    def serve(folder: Path, *arguments: str, number: int = 0) -> RunningServer:
        key = (folder, arguments, number)
        if key not in servers or servers[key].process.poll() is not None:
            servers[key] = start(sglang_python, folder, arguments, tmp_path_factory.mktemp("server"))
        return servers[key]

    yield serve
    for server in servers.values():
        server.end()


@pytest.fixture
def cpu_arguments(monkeypatch: pytest.MonkeyPatch) -> str:
    """The arguments of servers that Stacx starts; sets the environment they need."""
    for name, value in CPU_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return CPU_ARGUMENTS


@pytest.fixture
def launch_plan(sglang_python: str, llama: Path, tmp_path: Path, cpu_arguments: str) -> LaunchPlan:
    """How Stacx starts servers of the shared model."""
    arguments = tuple(cpu_arguments.split())
    return LaunchPlan(sglang_python, "launch_cpu_server", str(llama), arguments, tmp_path / "sglang", START_SECONDS)


def start(python: str, model: Path, arguments: tuple[str, ...], folder: Path) -> RunningServer:
    """Start a server and wait until it answers."""
    port = free_port()
    command = [sys.executable, "-I", keeper.__file__, str(os.getpid()), python, "-m", "launch_cpu_server"]
    command += [
        "--model-path",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *CPU_ARGUMENTS.split(),
        *arguments,
    ]
    log = folder / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **CPU_ENVIRONMENT},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = RunningServer(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_until_healthy(server)
    except BaseException:
        server.end()
        raise
    return server


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_healthy(server: RunningServer) -> None:
    """Poll its health; fail with the end of its log when it ends or does not come up in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=30):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server of {server.log} did not come up:\n" + server.log.read_text(errors="replace")[-4000:])


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a random Llama and a tokenizer of one token per character: `make_llama(seed=0, **configuration)`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(seed: int = 0, **configuration: Any) -> Path:
        folder = tmp_path_factory.mktemp("llama")
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**{**LLAMA, **configuration})).save_pretrained(folder)
        save_tokenizer(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def llama(make_llama: Callable[..., Path]) -> Path:
    """The model folder that most of these tests share, and with it its server."""
    return make_llama()


@pytest.fixture(scope="session")
def large(make_llama: Callable[..., Path]) -> Path:
    """A larger model for a teacher, with three ids more, which no token has, and which are never the likeliest."""
    import torch
    from transformers import LlamaForCausalLM

    folder = make_llama(seed=3, hidden_size=128, num_hidden_layers=3, vocab_size=len(VOCABULARY) + 3)
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[len(VOCABULARY) :] = 0
    model.save_pretrained(folder)
    return folder


CHARACTERS = "".join(map(chr, range(32, 127)))
VOCABULARY = ["<end>", "<unknown>", *CHARACTERS]
LLAMA = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
}


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for every printable ASCII character, after `<end>` and `<unknown>`."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({token: index for index, token in enumerate(VOCABULARY)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>").save_pretrained(
        folder
    )
