"""Returns and advantages along the tokens of one response, and the loss of the values they are compared with.

``masking`` says what masked tokens, such as a tool's output, mean to a recursion along the response:

- "trainable": they are left out. One decay per trained token and none per masked one, the reward on the last trained
  token; what a tool writes changes no advantage. Masked slots of the results are 0.
- "all": they are tokens like the others and carry the decay.

Everything is computed in fp64 and returned in fp32. A response without trained tokens gets 0 everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128

ROUNDING = 1e-6
"""How far, relative to its bound, a value may seem to have moved by rounding in fp32."""


def discounted_sums(x: Tensor, decay: float, chunk: int = CHUNK) -> Tensor:
    """``y_t = x_t + decay y_{t+1}``, from the end, ``chunk`` tokens at a time.

    On the reversed sequence, a chunk is ``y = M x + decay^(j+1) carry`` with ``M_jk = decay^(j-k)`` for k <= j, and
    carry the last y of the chunk before. A chunk of 1 is the plain recursion.

    Args:
        x: ``[T]``.
        decay: factor per token, 0 to 1.
        chunk: tokens per matrix product.

    Returns:
        ``[T]`` fp64.
    """
    length = len(x)
    size = max(min(chunk, length), 1)
    padded = torch.nn.functional.pad(x.double().flip(0), (0, -length % size)).view(-1, size)
    steps = torch.arange(size, dtype=torch.float64)
    weights = (decay ** (steps[:, None] - steps).clamp(min=0)).tril()
    result, carry = padded @ weights.T, 0.0
    fading = decay ** (steps + 1)
    for row in result:
        row += fading * carry
        carry = float(row[-1])
    return result.view(-1)[:length].flip(0)


def gae_advantages(
    reward: float,
    penalties: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    lambd: float = 1.0,
    masking: str = "trainable",
    bootstrap: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) of one response.

    ``delta_t = r_t + gamma v_{t+1} - v_t`` and ``A_t = delta_t + gamma lambd A_{t+1}``, where ``r`` is minus the
    penalty of each token, plus the reward at the last one.

    Args:
        reward: of the whole response.
        penalties: ``[R]``, subtracted from the rewards of the tokens.
        values: ``[R]``, of the state in which each token was chosen.
        mask: ``[R]``, nonzero where trained.
        gamma, lambd: discount, and the decay of the trace.
        masking: "trainable" or "all", see the module.
        bootstrap: take the last value also for the state after the response, which was cut; otherwise that is 0.
        chunk: as for ``discounted_sums``.

    Returns:
        ``(advantages [R], returns [R])`` fp32; a return is an advantage plus its value.
    """
    kept = _taking_part(mask, masking)
    advantages, returns = torch.zeros(len(mask)), torch.zeros(len(mask))
    if len(kept):
        rewards, value = -penalties.double()[kept], values.double()[kept]
        rewards[-1] += reward
        following = torch.cat([value[1:], value[-1:] * bootstrap])
        found = discounted_sums(rewards + gamma * following - value, gamma * lambd, chunk)
        advantages[kept], returns[kept] = found.float(), (found + value).float()
    return advantages, returns


def reinforce_returns(
    reward: float, penalties: Tensor, mask: Tensor, *, gamma: float = 1.0, masking: str = "trainable"
) -> Tensor:
    """The return of each token of one response, as REINFORCE++ defines it (Hu et al. 2025).

    ``G_t = r_t + gamma G_{t+1}``, where ``r`` is minus the penalty of each trained token, plus the reward at the last
    one. Masked tokens have no reward of their own; with ``masking`` "all" they still carry the discount.

    Args:
        reward, penalties, mask, gamma, masking: as for ``gae_advantages``.

    Returns:
        ``[R]`` fp32.
    """
    kept = _taking_part(mask, masking)
    returns = torch.zeros(len(mask))
    if len(kept):
        rewards = torch.where(mask.bool(), -penalties.double(), 0.0)
        rewards[mask.nonzero()[-1]] += reward
        returns[kept] = discounted_sums(rewards[kept], gamma).float()
    return returns


def _taking_part(mask: Tensor, masking: str) -> Tensor:
    """Positions of the tokens that the recursion runs over; none if nothing is trained."""
    if masking not in ("trainable", "all"):
        raise ValueError(f"masking is {masking!r}; choose trainable or all")
    return torch.arange(len(mask)) if masking == "all" and mask.any() else mask.nonzero().squeeze(-1)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Squared error of the values, in the pessimistic form of PPO's reference code (Dhariwal et al. 2017).

    ``max((v + clip(V - v, +-value_clip) - G)^2, (V - G)^2)``: a value that has moved further than ``value_clip`` gains
    nothing by it. There is no factor of one half.

    Args:
        values: ``[N]``, V, with gradient.
        old_values: ``[N]``, v, before the first update of the rollout.
        returns: ``[N]``, G.
        value_clip: how far a value may move.

    Returns:
        ``(loss [N], clipped [N])``; ``clipped`` is 1 where the value moved further than ``value_clip``.
    """
    old_values, returns = old_values.detach(), returns.detach()
    moved = values - old_values
    bounded = old_values + moved.clamp(-value_clip, value_clip)
    loss = torch.maximum((bounded - returns).square(), (values - returns).square())
    return loss, (moved.detach().abs() > value_clip * (1 + ROUNDING)).to(loss.dtype)
