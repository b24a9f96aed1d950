"""What these tests stand on: a real server whose log-probabilities are those of Hugging Face."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

PROMPT = [5, 17, 96, 3, 42, 88, 21]


def forward(folder, ids):
    """Log-probabilities of the ids after the first, float32 [L - 1]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return log_probs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_log_probs_are_those_of_hugging_face(sglang_server, llama):
    params = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    answer = sglang_server(llama).post(
        "/generate", input_ids=PROMPT, sampling_params=params, return_logprob=True, logprob_start_len=0
    )
    meta = answer["meta_info"]
    told = [row[0] for row in (*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"])]
    assert len(answer["output_ids"]) == 8
    torch.testing.assert_close(
        torch.tensor(told), forward(llama, [*PROMPT, *answer["output_ids"]]), atol=1e-4, rtol=0.0
    )
