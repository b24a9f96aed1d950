"""What is sent to a server, decided before the first byte."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.checksums import checksum, compare
from stacx_core.rollout.sglang.weights.plan import TrainedWeights, make_plan
from stacx_core.rollout.sglang.weights.served import ask
from stacx_core.rollout.sglang.weights.tensor import serialised

SIZES = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Answers:
    """A server that only says what it runs."""

    url = "http://server:1"

    def __init__(self, folder: Path, **about):
        self.told = {"/model_info": {"model_path": str(folder), "weight_version": "old"}}
        self.told["/server_info"] = {"dtype": "float32", "device": "cpu", "tp_size": 1, "pp_size": 1, **about}

    async def get(self, path, timeout):
        return self.told[path]

    async def post(self, path, body, timeout):
        raise AssertionError(f"{path} was posted before the plan")


@pytest.fixture
def served(tmp_path):
    """What a server tells of a random model, and the model."""

    def make(config=None, **about):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config or LlamaConfig(**SIZES))
        folder = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        model.save_pretrained(folder)
        return asyncio.run(ask(Answers(folder, **about), 1.0)), model

    return make


def planned(target, model, most=2**30, **changed):
    weights = TrainedWeights.of(model)
    tensors = {name: tensor for name, tensor in weights.tensors.items() if changed.get(name, 1) is not None}
    return make_plan(
        [target], replace(weights, tensors={**tensors, **{k: v for k, v in changed.items() if v is not None}}), most
    )


def refusal(target, model, **changed):
    with pytest.raises(WeightSyncError) as caught:
        planned(target, model, **changed)
    assert caught.value.url == "http://server:1"
    assert "nothing was sent" in str(caught.value)
    return caught.value.message


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_is_not_sent(served, tied):
    target, model = served(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    names = [name for bucket in planned(target, model, 1).buckets for name in bucket]
    assert ("lm_head.weight" in names) is not tied
    assert names == [name for name, _ in model.named_parameters()]


def test_a_tied_head_that_comes_along_must_be_the_embedding(served):
    target, model = served(LlamaConfig(**SIZES, tie_word_embeddings=True))
    embedding = model.get_input_embeddings().weight.detach()
    assert "lm_head.weight" not in planned(target, model, **{"lm_head.weight": embedding.clone()}).tensors
    assert "ties lm_head.weight to model.embed_tokens.weight" in refusal(
        target, model, **{"lm_head.weight": embedding + 1}
    )


def test_a_missing_an_unknown_and_a_misshapen_tensor_are_refused(served):
    target, model = served()
    name = "model.layers.1.mlp.up_proj.weight"
    assert f"lack {name}" in refusal(target, model, **{name: None})
    assert "no model.extra" in refusal(target, model, **{"model.extra": torch.zeros(1)})
    assert f"{name} has shape (16, 32) and its model takes (32, 16)" in refusal(
        target, model, **{name: torch.zeros(16, 32)}
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Qwen2Config(**SIZES), "a model of type 'llama', the trainer one of 'qwen2'"),
        (MistralConfig(**SIZES), "a model of type 'llama', the trainer one of 'mistral'"),
        (LlamaConfig(**{**SIZES, "vocab_size": 98}), "has vocab_size 97, the trainer's 98"),
        (LlamaConfig(**SIZES, tie_word_embeddings=True), "has tie_word_embeddings False, the trainer's True"),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5.0}), "has rope_parameters"),
    ],
)
def test_another_model_is_refused(served, config, said):
    target, _ = served()
    assert said in refusal(target, AutoModelForCausalLM.from_config(config))


def test_a_model_folder_that_is_not_here_is_refused(tmp_path):
    with pytest.raises(WeightSyncError, match="cannot be read here"):
        asyncio.run(ask(Answers(tmp_path / "elsewhere"), 1.0))


def test_servers_of_different_dtypes_are_refused(served):
    (one, model), (other, _) = served(), served(dtype="bfloat16")
    with pytest.raises(WeightSyncError, match=r"float32.*bfloat16.*one --dtype"):
        make_plan([one, other], TrainedWeights.of(model), 1)


def test_weights_are_sent_in_the_servers_dtype_and_buckets_counted_in_it(served):
    target, model = served(dtype="bfloat16")
    plan = planned(target, model, 97 * 16 * 2)
    assert plan.sent("model.embed_tokens.weight").dtype == torch.bfloat16
    assert plan.buckets[0] == ("model.embed_tokens.weight",)


@pytest.mark.parametrize(("own", "dtype"), [(torch.float32, None), (torch.bfloat16, torch.bfloat16)])
def test_what_dtype_auto_means(served, own, dtype):
    target, _ = served(LlamaConfig(**SIZES, dtype=own), dtype="auto")
    assert target.dtype == dtype


def test_a_mixture_is_sent_under_the_names_of_its_checkpoint(served):
    from safetensors import safe_open
    from transformers import MixtralConfig

    target, model = served(MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1))
    with safe_open(Path(target.server.told["/model_info"]["model_path"]) / "model.safetensors", "pt") as saved:
        assert set(planned(target, model).tensors) == set(saved.keys())


def test_a_pickle_holds_each_tensor_alone_and_names_no_shared_memory():
    base = torch.arange(1000.0)
    data = base64.b64decode(serialised([("part", base[10:12]), ("transposed", base[:6].view(2, 3).t())]))
    assert len(data) < 1500
    assert b"multiprocessing" not in data
    part, transposed = (tensor for _, tensor in pickle.load(io.BytesIO(data)))
    assert part.tolist() == [10.0, 11.0]
    assert transposed.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_checksum_is_the_start_of_the_sha256_of_the_bytes():
    assert checksum(torch.zeros(2)) == "af5570f5a1810b7a"


def test_checksums_know_fused_and_padded_tensors(served):
    target, model = served()
    plan = planned(target, model)
    state = model.state_dict()
    attention = "model.layers.0.self_attn."
    parts = torch.cat([state[f"{attention}{part}_proj.weight"] for part in "qkv"])
    padded = torch.cat([state["lm_head.weight"], torch.zeros(31, 16)])
    told = {f"{attention}qkv_proj.weight": checksum(parts), "lm_head.weight": checksum(padded), "experts.w13": "?"}
    assert compare(plan, [told]) == [f"{attention}qkv_proj.weight", "lm_head.weight"]
    with pytest.raises(WeightSyncError, match=r"differ from the trainer's: lm_head\.weight"):
        compare(plan, [{**told, "lm_head.weight": checksum(padded + 1)}])


def test_checksums_that_cannot_be_recomputed_are_compared_between_servers(served):
    (one, model), (other, _) = served(device="cuda"), served(device="cuda")
    plan = make_plan([one, other], TrainedWeights.of(model), 1)
    assert compare(plan, [{"a": "1"}, {"a": "1"}]) == []
    with pytest.raises(WeightSyncError, match="differ from another server's: a"):
        compare(plan, [{"a": "1"}, {"a": "2"}])
