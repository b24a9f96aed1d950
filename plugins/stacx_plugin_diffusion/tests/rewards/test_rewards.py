"""Rewards of pictures."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file

from stacx_core import ConfigError, ModelError, RewardError
from stacx_plugin_diffusion.digits import CLASSES, digits_split
from stacx_plugin_diffusion.rewards import MediaReward, load_reward
from stacx_plugin_diffusion.rewards.digit_classifier import digit_probabilities


def brightness(media, prompts):
    return media.mean(dim=(1, 2, 3)) + torch.tensor([len(prompt) for prompt in prompts])


def grey(*levels):
    return torch.tensor(levels)[:, None, None, None].expand(-1, 1, 8, 8)


@pytest.fixture
def named(monkeypatch, tmp_path):
    """A module of a user's rewards."""
    (tmp_path / "my_rewards.py").write_text(
        "def bright(media, prompts):\n    return media.mean(dim=(1, 2, 3)).tolist()\n"
        "async def later(media, prompts):\n    return [0.0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_function_by_reference(named):
    assert load_reward("my_rewards:bright")(grey(0.25, 0.5), ["a", "b"]).tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rewards:brigth", "no 'brigth' there (did you mean 'bright'?)"),
        ("my_rewards:later", "is no plain function"),
        ("no_such_module:f", "'no_such_module' cannot be imported"),
        ("jpeg_siz", "no reward is called 'jpeg_siz' (did you mean 'jpeg_size'?); choose one of digit_classifier"),
        ("aesthetic", "needs the folder of its model: aesthetic:FOLDER"),
    ],
)
def test_names_that_lead_nowhere(named, name, message):
    with pytest.raises(ConfigError) as caught:
        load_reward(name)
    assert message in str(caught.value)


def test_what_is_not_finite_has_no_reward_and_broken_pictures_are_not_shown():
    seen = []

    def score(media, prompts):
        seen.append(prompts)
        return [1.0, math.inf]

    rewards = MediaReward("score", score)(grey(0.1, math.nan, 0.3), ["a", "b", "c"])
    assert seen == [["a", "c"]]
    assert rewards[0] == 1
    assert rewards[1:].isnan().all()
    assert MediaReward("score", score)(grey(math.nan), ["a"]).isnan().all()
    assert len(seen) == 1


def test_failures_carry_the_name_of_the_reward():
    def broken(media, prompts):
        raise KeyError("colour")

    with pytest.raises(RewardError, match="reward broken: KeyError: 'colour'"):
        MediaReward("broken", broken)(grey(0.5), ["a"])
    with pytest.raises(RewardError, match=r"reward flat returned the shape \[1, 1, 8, 8\] for 1 samples"):
        MediaReward("flat", lambda media, prompts: media)(grey(0.5), ["a"])
    with pytest.raises(RewardError, match=r"reward one returned the shape \[\] for 1 samples"):
        MediaReward("one", lambda media, prompts: 1.0)(grey(0.5), ["a"])
    with pytest.raises(RewardError, match="reward none: "):
        MediaReward("none", lambda media, prompts: None)(grey(0.5), ["a"])
    with pytest.raises(RewardError, match="1 prompts for 2 samples"):
        MediaReward("b", brightness)(grey(0.5, 0.5), ["a"])


def test_the_classifier_knows_97_percent_of_what_it_was_not_shown():
    media, labels = digits_split("test")
    accuracy = (digit_probabilities(media).argmax(dim=1) == labels).float().mean()
    assert round(float(accuracy), 3) == 0.970


def test_the_classifier_gives_the_probability_of_the_prompt():
    media, labels = digits_split("test")
    reward = load_reward("digit_classifier")
    right = reward(media[:8], [CLASSES[label] for label in labels[:8]])
    assert (right > 0.5).sum() >= 7
    every = torch.stack([reward(media[:1], [name])[0] for name in CLASSES])
    assert float(every.sum()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(RewardError, match=r"'fiv' is none of zero.*\(did you mean 'five'\?\)"):
        reward(media[:1], ["fiv"])
    with pytest.raises(RewardError, match=r"pictures are \[1, 8, 8\], not \[3, 8, 8\]"):
        reward(torch.zeros(1, 3, 8, 8), ["five"])


def test_noise_is_larger_than_a_plain_picture():
    media = torch.stack(
        [torch.full((3, 32, 32), 0.5), torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))]
    )
    large = load_reward("jpeg_incompressibility")(media, ["a", "b"])
    small = load_reward("jpeg_size")(media, ["a", "b"])
    assert 0.3 < large[0] < 1 < large[1] < 4
    assert torch.equal(small, -large)


def test_a_picture_of_two_channels_is_no_picture():
    with pytest.raises(RewardError, match="reward jpeg_size: ValueError: a picture has 1 or 3 channels"):
        load_reward("jpeg_size")(torch.zeros(1, 2, 8, 8), ["a"])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A CLIP of a few thousand weights, with a head of two layers that sums the embedding twice over."""
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = CLIPTextConfig(vocab_size=8, **sizes, projection_dim=4)
    vision = CLIPVisionConfig(image_size=16, patch_size=8, **sizes, projection_dim=4)
    CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=4)).save_pretrained(
        folder
    )
    head = {
        "layers.0.weight": torch.ones(2, 4),
        "layers.0.bias": torch.zeros(2),
        "layers.10.weight": torch.ones(1, 2),
        "layers.10.bias": torch.tensor([10.0]),
    }
    save_file(head, folder / "aesthetic_head.safetensors")
    return folder


def test_an_aesthetic_score_is_linear_in_clips_unit_embedding(clip):
    from transformers import CLIPModel

    media = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    scores = load_reward(f"aesthetic:{clip}")(media, ["a", "b", "c"])
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    model = CLIPModel.from_pretrained(clip)
    with torch.no_grad():
        pooled = model.vision_model(pixel_values=(media - mean) / std).pooler_output
        embeds = torch.nn.functional.normalize(model.visual_projection(pooled), dim=-1)
    torch.testing.assert_close(scores, 10 + 2 * embeds.sum(dim=1))


def test_a_grey_picture_of_another_size_is_scored_too(clip):
    assert load_reward(f"aesthetic:{clip}")(grey(0.2, 0.8), ["a", "b"]).isfinite().all()


def test_folders_that_score_nothing(clip, tmp_path):
    with pytest.raises(ModelError, match=r"reward aesthetic: no config.json in"):
        load_reward(f"aesthetic:{tmp_path}")
    (tmp_path / "config.json").write_text((clip / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no aesthetic_head.safetensors in"):
        load_reward(f"aesthetic:{tmp_path}")
    save_file(
        {"layers.0.weight": torch.ones(2, 4), "layers.0.bias": torch.ones(2)}, tmp_path / "aesthetic_head.safetensors"
    )
    with pytest.raises(ModelError, match="no usable CLIP model"):
        load_reward(f"aesthetic:{tmp_path}")(grey(0.5), ["a"])
    (tmp_path / "model.safetensors").write_bytes((clip / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match="the last layer has 2 outputs"):
        load_reward(f"aesthetic:{tmp_path}")(grey(0.5), ["a"])
