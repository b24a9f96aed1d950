"""Guessing a number between hints: an expert who halves the range, and a student whose tokens are phrases.

``HalvingExpert`` is a teacher for ``--teacher guessing:HalvingExpert``, ``SteadyHand`` and ``ShakyHand`` are games for
``--environment``, and ``make_student`` writes an untrained model.
"""

from __future__ import annotations

import itertools
import math
import random
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

from stacx_core import Sample, SamplingParams, Step, TeacherAction, TeacherScore, TeacherTurn, load_environment

NUMBERS = range(1, 21)
GAME = f"textarena:GuessTheNumber-v0?max_number={NUMBERS[-1]}&max_turns=7"
PIECES = re.compile(r"\d+|[\[\]]|[^\d\[\]]+")
"""A token is a number, a bracket, or all that stands between two of those."""
SOFTNESS = 0.5
"""How far, in numbers, a guess may be from the middle before the expert finds it e times as unlikely."""
SLIP = 0.001
"""Share of its probability that the expert spreads evenly over all tokens."""


class SteadyHand:
    """The game of textarena, which also says what was guessed."""

    slips = 0.0
    """Share of the guesses in whose place any number is guessed."""

    def __init__(self) -> None:
        self._game = load_environment(GAME)()
        self._random = random.Random()

    def reset(self, seed: int) -> str:
        """The rules of the game."""
        self._random.seed(seed)
        return self._game.reset(seed)

    def step(self, action: str) -> Step:
        """The guess that was made, and what the game says of it."""
        if self._random.random() < self.slips:
            action = f"[{self._random.choice(NUMBERS)}]"
        step = self._game.step(action)
        guess = re.search(r"\[\d+\]", action)
        return Step(f"You guessed {guess[0] if guess else 'nothing'}. {step.observation}", step.reward, step.done)

    def render(self) -> str:
        """The board."""
        return self._game.render()

    def close(self) -> None:
        """Let go of the game."""
        self._game.close()


class ShakyHand(SteadyHand):
    """A quarter of the guesses goes elsewhere, as it never does when the expert shows how to play."""

    slips = 0.25


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


def make_student(folder: Path, seed: int, width: int = 64, layers: int = 2) -> None:
    """Write an untrained Llama and its tokenizer."""
    plays = itertools.product((GAME, "guessing:SteadyHand"), range(8), (("[10]", "[10]"), ("[5]", "no guess")))
    texts = [text for game, game_seed, actions in plays for text in said(game, actions, game_seed)]
    pieces = sorted({*itertools.chain.from_iterable(map(PIECES.findall, texts)), *map(str, (0, *NUMBERS)), *"[]"})
    vocabulary = {piece: i for i, piece in enumerate(["<end>", "<unknown>", *pieces])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex(PIECES.pattern), behavior="isolated")
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


def said(game: str, actions: Sequence[str], seed: int) -> list[str]:
    """What a game says, at first and to each action until it ends."""
    environment = load_environment(game)()
    texts, done = [environment.reset(seed)], False
    for action in actions:
        if not done:
            step = environment.step(action)
            texts, done = [*texts, step.observation], step.done
    return texts
