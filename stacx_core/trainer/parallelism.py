"""What a recipe and its settings say about spreading roles over processes."""

from __future__ import annotations

from importlib.util import find_spec

from stacx_core.config import TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.megatron_knobs import MEGATRON_KNOBS

_PARALLELISMS = {
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
}
"""The kind of parallelism that a knob above 1 asks for."""


def check_megatron(config: TrainingConfig, args: Args) -> None:
    """Refuse a parallelism that the recipe does not support, and knobs that would be ignored.

    Raises:
        ConfigError: Naming the flag, and the recipe or what is missing.
    """
    given = [knob for knob in MEGATRON_KNOBS if getattr(args, knob.name) != knob.default]
    if args.backend != "megatron":
        asked = next((knob for knob in given if not args.is_default(knob.name)), None)
        if asked is not None:
            raise ConfigError(f"{asked.flag} has no effect without --backend megatron; add it, or leave it out")
        return
    needs_megatron()
    for knob in given:
        if knob.name in _PARALLELISMS:
            check_supported(config, _PARALLELISMS[knob.name])
    if args.check_loss_invariance:
        raise ConfigError(
            "--check-loss-invariance compares gradients of one process; run it with --backend torch, or compare the "
            "backends with stacx check --parallel"
        )


def needs_megatron() -> None:
    """Make sure that Megatron-core is installed.

    Raises:
        ConfigError: Saying how to install it.
    """
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        raise ConfigError("Megatron-core is not installed: pip install 'stacx-core[megatron]'")


def check_supported(config: TrainingConfig, parallelism: str) -> None:
    """Refuse a kind of parallelism that the recipe does not claim to be right under.

    Raises:
        ConfigError: Naming the recipe and what it supports.
    """
    if parallelism not in config.supports:
        supported = ", ".join(config.supports) or "none"
        raise ConfigError(f"recipe {config.name!r} does not support {parallelism}; it supports {supported}")
