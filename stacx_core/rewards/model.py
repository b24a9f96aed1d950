"""A trained reward model as the reward: the value of its scalar head at the last token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import DTYPES, context_length, forward, load_model, pick_device
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.data.packing import first_fit
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, RewardError
from stacx_core.knobs import Args


class ModelReward:
    """Scores the very tokens of a sample, prompt and response.

    The model is loaded when it is first asked, so that a dry run loads none.

    Args:
        args: The resolved knobs; reads ``rm_load``, ``hf_checkpoint``, ``dtype``, ``device``, ``max_tokens_per_gpu``.

    Raises:
        ConfigError: ``--rm-load`` is unset, or its tokenizer gives an id another meaning than the policy's does.
        ModelError: The folder holds no usable model.
    """

    def __init__(self, args: Args) -> None:
        if args.rm_load is None:
            raise ConfigError("--rm-type model needs --rm-load: the folder of a trained reward model")
        self.args = args
        self.limit = context_length(args.rm_load)
        check_same_tokens(
            "--rm-load", args.rm_load, args.hf_checkpoint, "the reward model scores the policy's token ids"
        )
        self._model: nn.Module | None = None

    @torch.no_grad()
    def score_batch(self, samples: Sequence[Sample]) -> list[float]:
        """One reward per sample, in order.

        Raises:
            RewardError: A sample is longer than the reward model's context.
            ModelError: ``--rm-load`` has no trained scalar head.
        """
        if self._model is None:
            device = pick_device(self.args.device)
            dtype = DTYPES[self.args.dtype]
            self._model = load_model(self.args.rm_load, dtype, device, "scalar", fresh_head=False).eval()
        lengths = [len(sample.tokens) for sample in samples]
        for sample, length in zip(samples, lengths, strict=True):
            if self.limit is not None and length > self.limit:
                raise RewardError(
                    f"{sample.describe()} has {length} tokens; the reward model of {self.args.rm_load!r} "
                    f"takes {self.limit}. Lower --rollout-max-response-len"
                )
        rewards = [0.0] * len(samples)
        for positions in first_fit(lengths, self.args.max_tokens_per_gpu):
            values = _last_values(self._model, [samples[position].tokens for position in positions])
            for position, value in zip(positions, values, strict=True):
                rewards[position] = value
        return rewards


def _last_values(model: nn.Module, sequences: Sequence[Sequence[int]]) -> list[float]:
    device = next(model.parameters()).device
    lengths = [len(sequence) for sequence in sequences]
    tokens = torch.tensor([[token for sequence in sequences for token in sequence]], device=device)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)[None]
    rows = torch.tensor(lengths, device=device).cumsum(0) - 1
    values: list[float] = forward(model, tokens, positions, PackedLayout(lengths, device), rows)[0, :, 0].tolist()
    return values
