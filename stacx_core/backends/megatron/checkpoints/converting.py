"""A Hugging Face folder to Megatron's distributed checkpoint and back, each process with its share of the model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedObject
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from stacx_core.backends.megatron.checkpoints import files
from stacx_core.backends.megatron.config import check_model, is_sparse
from stacx_core.backends.megatron.conversion.checkpoint import INDEX, Checkpoint, write
from stacx_core.backends.megatron.conversion.exporting import export
from stacx_core.backends.megatron.conversion.loading import load
from stacx_core.backends.megatron.layout import check, initialize
from stacx_core.backends.megatron.model import Stage, build
from stacx_core.backends.model import load_config
from stacx_core.errors import CheckpointError, ConfigError, ModelError
from stacx_core.planning.layout import Layout

CARRIED = (".json", ".txt", ".jinja", ".model", ".tiktoken")
"""Endings of the files that go along: config, generation config and those of the tokenizer."""

NOT_CARRIED = (INDEX, "metadata.json")
"""Files that belong to the weights."""

EMBEDDING = "embedding.word_embeddings.weight"


@dataclass(frozen=True)
class Conversion:
    """What is converted, for processes that make up one replica of a layout. It pickles.

    Attributes:
        source: Folder of the one kind.
        target: Folder of the other, which is there and empty.
        to: The kind of the target.
        layout: Each process has the share of the model that it would have in this layout.
        dtype: Of the weights, which stay as they are.
        head: Of the model.
    """

    source: Path
    target: Path
    to: Literal["megatron", "huggingface"]
    layout: Layout
    dtype: torch.dtype
    head: Literal["lm", "scalar"]

    def run(self, rank: int, ranks: int) -> None:
        """Convert together with the other processes of the default group.

        Raises:
            ModelError, CheckpointError: The source is damaged or not of the model that its config describes.
        """
        initialize(self.layout, seed=0)
        config = load_config(str(self.source))
        stage = build(config, self.layout, self.dtype, self.head)
        if self.to == "megatron":
            load(stage, config, self.layout, str(self.source), fresh_head=False)
            files.save(stage.sharded_state_dict(metadata=files.sharding()), self.target)
        else:
            _load_shards(stage, self.source)
            weights = export(stage, config, self.layout)
            if rank == 0:
                write(weights, self.target)
            for _ in weights:  # the others only send
                pass
        dist.barrier()
        if rank == 0:
            _carry(self.source, self.target)


def plan_conversion(source: Path, target: Path, tensor: int, pipeline: int, expert: int) -> Conversion:
    """Look at the source and see whether it can be converted.

    Args:
        tensor, pipeline, expert: Sizes of the layout.

    Raises:
        ConfigError: The sizes do not fit the model, or the target exists.
        ModelError, CheckpointError: The source is no model of a supported architecture, or it is damaged.
    """
    if target.exists():
        raise ConfigError(f"--to {target} exists already; choose another folder, or remove it")
    if not source.is_dir():
        raise ModelError(f"--from {source} is no folder")
    sharded = (source / files.METADATA).exists()
    if not (source / "config.json").exists():
        raise ModelError(
            f"{source} has no config.json, which says what model it is of",
            "copy the one of the Hugging Face model there, and the files of its tokenizer",
        )
    config: Any = load_config(str(source))
    check_model(config)
    sparse = any(is_sparse(config, layer) for layer in range(config.num_hidden_layers))
    layout = Layout(tensor, pipeline, expert=expert, data=expert // gcd(expert, tensor))
    layout = replace(layout, sequence_parallel=sparse and tensor > 1)
    check(layout, config)
    head: Literal["lm", "scalar"] = "scalar" if "Classification" in str(config.architectures) else "lm"
    dtype = _sharded_dtype(source) if sharded else _dtype(source)
    return Conversion(source, target, "huggingface" if sharded else "megatron", layout, dtype, head)


def _dtype(folder: Path) -> torch.dtype:
    """The dtype that all weights of a Hugging Face folder have.

    Raises:
        ModelError: They have several.
    """
    with Checkpoint(str(folder)) as checkpoint:
        names = {checkpoint.read(name, 0, 0, 0).dtype: name for name in checkpoint.names}
    if len(names) > 1:
        several = ", ".join(f"{name} is {dtype}" for dtype, name in names.items())
        raise ModelError(f"the weights in {folder} are of several dtypes: {several}", "save them in one")
    return next(iter(names))


def _sharded_dtype(folder: Path) -> torch.dtype:
    """The dtype of the weights of a distributed checkpoint.

    Raises:
        CheckpointError: It has none of a model.
    """
    files.check_files(folder)
    embedding = FileSystemReader(folder).read_metadata().state_dict_metadata.get(EMBEDDING)
    if not isinstance(embedding, TensorStorageMetadata):
        raise CheckpointError(f"{folder} has no {EMBEDDING}; it is not a checkpoint of a GPTModel")
    return embedding.properties.dtype


def _load_shards(stage: Stage, folder: Path) -> None:
    """Read a stage's weights, from shards with a key per layer or with all layers under one.

    Raises:
        CheckpointError: A file is missing or damaged, or a weight is not there.
    """
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    per_layer = any(key.startswith("decoder.layers.0.") for key in keys)
    state = stage.sharded_state_dict(metadata={**files.sharding(), "singleton_local_shards": per_layer})
    wanted = {name: part for name, part in state.items() if not isinstance(part, ShardedObject)}
    stage.load_state_dict(files.load(wanted, folder), strict=False)


def _carry(source: Path, target: Path) -> None:
    """Copy what is not weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in CARRIED and path.name not in NOT_CARRIED:
            shutil.copyfile(path, target / path.name)
