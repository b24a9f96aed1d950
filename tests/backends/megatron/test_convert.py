"""`stacx convert`: from a Hugging Face folder to Megatron's checkpoint and back, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import spawn
from stacx_core.cli import main
from stacx_core.planning.layout import Layout
from tiny_models import make

pytest.importorskip("megatron.core")


@pytest.fixture(autouse=True)
def own_plugin_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command loads plugins, which later tests must not see."""
    monkeypatch.setattr("stacx_core.plugins._current", None)


def convert(capsys: Any, source: Path, target: Path, *sizes: str) -> tuple[int, str, str]:
    code = main(["convert", "--from", str(source), "--to", str(target), *sizes])
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "dtype", "sizes", "back"),
    [
        ("qwen3-tied", "bfloat16", ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"), ()),
        ("qwen3-moe", "float32", (), ("--ep", "2")),
    ],
)
def test_a_model_comes_back_as_it_was(
    capsys: Any, tmp_path: Path, name: str, dtype: str, sizes: tuple[str, ...], back: tuple[str, ...]
) -> None:
    make(name, tmp_path / "model", dtype=dtype)
    (tmp_path / "model" / "tokenizer.json").write_text('{"kept": "as it is"}')
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    before = contents(tmp_path / "model")
    code, out, err = convert(capsys, tmp_path / "model", tmp_path / "sharded", *sizes)
    assert code == 0, err
    assert out == f"{tmp_path / 'sharded'}\n"
    code, _, err = convert(capsys, tmp_path / "sharded", tmp_path / "back", *back)
    assert code == 0, err
    assert contents(tmp_path / "back") == before


def write_layers_under_one_key(folder: str, target: str) -> list[str]:
    """A checkpoint as Megatron wrote them before every layer had keys of its own; its vocabulary is padded."""
    from megatron.core import dist_checkpointing, parallel_state
    from transformers import AutoConfig

    from stacx_core.backends.megatron.conversion.loading import load
    from stacx_core.backends.megatron.layout import initialize
    from stacx_core.backends.megatron.model import build

    initialize(Layout(), seed=0)
    config = AutoConfig.from_pretrained(folder)
    stage = build(config, Layout(), torch.float32)
    load(stage, config, Layout(), folder)
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = stage.sharded_state_dict(metadata=metadata)
    keys = [part.key for part in state.values()]
    dist_checkpointing.save(state, target)
    return keys


def test_a_checkpoint_of_megatron_itself_is_read(capsys: Any, tmp_path: Path) -> None:
    """Its layers are under one key, and its files are written by Megatron's own processes."""
    make("qwen3", tmp_path / "model")
    (tmp_path / "sharded").mkdir()
    (keys,) = spawn(1, write_layers_under_one_key, str(tmp_path / "model"), str(tmp_path / "sharded"))
    assert "decoder.layers.self_attention.linear_proj.weight" in keys
    code, _, err = convert(capsys, tmp_path / "sharded", tmp_path / "back")
    assert code == 2
    assert "has no config.json" in err
    (tmp_path / "sharded" / "config.json").write_bytes((tmp_path / "model" / "config.json").read_bytes())
    code, _, err = convert(capsys, tmp_path / "sharded", tmp_path / "back")
    assert code == 0, err
    weights = "model.safetensors"
    assert (tmp_path / "back" / weights).read_bytes() == (tmp_path / "model" / weights).read_bytes()


def test_what_cannot_be_converted_is_refused(capsys: Any, tmp_path: Path) -> None:
    make("llama", tmp_path / "model")
    target = tmp_path / "target"

    def refusal(*sizes: str, source: Path = tmp_path / "model", to: Path = target) -> str:
        code, out, err = convert(capsys, source, to, *sizes)
        assert (code, out) == (2, "")
        assert not target.exists()
        return err

    assert "exists already; choose another folder, or remove it" in refusal(to=tmp_path / "model")
    assert "is no folder" in refusal(source=tmp_path / "none")
    assert "--tensor-model-parallel-size 3 does not divide the 4 attention heads" in refusal("--tp", "3")
    assert "--expert-model-parallel-size 2: model has no experts; use 1" in refusal("--ep", "2")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    other = {**config, "model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(other))
    err = refusal()
    assert "does not support 'gemma'" in err
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM" in err


def test_a_damaged_source_leaves_no_target(capsys: Any, tmp_path: Path) -> None:
    make("llama", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    code, _, err = convert(capsys, tmp_path / "model", tmp_path / "sharded")
    assert code == 1
    assert "lacks 9 weights, first 'model.layers.4." in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_without_megatron_the_extra_is_named(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stacx_core.cli.convert.find_spec", lambda name: None)
    code, _, err = convert(capsys, tmp_path, tmp_path / "target")
    assert code == 2
    assert "pip install 'stacx-core[megatron]'" in err
