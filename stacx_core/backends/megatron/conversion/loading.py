"""From a Hugging Face checkpoint to this process' stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from torch import Tensor

from stacx_core.backends.megatron.conversion.checkpoint import Checkpoint
from stacx_core.backends.megatron.conversion.weights import Source, Weight, weights
from stacx_core.backends.megatron.model import Stage
from stacx_core.backends.model import SCALAR_HEAD
from stacx_core.errors import ModelError
from stacx_core.planning.layout import Layout

UNUSED = ("lm_head.weight", f"{SCALAR_HEAD}.weight", ".rotary_emb.inv_freq")
"""Endings of what a checkpoint may have and a model not need."""


def load(stage: Stage, hf_config: Any, layout: Layout, checkpoint: str, fresh_head: bool = True) -> None:
    """Read this process' share of a checkpoint's weights into its stage, cast to the stage's dtype.

    Args:
        fresh_head: Whether a scalar head that the checkpoint lacks stays as it is; else it must be there.

    Raises:
        ModelError: The checkpoint lacks weights, or has others than the model or in other shapes.
    """
    wanted = list(weights(hf_config, layout, stage.head))
    with Checkpoint(checkpoint) as given:
        _check_names(wanted, given, fresh_head)
        mine = own(wanted)
        parameters = dict(stage.named_parameters())
        for weight in mine:
            sources = [source for source in weight.sources if source.name in given]
            if not sources:
                continue
            parameter = parameters[weight.parameter]
            with torch.no_grad():
                parameter.copy_(weight.fuse([_share(given, source, layout) for source in sources]))


def own(wanted: Sequence[Weight]) -> list[Weight]:
    """Those of this process.

    With experts spread over processes, each has those of its expert-parallel rank.
    """
    stage = parallel_state.get_pipeline_model_parallel_rank()
    expert = parallel_state.get_expert_model_parallel_rank()
    return [weight for weight in wanted if weight.stage == stage and weight.expert in (None, expert)]


def _check_names(wanted: Sequence[Weight], given: Checkpoint, fresh_head: bool) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        ModelError: Naming the first weight that is missing, too many, or of another shape.
    """
    sources = {source.name: source for weight in wanted for source in weight.sources}
    head = f"{SCALAR_HEAD}.weight"
    missing = [name for name in sources if name not in given and not (fresh_head and name == head)]
    if missing == [head]:
        raise ModelError(f"{str(given.folder)!r} has no trained scalar head", "train one with the recipe reward_model")
    if missing:
        raise ModelError(
            f"{str(given.folder)!r} lacks {len(missing)} weights, first {missing[0]!r}; the checkpoint is not whole"
        )
    extra = [name for name in given.names if name not in sources and not name.endswith(UNUSED)]
    if extra:
        raise ModelError(
            f"{str(given.folder)!r} has {len(extra)} weights that its config gives no place, first {extra[0]!r}"
        )
    for name, source in sources.items():
        if name in given and given.shape(name) != source.shape:
            raise ModelError(
                f"{str(given.folder)!r}: weight {name!r} has shape {given.shape(name)}, its config wants {source.shape}"
            )


def _share(given: Checkpoint, source: Source, layout: Layout) -> Tensor:
    """This process' share of a weight, filled up with zeros."""
    start, stop = source.share(layout.tensor, parallel_state.get_tensor_model_parallel_rank())
    part = given.read(source.name, source.cut or 0, start, stop)
    if source.padded is None:
        return part
    return F.pad(part, (0, 0, 0, source.padded // layout.tensor - len(part)))
