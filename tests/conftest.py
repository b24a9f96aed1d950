"""What many tests share: a tiny checkpoint with its tokenizer, prompts for it, and the arguments of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import stacx_core
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

CHARACTERS = "0123456789+="
END = 0
"""Id of the end token."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers whose 4 heads share 2 key heads, and a tokenizer of one token per character."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Write the character tokenizer into a folder."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(["<end>", "<unknown>", *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>").save_pretrained(
        folder
    )


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of twelve additions with one digit each, and their results."""
    path = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    rows = ({"prompt": f"{a}+{b}=", "label": str(a + b)} for a in range(3) for b in range(4))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def host_args() -> Callable[..., Args]:
    """The host's default arguments with some of them set."""

    def build(**given: Any) -> Args:
        return Args({**{knob.name: knob.default for knob in HOST_KNOBS}, **given})

    return build


REWARDS = '''
"""Rewards of these tests; FATAL_CALL is the call at which the process sends FATAL_SIGNAL to itself, or raises."""

import os


calls = 0


def digits(sample):
    """The share of digits among four characters."""
    global calls
    calls += 1
    if calls == int(os.environ.get("FATAL_CALL", "0")):
        if "FATAL_SIGNAL" not in os.environ:
            raise ValueError("no such answer")
        os.kill(os.getpid(), int(os.environ["FATAL_SIGNAL"]))
    return sum(character.isdigit() for character in sample.response) / 4


def constant(sample):
    return 0.5
'''


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process with the module `fatal_rewards`, imported anew by each test."""
    folder = tmp_path / "rewards"
    folder.mkdir()
    (folder / "fatal_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "fatal_rewards", raising=False)
    return folder


@pytest.fixture
def child(rewards: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with arguments in a child process that finds the rewards and the tested package."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        path = os.pathsep.join([str(rewards), str(Path(stacx_core.__file__).parents[1]), *sys.path])
        return subprocess.run(
            [sys.executable, *arguments],
            env={**clean, "PYTHONPATH": path, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


GAMES = '''
"""Environments of these tests; FATAL_CALL is the step at which the process sends FATAL_SIGNAL to itself."""

import os
import random
import threading

from stacx_core import Step

lock = threading.Lock()
calls = 0


class Digits:
    """Shows one to three digits in turn, and pays a twelfth for each digit of an answer."""

    def reset(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.left = self.random.randint(1, 3)
        return f"{self.random.randint(0, 9)}+"

    def step(self, action):
        global calls
        with lock:
            calls += 1
            if calls == int(os.environ.get("FATAL_CALL", "0")):
                os.kill(os.getpid(), int(os.environ["FATAL_SIGNAL"]))
        self.left -= 1
        return Step(f"{self.random.randint(0, 9)}=", sum(map(str.isdigit, action)) / 12, self.left == 0)

    def render(self):
        return f"{self.left} left"

    def close(self):
        pass


class Fragile(Digits):
    """Fails at the first step of every other task."""

    def step(self, action):
        if self.seed // 2 % 2:
            raise ValueError("the game broke")
        return super().step(action)


class Broken(Digits):
    """Fails at every first step."""

    def step(self, action):
        raise ValueError("the game broke")


class Stuck(Digits):
    """Every other task never answers."""

    def step(self, action):
        if self.seed // 2 % 2:
            threading.Event().wait()
        return super().step(action)


class Paying(Digits):
    """Pays 1 for the last answer of every other task."""

    def step(self, action):
        step = super().step(action)
        return Step(step.observation, float(step.done and self.seed // 2 % 2), step.done)
'''


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and its children with the module `games`, imported anew by each test."""
    folder = tmp_path / "games"
    folder.mkdir()
    (folder / "games.py").write_text(GAMES)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "games", raising=False)
    return folder


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def stacx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Run the `stacx` command in this process, with a plugin host of its own and no STACX_ variable but those given."""
    from stacx_core.cli import main

    for variable in [name for name in os.environ if name.startswith("STACX_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("stacx_core.plugins._current", None)

    def run(*arguments: str | Path, **environment: str) -> Finished:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(int(code), captured.out, captured.err)

    return run


@pytest.fixture
def train(stacx: Callable[..., Finished], checkpoint: Path, sums: Path, tmp_path: Path) -> Callable[..., Finished]:
    """`stacx train` of a recipe on the tiny checkpoint and the additions, a few tokens at a time."""

    def run(algorithm: str, *arguments: str | Path, output: str = "run", **environment: str) -> Finished:
        given = ["--algorithm", algorithm, "--hf-checkpoint", checkpoint, "--prompt-data", sums]
        given += ["--label-key", "label", "--output-dir", tmp_path / output, "--rollout-batch-size", "4"]
        given += ["--rollout-max-response-len", "4", "--lr", "1e-3"]
        return stacx("train", *given, *arguments, **environment)

    return run


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, float]]]:
    """The lines of a run's metrics, without the times."""

    def read(folder: Path) -> list[dict[str, float]]:
        lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    return read


@dataclass(frozen=True)
class Traces:
    """What carries the mark of a test."""

    mark: str
    temporary: Path

    def processes(self) -> list[int]:
        """Those that inherited the mark; one that has ended but was not collected does not count."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def servers(self) -> list[int]:
        """The main processes of servers, which their keepers started."""
        from stacx_core.rollout.keeper import parent_of

        return [pid for pid in self.processes() if is_keeper(parent_of(Path(f"/proc/{pid}")) or 0)]

    def all(self) -> list[object]:
        """Processes, temporary files and shared memory."""
        return [*self.processes(), *self.temporary.iterdir(), *Path("/dev/shm").glob(f"*{self.mark}*")]


def command_of(pid: int) -> bytes:
    """The arguments of a process, each after a zero byte."""
    try:
        return b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_keeper(pid: int) -> bool:
    """Whether a process only looks after a server."""
    return b"keeper.py\0" in command_of(pid)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """Mark every process that this test starts."""
    mark = uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setenv("MARK_OF_A_TEST", mark)
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield Traces(mark, temporary)
    shutil.rmtree(temporary)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Wait until something holds: `eventually(holds, seconds=20)`; it fails with the last value."""

    def wait(holds: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {value!r}"
            time.sleep(0.05)

    return wait
