"""A trained reward model as the reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stacx_core import ConfigError, RewardError, Sample
from stacx_core.backends.model import load_model
from stacx_core.rewards import load_reward, score


@pytest.fixture
def reward_model(checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny Llama with a scalar head that reads the first hidden feature."""
    from transformers import AutoTokenizer

    folder = tmp_path / "reward"
    model = load_model(str(checkpoint), torch.float32, torch.device("cpu"), "scalar")
    model.score.weight.data[0, 0] = 1.0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


def test_the_reward_is_the_value_at_the_last_token(reward_model: Path, checkpoint: Path, host_args: Any) -> None:
    """Packed in two micro-batches; against Transformers' own model on each sequence alone."""
    from transformers import AutoModelForSequenceClassification

    sequences = [[2, 3, 4], [5, 6, 7, 8, 9], [3, 3]]
    samples = [Sample(tokens=tokens, response_length=1) for tokens in sequences]
    args = host_args(rm_load=str(reward_model), hf_checkpoint=str(checkpoint), max_tokens_per_gpu=6)
    score(samples, load_reward("model", args))
    plain = AutoModelForSequenceClassification.from_pretrained(reward_model)
    expected = [plain(torch.tensor([tokens])).logits.item() for tokens in sequences]
    assert [sample.reward for sample in samples] == pytest.approx(expected, abs=1e-5)


def test_a_longer_sample_than_its_context_is_an_error(reward_model: Path, checkpoint: Path, host_args: Any) -> None:
    args = host_args(rm_load=str(reward_model), hf_checkpoint=str(checkpoint))
    with pytest.raises(RewardError, match=r"sample 7 has 33 tokens; the reward model of .* takes 32"):
        score([Sample(index=7, tokens=[3] * 33, response_length=1)], load_reward("model", args))


def test_another_tokenizer_is_refused(reward_model: Path, checkpoint: Path, host_args: Any) -> None:
    path = reward_model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="another tokenizer than the policy: id 2 is '1' there and '0' here"):
        load_reward("model", host_args(rm_load=str(reward_model), hf_checkpoint=str(checkpoint)))


def test_the_model_must_be_named(host_args: Any) -> None:
    with pytest.raises(ConfigError, match="--rm-type model needs --rm-load"):
        load_reward("model", host_args())


class Lengths:
    """Scores all samples at once, one too few when told to."""

    def __init__(self, missing: int = 0) -> None:
        self.missing = missing

    def score_batch(self, samples: list[Sample]) -> list[float]:
        return [float(len(sample.response)) for sample in samples][self.missing :]


def test_a_reward_may_score_all_samples_at_once() -> None:
    samples = [Sample(response="ab"), Sample(response="never", remove_sample=True), Sample(response="abc")]
    score(samples, Lengths())
    assert [sample.reward for sample in samples] == [2.0, None, 3.0]
    with pytest.raises(RewardError, match="Lengths: score_batch returned 1 rewards for 2 samples"):
        score(samples, Lengths(missing=1))
