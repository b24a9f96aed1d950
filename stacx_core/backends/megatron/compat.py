"""Megatron-core without CUDA and without Transformer Engine; nothing where these exist.

Megatron-core asks for the current CUDA device, its streams and its random states wherever it runs. Inside its modules
the name ``torch`` is bound to a stand-in that answers for the CPU; outside them torch stays as it is, except that two
methods of a tensor look at who calls them.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PACKAGE = "megatron.core"

USED = (
    "distributed",
    "dist_checkpointing",
    "dist_checkpointing.exchange_utils",
    "dist_checkpointing.strategies.async_utils",
    "dist_checkpointing.strategies.filesystem_async",
    "dist_checkpointing.strategies.fully_parallel",
    "dist_checkpointing.strategies.state_dict_saver",
    "dist_checkpointing.strategies.torch",
    "distributed.finalize_model_grads",
    "models.gpt",
    "models.gpt.gpt_layer_specs",
    "optimizer",
    "optimizer.clip_grads",
    "optimizer.distrib_optimizer",
    "optimizer_param_scheduler",
    "parallel_state",
    "pipeline_parallel",
    "pipeline_parallel.p2p_communication",
    "pipeline_parallel.schedules",
    "tensor_parallel",
    "timers",
    "transformer.moe.moe_layer",
)
"""Modules of Megatron-core that are used here; each imports what it needs itself."""

FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "ones_like", "rand", "randn", "tensor", "zeros",
             "zeros_like")  # fmt: skip
"""Functions of torch that Megatron-core calls with ``device="cuda"`` or ``pin_memory=True``."""


@cache
def install() -> None:
    """Make Megatron-core usable on this machine; only the first call of a process does anything."""
    # It warns of each package that is not installed, and calls torch by old names, in every process.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    for name in USED:
        importlib.import_module(f"{PACKAGE}.{name}")
    _do_without_transformer_engine()
    if torch.cuda.is_available():
        return
    stand_in = _Torch()
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{PACKAGE}.") and getattr(module, "torch", None) is torch:
            module.torch = stand_in  # type: ignore[attr-defined]
    _use_the_cpu_generator(sys.modules[f"{PACKAGE}.tensor_parallel.random"])
    _count_tokens_as_if_moved(sys.modules[f"{PACKAGE}.transformer.moe.token_dispatcher"])
    _answer_as_cuda_tensors()


def _do_without_transformer_engine() -> None:
    """Megatron-core 0.16.1 asks whether this is None, but defines it only with Transformer Engine."""
    experts: Any = importlib.import_module(f"{PACKAGE}.transformer.moe.moe_utils")
    if not hasattr(experts, "te_general_gemm"):
        experts.te_general_gemm = None


class _Torch(ModuleType):
    """``torch``, with the CPU in the place of a CUDA device."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _Cuda()
        for name in FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Cuda(ModuleType):
    """``torch.cuda``, of a machine with one device that is the CPU."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device: Any) -> None:
        """There is no other."""

    def synchronize(self, device: Any = None) -> None:
        """The CPU is never behind."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def current_stream(self, device: Any = None) -> _Stream:
        return _STREAM

    default_stream = current_stream

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def Stream(self, *args: Any, **options: Any) -> _Stream:
        return _STREAM

    def Event(self, *args: Any, **options: Any) -> _Stream:
        return _STREAM


class _Stream:
    """A stream, or an event of one, whose work is done at once."""

    def record_event(self, event: Any = None) -> _Stream:
        return self

    def record(self, stream: Any = None) -> None:
        """Nothing is pending."""

    wait_stream = wait_event = wait = record

    def synchronize(self) -> None:
        """Nothing is pending."""


_STREAM = _Stream()


def _on_cpu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A factory of tensors that makes them in ordinary memory when asked for a CUDA device or for pinned memory."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Tensor:
        device = options.get("device")
        if device is not None and str(device).startswith("cuda"):
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        return function(*args, **options)

    return call


def _use_the_cpu_generator(random: Any) -> None:
    """Let Megatron's trackers of random states keep those of the CPU."""

    def get(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> Tensor:
        return torch.get_rng_state()

    def put(new_state: Tensor, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(new_state)

    random._get_cuda_rng_state = get
    random._set_cuda_rng_state = put


def _count_tokens_as_if_moved(dispatcher: Any) -> None:
    """Give all-to-all the counts of experts' tokens as numpy arrays, which only those that leave a device become."""

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor

    dispatcher.maybe_move_tensor_to_cpu = move


def _answer_as_cuda_tensors() -> None:
    """Let a tensor tell Megatron-core, which tests types by name, that it is on CUDA, and stay where it is."""
    to_cuda, to_type = Tensor.cuda, Tensor.type

    def cuda(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self if _asked_by_megatron() else to_cuda(self, *args, **options)

    def type_(self: Tensor, *args: Any, **options: Any) -> Any:
        answer = to_type(self, *args, **options)
        if isinstance(answer, str) and _asked_by_megatron():
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    Tensor.cuda = cuda  # type: ignore[method-assign, assignment]
    Tensor.type = type_  # type: ignore[method-assign, assignment]


def _asked_by_megatron() -> bool:
    """Whether the caller of the caller is a module of Megatron-core."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(f"{PACKAGE}.")
