"""The table of prompts."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import save_file

from stacx_core import ModelError
from stacx_plugin_diffusion.models.prompts import PromptTable


@pytest.fixture
def table():
    return PromptTable(["a cat", "a dog", ""], torch.arange(12.0).reshape(3, 2, 2), torch.arange(9.0).reshape(3, 3))


def test_a_prompt_is_its_row(table):
    dog, null = table.encode(["a dog", ""])
    assert dog["prompt_embeds"].tolist() == [[4, 5], [6, 7]]
    assert dog["pooled_embeds"].tolist() == [3, 4, 5]
    assert null["pooled_embeds"].tolist() == [6, 7, 8]


def test_it_is_read_as_it_was_written(table, tmp_path):
    table.save(tmp_path)
    again = PromptTable.read(tmp_path)
    assert again.rows == {"a cat": 0, "a dog": 1, "": 2}
    assert torch.equal(again.embeds, table.embeds)


def test_an_unknown_prompt_names_near_ones(table):
    with pytest.raises(ModelError, match="has no prompt 'a cart', but near ones: 'a cat'"):
        table.encode(["a dog", "a cart"])
    with pytest.raises(ModelError, match="has no prompt 'zebra', but 3 others: 'a cat', 'a dog', ''"):
        table.encode(["zebra"])


def test_a_table_without_null_prompt_says_what_needs_it():
    with pytest.raises(ModelError, match='no null prompt "", which guidance needs'):
        PromptTable(["a cat"], torch.zeros(1, 1, 2), torch.zeros(1, 2)).encode([""])


@pytest.mark.parametrize(
    ("prompts", "embeds", "pooled", "message"),
    [
        (["a", "a"], torch.zeros(2, 1, 2), torch.zeros(2, 2), "'a' is there more than once"),
        (["a", "b"], torch.zeros(3, 1, 2), torch.zeros(2, 2), r"'prompt_embeds' has shape \[3, 1, 2\]; 2 prompts need"),
        (["a"], torch.zeros(1, 2), torch.zeros(1, 2), r"need \[1, 'L', 'E'\]"),
        (["a"], torch.zeros(1, 1, 2), torch.full((1, 2), torch.nan), "'pooled_embeds' holds NaN"),
    ],
)
def test_what_does_not_fit_is_refused(prompts, embeds, pooled, message):
    with pytest.raises(ModelError, match=message):
        PromptTable(prompts, embeds, pooled)


def test_files_that_cannot_be_read(table, tmp_path):
    table.save(tmp_path)
    save_file({"prompt_embeds": table.embeds}, tmp_path / "prompts.safetensors")
    with pytest.raises(ModelError, match="has no tensor 'pooled_embeds'"):
        PromptTable.read(tmp_path)
    (tmp_path / "prompts.json").write_text("[1, 2]")
    table.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "prompts.safetensors", tmp_path)
    with pytest.raises(ModelError, match="is no list of texts"):
        PromptTable.read(tmp_path)
    (tmp_path / "prompts.json").write_text("[")
    with pytest.raises(ModelError, match="no usable prompt table"):
        PromptTable.read(tmp_path)


def test_a_checkpoint_may_bring_no_encoder(digits_checkpoint, load, tmp_path):
    folder = shutil.copytree(digits_checkpoint, tmp_path / "copy", ignore=shutil.ignore_patterns("prompts.*"))
    model = load(folder)
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(ModelError, match=r"has no prompt encoder: neither prompts.json nor model_index.json"):
        model.encode(["three"])
