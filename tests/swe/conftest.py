"""Small tasks to work in, the sandboxes of this machine, and a server of OpenAI's protocol."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stacx_core.swe.sandboxes.bubblewrap import BubblewrapSandbox
from stacx_core.swe.sandboxes.bubblewrap_provider import BubblewrapProvider
from stacx_core.swe.tasks import Task, read_task

TASK_TOML = """
version = "1.0"
[agent]
timeout_sec = 30
[verifier]
timeout_sec = {verifier}
[environment]
memory_mb = {memory}
storage_mb = {storage}
"""
SCORE = "mkdir -p /logs/verifier; cat /app/score.txt > /logs/verifier/reward.txt"
MakeTask = Callable[..., Task]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


Answer = Callable[[list[dict[str, Any]]], str | dict[str, Any]]


class Server(ThreadingHTTPServer):
    """Keeps what it was asked.

    Attributes:
        answer: From messages to what the model says: a text, or a message of the assistant.
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
            said = self.server.answer(body["messages"])
            message = {"role": "assistant", "content": said} if isinstance(said, str) else said
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"completion_tokens": len(message["content"] or "")}
            self._send(200, json.dumps({"id": "chatcmpl-1", "created": 1, "choices": [choice], "usage": usage}))

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
def make_task(tmp_path: Path) -> MakeTask:
    """Writes a task folder and reads it; its working folder has ``score.txt`` with a 0, which is its reward."""

    def make(
        name: str = "sum",
        test: str = SCORE,
        dockerfile: str = "FROM x\nWORKDIR /app\nCOPY score.txt .\n",
        memory: int = 256,
        storage: int = 64,
        verifier: float = 20,
    ) -> Task:
        folder = tmp_path / name
        files = {
            "instruction.md": "Write 1 into score.txt.\n",
            "task.toml": TASK_TOML.format(memory=memory, storage=storage, verifier=verifier),
            "tests/test.sh": test + "\n",
            "environment/Dockerfile": dockerfile,
            "environment/score.txt": "0\n",
            "solution/solve.sh": "echo 1 > /app/score.txt\n",
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return read_task(folder)

    return make


@pytest.fixture
def provider(tmp_path: Path) -> BubblewrapProvider:
    """Makes bubblewrap sandboxes."""
    if shutil.which("bwrap") is None:
        pytest.skip("install bubblewrap (apt install bubblewrap) to test its sandboxes")
    return BubblewrapProvider(cache=tmp_path / "cache")


@pytest.fixture
def sandbox(provider: BubblewrapProvider, make_task: MakeTask) -> Iterator[BubblewrapSandbox]:
    """A sandbox of the small task, with 256 MiB of memory and 64 MiB of storage."""
    opened = provider.open(make_task())
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def running() -> Callable[..., bool]:
    """Whether a command of just these words runs on this machine, inside a sandbox or outside."""

    def look(*words: str) -> bool:
        wanted = b"".join(word.encode() + b"\0" for word in words)
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if file.read_bytes() == wanted:
                    return True
        return False

    return look


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a chat template and one token per byte, whose random model takes 32,768 tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*marks, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    folder = tmp_path_factory.mktemp("speaker")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=CHAT).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
