"""The contract of the training batch: every key, its element, and the stage that writes it.

A batch maps each key to a list with one element per sample. Letters: L tokens of a sample, R of them in the
response, T tokens packed together, K entries of a top-k list. Elements [R, ...] are response-aligned: position t
belongs to the t-th response token, whatever the prompt. Another modality brings its keys with it, of which those
[R, ...] are aligned with the R positions of its responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PRODUCERS = ("prompts", "rollout", "reward", "conversion", "packing", "forward", "sync", "advantages")
"""The stages that write keys, in the order in which they run; `sync`: only another role can compute it."""


@dataclass(frozen=True)
class BatchKey:
    """One key of the training batch. `element` is the shape and dtype of one sample's entry."""

    name: str
    element: str
    producer: str
    description: str


_KEYS = (
    BatchKey("metadata", "dict", "prompts", "notes of the prompt source and the environment"),
    BatchKey("source_names", "str", "prompts", "name of the prompt source"),
    BatchKey("group_indices", "int", "prompts", "prompt group; group statistics are taken over equal values"),
    BatchKey("pair_ids", "int", "prompts", "preference pair; both members carry the same value"),
    BatchKey("is_chosen", "bool", "prompts", "whether the sample is the preferred member of its pair"),
    BatchKey("rollout_log_probs", "[R] float32", "rollout", "the engine's log-probs when it sampled the tokens"),
    BatchKey("teacher_log_probs", "[R] float32", "rollout", "the teacher's log-probs of the response tokens"),
    BatchKey("teacher_topk_ids", "[R, K] int32", "rollout", "the teacher's most likely tokens"),
    BatchKey("teacher_topk_log_probs", "[R, K] float32", "rollout", "log-probs of teacher_topk_ids"),
    BatchKey("executor", "[R] int8", "rollout", "who wrote the token: 0 environment, 1 student, 2 teacher"),
    BatchKey("turn_ids", "[R] int16", "rollout", "turn of a multi-turn episode, -1 for environment tokens"),
    BatchKey("behavior_version", "[R] int32", "rollout", "version of the weights that sampled the token"),
    BatchKey("round_number", "int", "rollout", "round of data collection the sample comes from"),
    BatchKey("raw_reward", "float", "reward", "what the verifier returned, before any shaping"),
    BatchKey("rewards", "float", "reward", "the reward the advantages are computed from"),
    BatchKey("tokens", "[L] int64", "conversion", "prompt and response; packed into [1, T] per micro-batch"),
    BatchKey("teacher_tokens", "[L'] int64", "conversion", "the response behind the prompt a teacher role sees"),
    BatchKey("total_lengths", "int", "conversion", "L, tokens of prompt and response"),
    BatchKey("response_lengths", "int", "conversion", "R, tokens of the response"),
    BatchKey("loss_masks", "[R] int32", "conversion", "1 where the token is trained on, 0 elsewhere"),
    BatchKey("rollout_mask_sums", "int", "conversion", "trained tokens of all samples of this rollout id"),
    BatchKey("truncated", "int", "conversion", "1 when the response was cut at the length limit"),
    BatchKey("removed", "int", "conversion", "1 when the sample was dropped: its mask is all 0"),
    BatchKey("sample_indices", "int", "conversion", "unique number of the sample within the run"),
    BatchKey("rollout_ids", "int", "conversion", "one execution; samples of one episode share it"),
    BatchKey("unconcat_tokens", "[L] int64", "packing", "tokens of each sample of a packed micro-batch"),
    BatchKey("position_ids", "[1, T] int64", "packing", "positions, restarting at 0 with each sample"),
    BatchKey("cu_seqlens", "[B + 1] int32", "packing", "where each sample starts and ends in the pack"),
    BatchKey("full_loss_masks", "[1, T] int32", "packing", "loss_masks moved to the positions of the logits"),
    BatchKey("log_probs", "[R] float32", "forward", "the policy's log-probs before its first update"),
    BatchKey("ref_log_probs", "[R] float32", "forward", "the frozen reference's log-probs"),
    BatchKey("values", "[R] float32", "sync", "the critic's values before its first update"),
    BatchKey("kl", "[R] float32", "advantages", "estimated divergence from the reference"),
    BatchKey("advantages", "[R] float32", "advantages", "weight of each token in the policy loss"),
    BatchKey("returns", "[R] float32", "advantages", "target of the critic"),
    BatchKey("kto_baseline", "float", "advantages", "log-ratio that a response must be above to be liked, in KTO"),
    BatchKey("opd_reverse_kl", "[R] float32", "advantages", "student minus teacher log-prob, a penalty"),
)

BATCH_KEYS: Mapping[str, BatchKey] = MappingProxyType({key.name: key for key in _KEYS})
"""Every key of the contract by name, in the order of the stages that write them."""
