"""The embedded engine: generates in process, with the very weights that are being trained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import forward
from stacx_core.data.sample import Sample
from stacx_core.rollout.decoding import DecodeLayout, PrefillLayout
from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.sampling import choose, uniforms
from stacx_core.rollout.scoring import ResponseScorer
from stacx_core.rollout.teachers.protocol import TeacherScore

SCORED_TOKENS = 4096
"""Tokens scored in one packed forward."""


class LocalEngine:
    """Prefills each prompt once for all its responses and decodes them together, dropping rows as they finish.

    Args:
        model: The policy, from :func:`stacx_core.backends.model.load_model`; its weights are read in place.
        stop_ids: Token ids that end a response.
        max_running: Most responses decoded together.
    """

    def __init__(self, model: nn.Module, stop_ids: Sequence[int], max_running: int) -> None:
        self.model = model
        self.stop_ids = sorted(set(stop_ids))
        self.max_running = max_running

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        """See :class:`stacx_core.rollout.engine.RolloutEngine`."""
        training = self.model.training
        self.model.eval()
        try:
            rows = [(i, seed) for i, request in enumerate(requests) for seed in request.seeds]
            answers: list[list[Generation]] = [[] for _ in requests]
            for start in range(0, len(rows), self.max_running):
                wave = rows[start : start + self.max_running]
                for (i, _), generation in zip(wave, self._wave(requests, wave, params), strict=True):
                    answers[i].append(generation)
            return answers
        finally:
            self.model.train(training)

    def score(self, samples: Sequence[Sample], top_k: int, temperature: float) -> list[TeacherScore]:
        """See :class:`stacx_core.rollout.scoring.ScoringEngine`."""
        return ResponseScorer(self.model, temperature, SCORED_TOKENS).score(samples, top_k)

    def weights_at_rest(self) -> AbstractContextManager[None]:
        """Nothing to do: whoever generates does not train meanwhile."""
        return nullcontext()

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Nothing to do: the weights are read in place."""

    def close(self) -> None:
        """Nothing to let go of."""

    def _wave(
        self, requests: Sequence[GenerationRequest], wave: list[tuple[int, int]], params: SamplingParams
    ) -> list[Generation]:
        device = next(self.model.parameters()).device
        used = sorted({i for i, _ in wave})
        owner = torch.tensor([used.index(i) for i, _ in wave], device=device)
        prompts = [list(requests[i].prompt) for i in used]
        logits, layout = self._prefill(prompts, owner, params.max_new_tokens, device)
        draws = uniforms([seed for _, seed in wave], params.max_new_tokens)
        return self._decode(logits, layout, draws, params)

    def _prefill(
        self, prompts: list[list[int]], owner: Tensor, new_tokens: int, device: torch.device
    ) -> tuple[Tensor, DecodeLayout]:
        """Logits of each response's first token ``[R, V]``, and the caches to go on from."""
        lengths = [len(prompt) for prompt in prompts]
        layout = PrefillLayout(PackedLayout(lengths, device))
        tokens = torch.tensor([[t for prompt in prompts for t in prompt]], device=device)
        positions = torch.cat([torch.arange(n) for n in lengths]).to(device)[None]
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits = forward(self.model, tokens, positions, layout, rows=last)[0]
        return logits[owner], layout.decode(lengths, owner, new_tokens)

    def _decode(self, logits: Tensor, layout: DecodeLayout, draws: Tensor, params: SamplingParams) -> list[Generation]:
        stops = torch.tensor(self.stop_ids, device=logits.device)
        alive = torch.arange(len(logits), device=logits.device)
        ids = torch.full((len(logits), params.max_new_tokens), -1, device=logits.device)
        log_probs = torch.zeros(len(logits), params.max_new_tokens, device=logits.device)
        stopped = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        for step in range(params.max_new_tokens):
            tokens, chosen = choose(logits, draws[alive.cpu(), step], params)
            ids[alive, step] = tokens
            log_probs[alive, step] = chosen
            ended = torch.isin(tokens, stops)
            if ended.any():
                stopped[alive[ended]] = True
                kept = layout.keep(~ended)
                alive, tokens = alive[kept], tokens[kept]
            if not len(alive) or step + 1 == params.max_new_tokens:
                break
            logits = forward(self.model, tokens[:, None], layout.advance(), layout)[:, -1]
        return _generations(ids, log_probs, stopped)


def _generations(ids: Tensor, log_probs: Tensor, stopped: Tensor) -> list[Generation]:
    lengths = (ids >= 0).sum(-1).tolist()
    return [
        Generation(row[:n], lps[:n], "stop" if stop else "length")
        for row, lps, n, stop in zip(ids.tolist(), log_probs.tolist(), lengths, stopped.tolist(), strict=True)
    ]
