"""What a model says of responses that are already there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import forward
from stacx_core.data.packing import first_fit
from stacx_core.data.sample import Sample
from stacx_core.objectives.log_probs import response_rows, token_log_probs
from stacx_core.rollout.teachers.protocol import TeacherScore


@runtime_checkable
class ScoringEngine(Protocol):
    """A rollout engine that can also score responses with the policy's current weights."""

    def score(self, samples: Sequence[Sample], top_k: int, temperature: float) -> list[TeacherScore]:
        """Log-probs of each response, and the likeliest ids at each of its positions when ``top_k`` is not 0."""


Choose = Callable[[Tensor, Sequence[int]], Tensor]
"""From logits ``[n, V]`` of response tokens and the positions of their samples to further ids ``[n, K]`` to score."""


class ResponseScorer:
    """Scores the very token ids of samples, packed, in one forward pass per micro-batch.

    Args:
        model: A language model from :func:`stacx_core.backends.model.load_model`.
        temperature: Divides the logits.
        max_tokens: Tokens per packed forward.
    """

    def __init__(self, model: nn.Module, temperature: float, max_tokens: int) -> None:
        self.model = model
        self.temperature = temperature
        self.max_tokens = max_tokens

    def score(self, samples: Sequence[Sample], top_k: int = 0, vocabulary: int | None = None) -> list[TeacherScore]:
        """Log-probs of each response, and the likeliest ids at each of its positions when ``top_k`` is not 0.

        Args:
            samples: With at least one token of prompt and of response.
            top_k: Ids per position, all of them when there are fewer.
            vocabulary: Only ids below it are told; all by default.
        """

        def likeliest(logits: Tensor, positions: Sequence[int]) -> Tensor:
            known = logits[:, :vocabulary]
            return known.topk(min(top_k, known.shape[1]), dim=-1).indices

        scores: dict[int, TeacherScore] = {}
        for position, log_probs, ids in self._scored(samples, likeliest):
            lists = (ids.tolist(), log_probs[:, 1:].tolist()) if top_k else (None, None)
            scores[position] = TeacherScore(log_probs[:, 0].tolist(), *lists)
        return [scores[position] for position in range(len(samples))]

    def query(self, samples: Sequence[Sample], ids: Sequence[list[list[int]]]) -> list[list[list[float]]]:
        """Log-probs of given ids ``[R][K]`` per sample, with one K for all."""

        def given(logits: Tensor, positions: Sequence[int]) -> Tensor:
            return torch.tensor([row for position in positions for row in ids[position]], device=logits.device)

        answers = {position: log_probs[:, 1:].tolist() for position, log_probs, _ in self._scored(samples, given)}
        return [answers[position] for position in range(len(samples))]

    @torch.no_grad()
    def _scored(self, samples: Sequence[Sample], choose: Choose) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Per sample its position, ``[R, 1 + K]`` log-probs of its response and the chosen ids, and those ids."""
        device = next(self.model.parameters()).device
        training = self.model.training
        self.model.eval()
        for positions in first_fit([len(sample.tokens) for sample in samples], self.max_tokens):
            chosen = [samples[position] for position in positions]
            lengths = [len(sample.tokens) for sample in chosen]
            responses = [sample.response_length for sample in chosen]
            tokens = torch.tensor([[token for sample in chosen for token in sample.tokens]], device=device)
            places = torch.cat([torch.arange(length) for length in lengths]).to(device)[None]
            rows = response_rows(lengths, responses).to(device)
            logits = forward(self.model, tokens, places, PackedLayout(lengths, device), rows)[0]
            ids = choose(logits, positions)
            targets = torch.cat([tokens[0, rows + 1, None], ids], dim=-1)
            log_probs, _ = token_log_probs(logits, targets, self.temperature)
            yield from zip(positions, log_probs.cpu().split(responses), ids.cpu().split(responses), strict=True)
        self.model.train(training)
