"""A model that is neither a folder nor on a hub that answers, and a tokenizer that is not the model's."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from stacx_core import ModelError
from stacx_core.backends.model import load_model, load_tokenizer, recompute_activations

TRAIN = ["-m", "stacx_core", "train", "--algorithm", "sft", "--prompt-data", "none.jsonl"]
TRAIN += ["--num-rollout", "1", "--output-dir", "run", "--hf-checkpoint"]
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "0"}


@pytest.mark.parametrize("name", ["tiny", "owner/tiny"])
def test_a_name_is_looked_for_once_on_a_hub_that_does_not_answer(child: Any, tmp_path: Path, name: str) -> None:
    done = child(*TRAIN, name, **NO_HUB, HF_HOME=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert f"error: {name!r} is no folder in {tmp_path}, and the Hugging Face hub gives no model config" in done.stderr
    assert done.stderr.count("does not answer") == 1
    assert "Retry" not in done.stderr


def test_a_folder_may_have_a_name_without_a_slash(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer("tiny").encode("1+1=") == [3, 12, 3, 13]


def smaller(checkpoint: Path, folder: Path, size: int) -> Path:
    """The checkpoint with another vocabulary size in its config."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size}))
    return folder


def test_a_tokenizer_with_ids_beyond_the_models_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="token '\\+' has id 12, but the model's vocabulary ends at 11"):
        load_tokenizer(str(smaller(checkpoint, tmp_path / "small", 12)))


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "<image>{{ messages[0].content }}"])
def test_an_added_token_beyond_the_models_is_refused_where_the_template_writes_it(
    checkpoint: Path, tmp_path: Path, template: str
) -> None:
    folder = smaller(checkpoint, tmp_path / "added", 14)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if "<image>" not in template:
        assert len(load_tokenizer(str(folder))) == 15
    else:
        with pytest.raises(ModelError, match="token '<image>' has id 14"):
            load_tokenizer(str(folder))


def test_recomputing_activations_warns_of_nothing(checkpoint: Path) -> None:
    model = load_model(str(checkpoint), torch.float32, torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recompute_activations(model)
