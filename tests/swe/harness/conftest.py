"""Small tasks in a folder, a tiny chat model with a long context, and a harness of thirty lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from gateway_parts import chat_tokenizer

AGENT = '''
"""Talks to the model three times; what it says behind RUN is run in the sandbox, else its length decides the score."""

import json, os, subprocess, sys, urllib.request

task_file, sandbox = sys.argv[1:3]
messages = [{"role": "user", "content": open(task_file).read()}]
for turn in range(3):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        said = json.load(response)["choices"][0]["message"]
    command = said["content"].partition("RUN ")[2] or f"echo {len(said['content']) % 2} > score.txt"
    words = [sandbox, "exec", "-w", "/app", "box", "bash", "-c", command]
    done = subprocess.run(words, capture_output=True, text=True)
    messages += [said, {"role": "user", "content": f"{done.returncode} {done.stdout}{done.stderr}"}]
'''
FILES = {
    "instruction.md": "Write 1 into score.txt.\n",
    "task.toml": "[agent]\ntimeout_sec = 60\n[environment]\nmemory_mb = 256\nstorage_mb = 64\n",
    "tests/test.sh": "mkdir -p /logs/verifier; cat /app/score.txt > /logs/verifier/reward.txt\n",
    "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY score.txt .\n",
    "environment/score.txt": "0\n",
}


@pytest.fixture
def small_tasks(provider: Any, tmp_path: Path) -> Path:
    """A folder of two tasks, of which one file's number is the reward; with sandboxes, or the test is left out."""
    folder = tmp_path / "tasks"
    for name in ("first", "second"):
        for path, text in FILES.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Write a Python program; returns the command that runs it, with the task's file and the sandbox."""

    def write(text: str) -> str:
        path = tmp_path / "agent.py"
        path.write_text(text)
        return f"{sys.executable} {path} {{task_file}} {{sandbox}}"

    return write


@pytest.fixture
def agent(program: Callable[[str], str]) -> str:
    """The command of the harness above."""
    return program(AGENT)


@pytest.fixture(scope="session")
def label_files() -> Callable[[Path], list[list[list[Any]]]]:
    """The labels that a run of `online_dagger` keeps for replays: rollouts of episodes of labels."""

    def read(folder: Path) -> list[list[list[Any]]]:
        files = sorted((folder / "labels").iterdir())
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    return read


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return chat_tokenizer()


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A random model of 1 layer with a chat template and a context of 65,536 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("talker")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
