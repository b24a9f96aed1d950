"""What tests of the roll-ins share: a tiny checkpoint, a counting game, its expert, and the `stacx` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import stacx_core
import stacx_plugin_dagger

CHARACTERS = "0123456789+=?!"
END = 0

GAME = '''
"""A game: say the digit that follows the one shown, three times. And experts for it."""

import math
import os
import signal

from stacx_core import Step, TeacherAction, TeacherScore

calls = 0
asked = []


class Counting:
    def reset(self, seed):
        self.digit, self.turns, self.right = seed % 7, 0, 0
        return f"{self.digit}?"

    def step(self, action):
        global calls
        calls += 1
        if calls == int(os.environ.get("FATAL_CALL", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        self.right += action == str(self.digit + 1)
        self.digit = (self.digit + 3) % 9
        self.turns += 1
        done = self.turns == 3
        return Step(f"{self.digit}?", self.right / 3 if done else 0.0, done)

    def render(self):
        return str(self.digit)

    def close(self):
        pass


def expert(observation):
    asked.append(observation)
    return str(int(observation[0]) + 1)


class Scorer:
    """Acts as the expert does; finds every token as likely as the next."""

    def __init__(self, args, tokenizer):
        self.tokenizer = tokenizer

    def act(self, turns, params):
        texts = [expert(turn.observation) for turn in turns]
        return [TeacherAction([*self.tokenizer.encode(t), self.tokenizer.eos_token_id], t) for t in texts]

    def score(self, samples, top_k):
        return [TeacherScore([-math.log(16)] * sample.response_length) for sample in samples]


class Forgetful(Scorer):
    """Has nothing to say about one digit, and scores no sample whose response begins with it."""

    def act(self, turns, params):
        actions = super().act(turns, params)
        return [a if a.text != "1" else TeacherAction([], "") for a in actions]

    def score(self, samples, top_k):
        scores = super().score(samples, top_k)
        return [
            TeacherScore([float("nan")] * s.response_length) if s.index == 0 else score
            for s, score in zip(samples, scores)
        ]
'''


@pytest.fixture(scope="session")
def save_tokenizer() -> Callable[..., None]:
    """Write a character tokenizer into a folder, with its ids in this order or the reverse."""

    def save(folder: Path, reverse: bool = False) -> None:
        characters = CHARACTERS[::-1] if reverse else CHARACTERS
        vocabulary = {token: index for index, token in enumerate(["<end>", "<unknown>", *characters])}
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
        tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
        tokenizer.decoder = Fuse()
        made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>"
        )
        made.save_pretrained(folder)

    return save


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: Callable[..., None]) -> Path:
    """A random Llama of one layer, and a tokenizer of one token per character."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `counting_game`, imported anew by each test, on the path of this process."""
    folder = tmp_path / "game"
    folder.mkdir()
    (folder / "counting_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "counting_game", raising=False)
    return __import__("counting_game")


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def stacx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Run the `stacx` command in this process, without STACX_ variables of its environment."""
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
def options(checkpoint: Path, game: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a run in the game."""

    def build(algorithm: str, *further: str | Path, output: str = "run") -> list[str]:
        given = ["train", "--algorithm", algorithm, "--hf-checkpoint", checkpoint, "--output-dir", tmp_path / output]
        given += ["--environment", "counting_game:Counting", "--rollout-max-response-len", "3", "--lr", "1e-2"]
        given += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "2"]
        return [str(argument) for argument in (*given, *further)]

    return build


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the `stacx` command in a process of its own that finds the game and the tested packages."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        homes = [str(Path(module.__file__ or "").parents[1]) for module in (stacx_core, stacx_plugin_dagger)]
        path = os.pathsep.join([str(tmp_path / "game"), *homes, *sys.path])
        return subprocess.run(
            [sys.executable, "-m", "stacx_core", *arguments],
            env={**clean, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def lines_of() -> Callable[..., list[dict[str, Any]]]:
    """The lines of a file in a run's folder, without the times."""

    def read(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in (folder / name).read_text().splitlines())
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    return read
