"""Guessing a number between hints: an expert who halves the range, and a student of words and digits.

``HalvingExpert`` is a teacher for ``--teacher guessing:HalvingExpert``; ``make_student`` writes an untrained model.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core import Sample, SamplingParams, TeacherAction, TeacherScore, TeacherTurn, load_environment

GAME = "textarena:GuessTheNumber-v0-hardcore"
PIECES = r"\d| ?[A-Za-z]+|[^\dA-Za-z]"
SOFTNESS = 0.5
"""How far, in numbers, a guess may be from the middle before the expert finds it e times as unlikely."""
SLIP = 0.001
"""Share of its probability that the expert spreads evenly over all tokens."""


class HalvingExpert:
    """Guesses the middle of what the hints leave; as a distribution it also likes the numbers beside the middle.

    Args:
        args: not used.
        tokenizer: of the student.
    """

    def __init__(self, args: Any, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = len(tokenizer)

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction]:
        """The middle, in brackets."""
        texts = [f"[{middle(*self._range(turn.context))}]" for turn in turns]
        return [TeacherAction(self._ids(text), text) for text in texts]

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """Log-probs of the student's guesses under the expert's distribution; 0.0 on other tokens."""
        return [TeacherScore(self._score(sample)) for sample in samples]

    def _score(self, sample: Sample) -> list[float]:
        scores = [0.0] * sample.response_length
        turns = sample.turn_ids or [0] * sample.response_length
        for turn, places in itertools.groupby(range(sample.response_length), key=lambda t: turns[t]):
            if turn < 0:
                continue
            span = list(places)
            start, end = sample.prompt_length + span[0], sample.prompt_length + span[-1] + 1
            likely = self._guesses(*self._range(sample.tokens[:start]))
            for position, token in zip(span, sample.tokens[start:end], strict=True):
                fitting = {ids: mass for ids, mass in likely.items() if ids[:1] == (token,)}
                total = sum(likely.values())
                share = sum(fitting.values()) / total if total else 1 / self.vocabulary
                scores[position] = math.log((1 - SLIP) * share + SLIP / self.vocabulary)
                likely = {ids[1:]: mass for ids, mass in fitting.items()}
        return scores

    def _guesses(self, low: int, high: int) -> dict[tuple[int, ...], float]:
        """Ids of each possible guess, with its weight."""
        centre = middle(low, high)
        numbers = range(low, high + 1)
        return {tuple(self._ids(f"[{n}]")): math.exp(-abs(n - centre) / SOFTNESS) for n in numbers}

    def _range(self, context: Sequence[int]) -> tuple[int, int]:
        """What the hints in a conversation leave; one that contradicts itself leaves its last bound."""
        text = str(self.tokenizer.decode(context))
        rules, _, played = text.partition("Enter your guess.")
        low, high = map(int, re.findall(r"between (\d+) and (\d+)", rules)[0])
        for guess, hint in re.findall(r"\[(\d+)\][^\[]*?number is (higher|lower)", played):
            if hint == "higher":
                low = max(low, int(guess) + 1)
            else:
                high = min(high, int(guess) - 1)
        return min(low, high), max(low, high)

    def _ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), int(self.tokenizer.eos_token_id or 0)]


def middle(low: int, high: int) -> int:
    """The number that halves a range."""
    return (low + high) // 2


def make_student(folder: Path, game: str, seed: int, width: int = 64, layers: int = 2) -> None:
    """Write an untrained Llama whose tokens are the words of the game, single digits and single signs."""
    environment = load_environment(game)()
    seen = environment.reset(0)
    seen += "".join(environment.step(action).observation for action in ("no guess", "[0]", "[1]", "[1]", "[50]"))
    pieces = sorted({*re.findall(PIECES, str(seen)), *"0123456789[]", " higher", " lower"})
    vocabulary = {piece: i for i, piece in enumerate(["<end>", "<unknown>", *pieces])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>")
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
