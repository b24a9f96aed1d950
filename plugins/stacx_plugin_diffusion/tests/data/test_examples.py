"""Sources of training data, and what is said of malformed ones."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from stacx_core import ConfigError, DataError
from stacx_plugin_diffusion.data import read_examples, read_pairs


def encode(media):
    return media * 2 - 1


def paint(path, level, size=(2, 2)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, level).save(path)


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refusal(source, read=read_examples):
    with pytest.raises(DataError) as caught:
        read(str(source), encode, 1)
    return str(caught.value)


def test_a_folder_with_metadata(tmp_path):
    paint(tmp_path / "a.png", 0)
    paint(tmp_path / "more" / "b.png", 255)
    write_rows(
        tmp_path / "metadata.jsonl",
        {"file_name": "more/b.png", "text": "white", "weight": 2, "label": 1},
        {"file_name": "a.png", "text": "black"},
    )
    white, black = read_examples(str(tmp_path), encode, 1)
    assert (white.prompt, white.weight, white.label) == ("white", 2.0, 1)
    assert (black.prompt, black.weight, black.label) == ("black", None, None)
    assert white.latent.tolist() == [[[1, 1], [1, 1]]]
    assert black.latent.tolist() == [[[-1, -1], [-1, -1]]]
    assert white.where == f"{tmp_path / 'metadata.jsonl'}, line 1"


def test_a_folder_with_captions_beside(tmp_path):
    paint(tmp_path / "a.png", 51)
    (tmp_path / "a.txt").write_text("grey\n")
    (example,) = read_examples(str(tmp_path), encode, 3)
    assert example.prompt == "grey"
    assert example.latent.shape == (3, 2, 2)
    torch.testing.assert_close(example.latent, torch.full((3, 2, 2), -0.6))
    assert read_examples(str(tmp_path))[0].latent is None


def test_latents_with_prompts(tmp_path):
    latents = torch.arange(8.0).reshape(2, 1, 2, 2)
    tensors = {"latents": latents, "weights": torch.tensor([1.0, 0.5]), "labels": torch.tensor([3, 4])}
    save_file(tensors, tmp_path / "data.safetensors", {"prompts": '["a", "b"]'})
    _, example = read_examples(str(tmp_path / "data.safetensors"), encode)
    assert (example.prompt, example.weight, example.label, example.cond) == ("b", 0.5, 4, None)
    assert torch.equal(example.latent, latents[1])


def test_latents_with_embeddings(tmp_path):
    tensors = {
        "latents": torch.zeros(2, 4),
        "prompt_embeds": torch.arange(12.0).reshape(2, 3, 2),
        "pooled_embeds": torch.ones(2, 5),
    }
    save_file(tensors, tmp_path / "data.safetensors")
    _, example = read_examples(str(tmp_path / "data.safetensors"), encode)
    assert example.prompt == ""
    assert example.cond["prompt_embeds"].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert example.cond["pooled_embeds"].shape == (5,)


def test_digits():
    train, test = (read_examples(f"digits:{split}", encode, 1) for split in ("train", "test"))
    assert (len(train), len(test)) == (1500, 297)
    pixels = torch.stack([example.latent for example in train])
    assert pixels.shape == (1500, 1, 8, 8)
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert torch.equal((pixels + 1) * 8, ((pixels + 1) * 8).round())
    named = {(example.prompt, example.label) for example in train}
    assert len(named) == 10
    assert {("zero", 0), ("five", 5), ("nine", 9)} < named


def test_prompts_alone(tmp_path):
    (tmp_path / "p.txt").write_text("a cat\n\n  a dog \n")
    assert [example.prompt for example in read_examples(str(tmp_path / "p.txt"))] == ["a cat", "a dog"]
    rows = write_rows(tmp_path / "p.jsonl", {"prompt": "a cat", "label": 7})
    assert [(example.prompt, example.label) for example in read_examples(rows)] == [("a cat", 7)]
    assert "p.txt, line 1: a prompt without picture or latent" in refusal(tmp_path / "p.txt")


def test_pairs(tmp_path):
    paint(tmp_path / "good.png", 255)
    paint(tmp_path / "bad.png", 0)
    source = write_rows(tmp_path / "pairs.jsonl", {"prompt": "snow", "chosen": "good.png", "rejected": "bad.png"})
    (pair,) = read_pairs(source, encode, 1)
    assert pair.prompt == "snow"
    assert (pair.chosen.mean(), pair.rejected.mean()) == (1, -1)


def test_more_pictures_than_are_encoded_at_once_keep_their_order(tmp_path):
    rows = []
    for index in range(35):
        paint(tmp_path / f"{index}.png", index)
        rows.append({"file_name": f"{index}.png", "text": str(index)})
    write_rows(tmp_path / "metadata.jsonl", *rows)
    examples = read_examples(str(tmp_path), lambda media: media * 255, 1)
    assert [round(float(example.latent.mean())) for example in examples] == list(range(35))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "line 1: no field 'file_name'; the row has text"),
        ({"file_name": "a.png", "txet": "x"}, "no field 'text' (did you mean 'txet'?)"),
        ({"file_name": "a.png", "text": "  "}, "'text' must be text that is not blank"),
        ({"file_name": "b.png", "text": "x"}, "(did you mean 'a.png'?)"),
        ({"file_name": "a.png", "text": "x", "weight": -1}, "'weight' must be a finite number of at least 0, not -1"),
        ({"file_name": "a.png", "text": "x", "label": "nine"}, "'label' must be the number of a class, not 'nine'"),
        (["a.png"], "a row must be an object"),
    ],
)
def test_malformed_metadata(tmp_path, row, message):
    paint(tmp_path / "a.png", 0)
    write_rows(tmp_path / "metadata.jsonl", row)
    found = refusal(tmp_path)
    assert message in found
    assert "metadata.jsonl, line 1" in found


def test_images_without_a_row_or_a_caption(tmp_path):
    paint(tmp_path / "a.png", 0)
    assert "a.png: no caption\n  write it to a.txt beside it" in refusal(tmp_path)
    (tmp_path / "a.txt").write_text(" ")
    assert "a.txt: the caption is blank" in refusal(tmp_path)
    paint(tmp_path / "b.png", 0)
    write_rows(tmp_path / "metadata.jsonl", {"file_name": "a.png", "text": "x"})
    assert "no row for 1 images, first" in refusal(tmp_path)


def test_a_corrupt_image(tmp_path):
    paint(tmp_path / "a.png", 0, (64, 64))
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    (tmp_path / "a.txt").write_text("x")
    assert "a.png' is no image that can be read" in refusal(tmp_path)
    (tmp_path / "a.png").write_text("no image")
    assert "a.png' is no image that can be read" in refusal(tmp_path)


def test_images_of_several_sizes(tmp_path):
    for name, size in (("a", (2, 2)), ("b", (2, 4))):
        paint(tmp_path / f"{name}.png", 0, size)
        (tmp_path / f"{name}.txt").write_text("x")
    assert "b.png: the picture has shape [1, 4, 2], the first one [1, 2, 2]" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"x": torch.zeros(1)}, None, "no tensor 'latents'; it has x"),
        ({"latents": torch.zeros(2, 3)}, None, "neither prompts nor their embeddings"),
        ({"latents": torch.zeros(2, 3)}, {"prompts": '["a"]'}, "'prompts' has 1 rows, 'latents' has 2"),
        ({"latents": torch.zeros(2, 3)}, {"prompts": "[1, 2]"}, "must be a JSON list of texts"),
        ({"latents": torch.zeros(1, 3)}, {"prompts": "["}, "are no JSON"),
        ({"latents": torch.zeros(0, 3)}, {"prompts": "[]"}, "has no row"),
        ({"latents": torch.tensor([[0.0], [torch.nan]])}, {"prompts": '["a", "b"]'}, "row 2: 'latents' holds NaN"),
        (
            {"latents": torch.zeros(1, 3), "weights": torch.tensor([torch.inf])},
            {"prompts": '["a"]'},
            "row 1: 'weights' holds NaN or infinity",
        ),
        (
            {"latents": torch.zeros(1, 3), "weights": torch.tensor([-2.0])},
            {"prompts": '["a"]'},
            "row 1: a weight must not be negative, as -2.0 is",
        ),
    ],
)
def test_malformed_latents(tmp_path, tensors, metadata, message):
    save_file(tensors, tmp_path / "data.safetensors", metadata)
    found = refusal(tmp_path / "data.safetensors")
    assert message in found
    assert "data.safetensors" in found


def test_what_is_not_there_or_empty(tmp_path):
    (tmp_path / "p.txt").write_text("\n")
    (tmp_path / "p.csv").write_text("a")
    (tmp_path / "damaged.safetensors").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes("ein Bär".encode("latin-1"))
    assert "latin.txt: not UTF-8" in refusal(tmp_path / "latin.txt")
    assert "has no row" in refusal(tmp_path / "p.txt")
    assert "does not exist (did you mean 'p.txt'?)" in refusal(tmp_path / "q.txt")
    assert "has the suffix '.csv'; data are a folder of images" in refusal(tmp_path / "p.csv")
    assert "is damaged" in refusal(tmp_path / "damaged.safetensors")
    assert "no image in" in refusal(tmp_path / "empty")
    assert "no split 'tests' of the digits (did you mean 'test'?)" in refusal("digits:tests")


def test_malformed_pairs(tmp_path):
    paint(tmp_path / "a.png", 0)
    paint(tmp_path / "b.png", 0, (4, 4))
    pairs = tmp_path / "pairs.jsonl"
    write_rows(pairs, {"prompt": "x", "chosen": "a.png"})
    assert "line 1: no field 'rejected'" in refusal(pairs, read_pairs)
    write_rows(pairs, {"prompt": "x", "chosen": "a.png", "rejected": "b.png"})
    assert "line 1: the picture has shape [1, 4, 4]" in refusal(pairs, read_pairs)
    write_rows(pairs)
    assert "has no row" in refusal(pairs, read_pairs)
    assert "pairs are read from NAME.jsonl" in refusal(tmp_path / "a.png", read_pairs)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    from stacx_plugin_diffusion.digits import digits_split

    digits_split.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigError, match=r"the digits needs 'sklearn'(.|\n)*stacx-plugin-diffusion\[digits\]"):
        read_examples("digits:train", encode, 1)
