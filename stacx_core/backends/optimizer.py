"""The optimizer of one role: fp32 master weights, a schedule that is a function of the update count, clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stacx_core.knobs import Args


def learning_rate(args: Args, update: int, total_updates: int) -> float:
    """The learning rate of update number ``update``, from 0.

    Linear warm-up over ``lr_warmup_iters`` updates, then the decay from ``lr`` to ``min_lr`` that ends at
    ``lr_decay_iters`` (the whole run when unset). Nothing but the count is needed to resume.
    """
    if update < args.lr_warmup_iters:
        return float(args.lr * (update + 1) / args.lr_warmup_iters)
    span = max((args.lr_decay_iters or total_updates) - args.lr_warmup_iters, 1)
    progress = min((update - args.lr_warmup_iters) / span, 1.0)
    shape = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return float(args.min_lr + (args.lr - args.min_lr) * shape[args.lr_decay_style])


class Optimizer(Protocol):
    """Updates the weights of one role."""

    updates: int
    """How many it has made."""

    def zero_grad(self) -> None:
        """Forget the accumulated gradients."""

    def gradient_norm(self) -> float:
        """The global L2 norm of the accumulated gradients."""

    def step(self, gradient_norm: float, total_updates: int) -> float:
        """Clip, update the weights, count the update; returns the learning rate used."""

    def kept(self) -> Iterator[Tensor]:
        """Moments and master weights; tensors of the model may be among them."""

    def gradient_buffers(self) -> Iterator[Tensor]:
        """Memory for gradients that is there also when there are none."""


class RoleOptimizer:
    """Steps a model's parameters through fp32 master copies.

    A model in a lower precision gets its gradients summed and its updates applied in fp32, since an update of relative
    size 1e-3 is lost in bf16. An fp32 or fp64 model is its own master.

    Args:
        model: The model to train.
        args: The resolved knobs.
    """

    def __init__(self, model: nn.Module, args: Args) -> None:
        self.args = args
        self.updates = 0
        self._pairs = [(p, self._master(p)) for p in model.parameters() if p.requires_grad]
        masters = [master for _, master in self._pairs]
        if args.optimizer == "sgd":
            self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
                masters, lr=args.lr, weight_decay=args.weight_decay
            )
        else:
            self._optimizer = torch.optim.AdamW(
                masters,
                lr=args.lr,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_eps,
                weight_decay=args.weight_decay,
                foreach=True,
            )

    @staticmethod
    def _master(parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype in (torch.float32, torch.float64):
            return parameter
        master = nn.Parameter(parameter.detach().float())

        def accumulate(p: Tensor) -> None:
            assert p.grad is not None
            master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
            p.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
        return master

    def zero_grad(self) -> None:
        """Forget the accumulated gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def gradient_norm(self) -> float:
        """The global L2 norm of the accumulated gradients."""
        return float(torch.nn.utils.get_total_norm([m.grad for _, m in self._pairs if m.grad is not None]))

    def gradient(self) -> Tensor:
        """The accumulated gradients in one vector, a parameter without one as zeros."""
        parts = [torch.zeros_like(m) if m.grad is None else m.grad for _, m in self._pairs]
        return torch.cat([part.flatten() for part in parts])

    def step(self, gradient_norm: float, total_updates: int) -> float:
        """Clip, update the weights, count the update; returns the learning rate used."""
        lr = learning_rate(self.args, self.updates, total_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if self.args.clip_grad > 0:
            masters = [m for _, m in self._pairs]
            torch.nn.utils.clip_grads_with_norm_(masters, self.args.clip_grad, torch.tensor(gradient_norm))
        self._optimizer.step()
        self.publish()
        self.updates += 1
        return lr

    def kept(self) -> Iterator[Tensor]:
        """Moments and master weights; the weights of an fp32 model are its own."""
        yield from (master for _, master in self._pairs)
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def gradient_buffers(self) -> Iterator[Tensor]:
        """None: every gradient has memory of its own."""
        return iter(())

    def publish(self) -> None:
        """Round the master weights into the model where the two differ."""
        with torch.no_grad():
            for parameter, master in self._pairs:
                if parameter is not master:
                    parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Moments, master weights of a low-precision model, and the update count."""
        masters = [m.detach() for p, m in self._pairs if p is not m]
        return {"optimizer": self._optimizer.state_dict(), "masters": masters, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._optimizer.load_state_dict(state["optimizer"])
        own = [m for p, m in self._pairs if p is not m]
        with torch.no_grad():
            for master, saved in zip(own, state["masters"], strict=True):
                master.copy_(saved)
        self.updates = state["updates"]
        self.publish()
