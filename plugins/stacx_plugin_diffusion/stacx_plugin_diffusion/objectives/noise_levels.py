"""Which noise levels training sees: a density over [0, 1], shifted towards noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DENSITIES = ("uniform", "logit_normal", "mode", "beta")
MODE_SCALES = (-1.0, 2 / (math.pi - 2))
"""The scales for which the density of ``mode`` is a density on [0, 1]."""


def shift_sigma(u: Tensor, shift: float) -> Tensor:
    """``k u / (k u + 1 - u)``: monotone, keeps 0 and 1 exactly, moves the rest towards noise for k above 1.

    Esser et al. 2024 (SD3, arXiv 2403.03206), who take 3 at 1024 x 1024 pixels.

    Args:
        u: any shape, in [0, 1].
        shift: k, positive.

    Raises:
        ValueError: a shift that is not positive and finite.
    """
    if not 0 < shift < math.inf:
        raise ValueError(f"a shift of noise levels must be positive and finite, got {shift}; 1 leaves them as they are")
    return shift * u / (shift * u + (1 - u))


def dynamic_shift(
    length: int, base: tuple[int, float] = (256, 0.5), largest: tuple[int, float] = (4096, 1.15)
) -> float:
    """The shift for a sequence length: ``exp(mu)``, mu on the line through two points, as Flux does it.

    Args:
        length: tokens of a latent.
        base, largest: ``(length, mu)`` of the two points.

    Raises:
        ValueError: two points of one length.
    """
    if base[0] == largest[0]:
        raise ValueError(f"two different lengths make a line, got {base[0]} twice")
    slope = (largest[1] - base[1]) / (largest[0] - base[0])
    return math.exp(base[1] + slope * (length - base[0]))


@dataclass(frozen=True)
class SigmaDensity:
    """How often each noise level is drawn: a draw u of the density, shifted, then clamped.

    ================  =====================================================================================
    ``uniform``       u uniform on [0, 1]
    ``logit_normal``  ``sigmoid(mean + std z)``, z standard normal (SD3, section 3.1)
    ``mode``          ``1 - t - scale (cos^2(pi t / 2) - 1 + t)``, t uniform (SD3, section 3.1)
    ``beta``          u from Beta(alpha, beta)
    ================  =====================================================================================

    Args:
        kind: one of ``DENSITIES``.
        mean, std: of ``logit_normal``.
        scale: of ``mode``, within ``MODE_SCALES``.
        alpha, beta: of ``beta``, positive.
        shift: see ``shift_sigma``.
        minimum, maximum: bounds of sigma.

    Raises:
        ValueError: an unknown kind, or a number out of range.
    """

    kind: str = "logit_normal"
    mean: float = 0.0
    std: float = 1.0
    scale: float = 1.29
    alpha: float = 1.0
    beta: float = 1.0
    shift: float = 1.0
    minimum: float = 0.0
    maximum: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in DENSITIES:
            raise ValueError(f"sigma density {self.kind!r} is unknown; choose one of {', '.join(DENSITIES)}")
        if not self.std > 0:
            raise ValueError(f"the std of a sigma density must be positive, got {self.std}")
        if not MODE_SCALES[0] <= self.scale <= MODE_SCALES[1]:
            raise ValueError(f"the scale of density 'mode' must be in [-1, {MODE_SCALES[1]:.4f}], got {self.scale}")
        if not (self.alpha > 0 and self.beta > 0):
            raise ValueError(f"alpha and beta of a sigma density must be positive, got {self.alpha} and {self.beta}")
        if not 0 <= self.minimum <= self.maximum <= 1:
            raise ValueError(f"bounds of sigma must be ordered within [0, 1], got {self.minimum} and {self.maximum}")
        shift_sigma(torch.zeros(1), self.shift)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``[count]`` float32 noise levels on the device of ``generator``."""
        return shift_sigma(self._draw(count, generator), self.shift).clamp(self.minimum, self.maximum)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        if self.kind == "beta":
            # The distributions of torch take no generator, and a ratio of gammas is what its Beta is made of.
            a, b = (torch.full((count,), x, device=device) for x in (self.alpha, self.beta))
            first, second = (torch._standard_gamma(x, generator=generator) for x in (a, b))
            return first / (first + second)
        if self.kind == "logit_normal":
            return torch.sigmoid(self.mean + self.std * torch.randn(count, generator=generator, device=device))
        t = torch.rand(count, generator=generator, device=device)
        return t if self.kind == "uniform" else mode_quantile(t, self.scale)


def mode_quantile(t: Tensor, scale: float) -> Tensor:
    """``1 - t - scale (cos^2(pi t / 2) - 1 + t)``: what makes the density of ``mode`` of a uniform t."""
    return 1 - t - scale * (torch.cos(math.pi * t / 2).square() - 1 + t)
