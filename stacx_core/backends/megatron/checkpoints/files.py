"""The files of a distributed checkpoint: each process writes its shards, and reads those that its layout needs.

Megatron-core writes them from processes that it forks and keeps another one to hear of them, which needs a guarded
``__main__`` and is unsafe beside threads. These files are the same, written from a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.utils import nested_values
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write_shards

from stacx_core.backends.writing import Writing, copied_tensor
from stacx_core.errors import CheckpointError

METADATA = ".metadata"
"""File that says which shard is where."""


def sharding() -> dict[str, Any]:
    """How Megatron-core is to describe shards: one key per layer and expert, whatever the layout."""
    return {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": True,
        "chained_optim_avoid_prefix": True,
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": True,
    }


def save(state: dict[str, Any], folder: Path, background: bool = False) -> Writing:
    """Write a state of which every process has its shards; all processes call this at the same time.

    Args:
        state: Sharded tensors, and values that all processes have in common.
        folder: Created if it is not there.
        background: Go on as soon as the shards are copied to ordinary memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = _Files(background)
    dist_checkpointing.save(state, str(folder), files)
    assert files.writing is not None
    return files.writing


def common(folder: Path) -> dict[str, Any]:
    """What all processes had in common.

    Raises:
        CheckpointError: A file is missing or cut short.
    """
    check_files(folder)
    with _reading(folder):
        found: dict[str, Any] = dist_checkpointing.load_common_state_dict(str(folder))
    return found


def load(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The saved values of a state, resharded to this layout; all processes call this at the same time.

    Raises:
        CheckpointError: A file is missing or cut short, or the checkpoint is of another model.
    """
    check_files(folder)
    with _reading(folder):
        found: dict[str, Any] = dist_checkpointing.load(state, str(folder))
    return found


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the file formats below have no common exception
        raise CheckpointError(f"the sharded checkpoint {folder} cannot be read: {error}") from error


def check_files(folder: Path) -> None:
    """Make sure that every shard is there.

    Raises:
        CheckpointError: Naming the file that is missing or cut short.
    """
    try:
        metadata = FileSystemReader(folder).read_metadata()
    except Exception as error:  # unpickling a damaged file can raise anything
        raise CheckpointError(f"{folder / METADATA} is missing or cannot be read: {error}") from error
    ends: dict[str, int] = {}
    for place in (metadata.storage_data or {}).values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        if path.stat().st_size < end:
            raise CheckpointError(f"{path} is truncated: it has {path.stat().st_size} of {end} bytes")


class _Files(SaveShardedStrategy):  # type: ignore[misc]
    """Writes the shards of this process with torch's writer."""

    can_handle_sharded_objects = True

    def __init__(self, background: bool) -> None:
        super().__init__("torch_dist", 1)
        self.background = background
        self.writing: Writing | None = None

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str) -> None:
        mine, *_ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        if self.background:
            for tensor in nested_values(mine):
                if isinstance(tensor, ShardedTensor):
                    tensor.data = copied_tensor(tensor.data)
        state = mcore_to_pyt_state_dict(mine)
        group = _writers() if self.background else None

        def write() -> None:
            planner = MCoreSavePlanner(flatten_state_dict=False)
            write_shards(state, storage_writer=FileSystemWriter(checkpoint_dir), planner=planner, process_group=group)

        self.writing = Writing(write, self.background)


@cache
def _writers() -> dist.ProcessGroup:
    """A group of all processes for threads that write, which would get in the way of others' collectives."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group
