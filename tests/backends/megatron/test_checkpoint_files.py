"""Reading and writing the files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stacx_core.errors import ModelError

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.conversion.checkpoint import Checkpoint, write

TENSORS = {"b": torch.arange(12.0).view(4, 3), "a": torch.arange(6.0).view(2, 3), "c": torch.ones(5)}


def test_weights_that_exceed_a_file_go_into_several(tmp_path: Path) -> None:
    write(TENSORS.items(), tmp_path, shard_bytes=80)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index == {"metadata": {"total_size": 92}, "weight_map": {"a": first, "b": first, "c": second}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [first, second, "model.safetensors.index.json"]
    assert load_file(tmp_path / second).keys() == {"c"}
    with Checkpoint(str(tmp_path)) as checkpoint:
        assert {name: checkpoint.shape(name) for name in checkpoint.names} == {"a": (2, 3), "b": (4, 3), "c": (5,)}
        assert checkpoint.read("b", 0, 1, 3).equal(TENSORS["b"][1:3])
        assert checkpoint.read("b", 1, 2).equal(TENSORS["b"][:, 2:])
        assert checkpoint.read("c").equal(TENSORS["c"])


def test_a_few_weights_are_one_file(tmp_path: Path) -> None:
    write(TENSORS.items(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    with Checkpoint(str(tmp_path)) as checkpoint:
        assert "a" in checkpoint


def test_what_is_written_is_a_copy(tmp_path: Path) -> None:
    def reused():
        buffer = torch.zeros(2)
        for value, name in enumerate("xy"):
            yield name, buffer.fill_(value)

    write(reused(), tmp_path)
    assert load_file(tmp_path / "model.safetensors")["x"].tolist() == [0, 0]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights in model\.safetensors.*\n.*save_pretrained"):
        Checkpoint(str(tmp_path))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write(TENSORS.items(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ModelError, match="cannot be read"):
        Checkpoint(str(tmp_path))


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with Checkpoint(str(tmp_path)) as checkpoint, pytest.raises(ModelError, match=r"weight 'a' in .* cannot be read"):
        checkpoint.read("a")
