"""Small tasks to work in, and the sandboxes of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

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
