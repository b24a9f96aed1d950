"""A small diffusion transformer that needs no other package."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stacx_plugin_diffusion.models.patches import patchify, unpatchify


class SmallDiT(nn.Module):
    """Patch tokens and prompt tokens in one sequence, through blocks that noise level and pooled prompt modulate.

    Modulation and output start at zero, so that every block is the identity before training (adaLN-Zero of DiT,
    Peebles & Xie 2023, https://arxiv.org/abs/2212.09748).

    Args:
        channels: Of the latent.
        patch_size: Side of the square of latent pixels that makes a token.
        layers: Blocks.
        dim: Width; a multiple of 4 and of `heads`.
        heads: Of attention.
        prompt_dim: Width of a prompt token.
        pooled_dim: Width of the pooled prompt.
    """

    def __init__(
        self,
        channels: int = 1,
        patch_size: int = 2,
        layers: int = 2,
        dim: int = 64,
        heads: int = 4,
        prompt_dim: int = 32,
        pooled_dim: int = 32,
    ) -> None:
        super().__init__()
        if dim % heads or dim % 4:
            raise ValueError(f"dim {dim} must be a multiple of 4 and of heads {heads}")
        self.channels, self.patch_size, self.dim = channels, patch_size, dim
        self.patch_embed = nn.Linear(channels * patch_size**2, dim)
        self.prompt_embed = nn.Linear(prompt_dim, dim)
        self.pooled_embed = nn.Linear(pooled_dim, dim)
        self.time_embed = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.modulation = zeroed(nn.Linear(dim, 2 * dim))
        self.output = zeroed(nn.Linear(dim, channels * patch_size**2))
        self.gradient_checkpointing = False

    def forward(self, x: Tensor, timestep: Tensor, prompt_embeds: Tensor, pooled_embeds: Tensor) -> Tensor:
        """Velocity of a latent, in the dtype of the weights.

        Args:
            x: ``[B, C, H, W]``, H and W multiples of the patch size.
            timestep: ``[B]`` fp32, from 0 (data) to 1000 (noise).
            prompt_embeds: ``[B, L, prompt_dim]``.
            pooled_embeds: ``[B, pooled_dim]``.

        Returns:
            ``[B, C, H, W]``.
        """
        rows, columns = x.shape[-2] // self.patch_size, x.shape[-1] // self.patch_size
        patches = self.patch_embed(patchify(x, self.patch_size))
        patches = patches + grid_positions(rows, columns, self.dim, x.device).to(patches.dtype)
        tokens = torch.cat([self.prompt_embed(prompt_embeds), patches], dim=1)
        times = self.time_embed(sinusoids(timestep, self.dim).to(x.dtype))
        condition = F.silu(times + self.pooled_embed(pooled_embeds))
        for block in self.blocks:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                tokens = checkpoint(block, tokens, condition, use_reentrant=False)
            else:
                tokens = block(tokens, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        patches = self.norm(tokens[:, -rows * columns :]) * (1 + scale) + shift
        return unpatchify(self.output(patches), self.patch_size, rows, columns)

    def enable_gradient_checkpointing(self) -> None:
        """Keep no activations of the blocks for the backward pass, but compute them again."""
        self.gradient_checkpointing = True


class Block(nn.Module):
    """Attention and feed-forward, each with shift, scale and gate from the condition."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = zeroed(nn.Linear(dim, 6 * dim))

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """``[B, S, dim]`` from tokens ``[B, S, dim]`` and condition ``[B, dim]``."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        tokens = tokens + gate1 * self.attn(self.norm1(tokens) * (1 + scale1) + shift1)
        return tokens + gate2 * self.ff(self.norm2(tokens) * (1 + scale2) + shift2)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Self-attention whose layers are called as in diffusers, so that the same LoRA targets fit."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, S, dim]`` from ``[B, S, dim]``."""
        query, key, value = (
            layer(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return self.to_out[0](mixed)  # type: ignore[no-any-return]


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with weight and bias 0."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def sinusoids(values: Tensor, dim: int) -> Tensor:
    """``[N, dim]`` fp32: cosines and sines of the values ``[N]`` at wavelengths from 2π to 20000π."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(dim // 2, device=values.device) / (dim // 2))
    angles = values.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def grid_positions(rows: int, columns: int, dim: int, device: torch.device) -> Tensor:
    """``[rows * columns, dim]`` fp32: half of the width tells the row, half the column."""
    down = sinusoids(torch.arange(rows, device=device), dim // 2).repeat_interleave(columns, dim=0)
    across = sinusoids(torch.arange(columns, device=device), dim // 2).repeat(rows, 1)
    return torch.cat([down, across], dim=-1)
