"""The host's own knobs, section by section. A recipe adds its own through ``TrainingConfig.knobs``."""

from __future__ import annotations

import os

from stacx_core.aggregations import AGGREGATIONS
from stacx_core.knobs import Knob
from stacx_core.megatron_knobs import MEGATRON_KNOBS
from stacx_core.ray_knobs import RAY_KNOBS
from stacx_core.sampling_knobs import SAMPLING_KNOBS
from stacx_core.sglang_knobs import SGLANG_KNOBS


def _at_most_the_cpus(count: int) -> str | None:
    cpus = os.cpu_count() or 1
    return None if count <= cpus else f"is above the {cpus} logical CPU(s) of this machine"


def _not_empty(name: str) -> str | None:
    return None if name.strip() else "is empty; use never, auto, or the name or the path of a checkpoint"


def _below_one(value: float) -> str | None:
    return None if value < 1 else "must be below 1"


_RECIPE = (
    Knob("algorithm", str, None, "Recipe to train; see `stacx list-recipes`.", "recipe"),
    Knob("advantage_estimator", str, "grpo", "Picks the recipe when --algorithm is not given.", "recipe"),
    Knob("use_critic", bool, False, "Picks ppo when --algorithm is not given.", "recipe"),
    Knob("loss_type", str, "policy_loss", "sft_loss picks sft when --algorithm is not given.", "recipe",
         choices=("policy_loss", "sft_loss")),
)  # fmt: skip

_MODEL = (
    Knob("hf_checkpoint", str, None, "Hugging Face folder or hub id of the model to train.", "model"),
    Knob("ref_load", str, None, "Hugging Face folder or hub id of the frozen reference.", "model"),
    Knob("backend", str, "torch", "What runs the models: torch in one process, or megatron over several.", "model",
         choices=("torch", "megatron")),
    Knob("dtype", str, "fp32", "Precision of forward and backward; bf16 keeps fp32 master weights.", "model",
         choices=("fp32", "bf16")),
    Knob("device", str, "auto", "Where to train: auto takes CUDA when there is one.", "model",
         choices=("auto", "cpu", "cuda")),
    Knob("num_threads", int, None, "Threads of a CPU run, at most one per logical CPU; unset means one per free "
         "physical core, at least one.", "model", minimum=1, check=_at_most_the_cpus),
    Knob("gradient_checkpointing", bool, False, "Recompute layers in the backward pass to save memory.", "model"),
    Knob("offload_roles", bool, False, "Keep of the roles that share a process only the one that computes on the GPU, "
         "and the others in CPU memory.", "model"),
)  # fmt: skip

_DATA = (
    Knob("prompt_data", str, None, "JSONL or Parquet file, Hugging Face dataset folder, or reasoning_gym:NAME.",
         "data"),
    Knob("input_key", str, "prompt", "Column of the prompt: text, or a list of chat messages.", "data"),
    Knob("label_key", str, None, "Column of the label: the answer for a reward, the response for sft.", "data"),
    Knob("apply_chat_template", str, "auto", "auto applies the tokenizer's chat template when it has one.", "data",
         choices=("auto", "always", "never")),
    Knob("rollout_shuffle", bool, True, "Shuffle the prompts, anew each epoch.", "data"),
    Knob("max_sequence_len", int, None, "Longest prompt plus response; unset takes the shortest context of the models "
         "in the run.", "data", minimum=2),
)  # fmt: skip

_ROLLOUT = (
    Knob("rollout_batch_size", int, 32, "Prompts per rollout.", "rollout", minimum=1),
    Knob("n_samples_per_prompt", int, 1, "Responses per prompt: the group size.", "rollout", minimum=1),
    Knob("rollout_temperature", float, 1.0, "Sampling temperature; also divides the training logits.", "rollout",
         exclusive_minimum=0),
    Knob("rollout_top_p", float, 1.0, "Nucleus sampling mass.", "rollout", exclusive_minimum=0, maximum=1),
    Knob("rollout_top_k", int, -1, "Sample among the k likeliest tokens; -1 for all.", "rollout", minimum=-1,
         check=lambda k: "must be -1 or at least 1" if k == 0 else None),
    Knob("rollout_max_response_len", int, 256, "Most new tokens of a response.", "rollout", minimum=1),
    Knob("rollout_max_running", int, 256, "Most responses decoded together.", "rollout", minimum=1),
    Knob("dynamic_sampling_filter", str, None, "Keep only groups that pass, and sample more prompts in place of the "
         "others: reward_std (their rewards differ), or package.module:function of a group's samples.", "rollout"),
    Knob("dynamic_sampling_max_rounds", int, 10, "Most rounds of sampling in one rollout.", "rollout", minimum=1),
    Knob("dynamic_sampling_exhausted", str, "short", "After the last round: train on the groups there are, or stop.",
         "rollout", choices=("short", "raise")),
)  # fmt: skip

_ENVIRONMENT = (
    Knob("environment", str, None, "Play episodes in textarena:NAME, reasoning_gym:NAME, harbor:FOLDER or "
         "package.module:Class.", "environment"),
    Knob("max_turns", int, 16, "Most actions of an episode.", "environment", minimum=1),
    Knob("episode_timeout", float, 60.0, "Seconds for each call of an environment; more where it needs more by its "
         "own limits.", "environment",
         exclusive_minimum=0),
    Knob("env_workers", int, 16, "Environments that are called at a time.", "environment", minimum=1),
    Knob("num_tasks", int, None, "Train on so many tasks, epoch after epoch; unset means ever new ones.",
         "environment", minimum=1),
    Knob("eval_tasks", int, None, "Held-out tasks to play at evaluations.", "environment", minimum=1),
)  # fmt: skip

_REWARD = (
    Knob("rm_type", str, None, "Reward: gsm8k, exact, reasoning_gym, model (see --rm-load) or "
         "package.module:function.", "reward"),
    Knob("rm_load", str, None, "Hugging Face folder or hub id of the reward model of --rm-type model.", "reward"),
    Knob("eval_rm_type", str, None, "Reward of evaluations; unset takes --rm-type.", "reward"),
    Knob("reward_key", str, None, "Which entry of a reward that is a dictionary.", "reward"),
)  # fmt: skip

_TEACHER = (
    Knob("teacher", str, None, "Teacher: model (see --teacher-load), sglang (see --teacher-url), a scripted expert "
         "package.module:function from an observation to an action, or a class package.module:Class.", "teacher"),
    Knob("teacher_url", str, None, "URL of each SGLang server of --teacher sglang, separated by commas.", "teacher"),
    Knob("teacher_load", str, None, "Hugging Face folder or hub id of the model of --teacher model.", "teacher"),
    Knob("teacher_dtype", str, None, "Precision of the teacher's model; unset takes --dtype.", "teacher",
         choices=("fp32", "bf16")),
    Knob("teacher_retries", int, 3, "How often a teacher that failed is asked again.", "teacher", minimum=0),
    Knob("teacher_retry_wait", float, 1.0, "Seconds before it is asked again, doubled each time.", "teacher",
         minimum=0),
    Knob("teacher_timeout", float, 300.0, "Seconds that a teacher other than --teacher model may take for an answer.",
         "teacher", exclusive_minimum=0),
    Knob("teacher_failure", str, "raise", "A sample the teacher failed on: stop the run, drop the sample, or mask its "
         "tokens.", "teacher", choices=("raise", "drop", "mask")),
    Knob("teacher_max_failed", float, 0.5, "Share of a rollout the teacher may fail on before drop and mask stop the "
         "run too.", "teacher", minimum=0, maximum=1),
    Knob("parity_probe_limit", float, 0.05, "Before training, stop if trainer and engine differ on one text by more "
         "than this mean absolute log-prob (nats); 0 does not ask.", "teacher", minimum=0),
)  # fmt: skip

_OPTIMIZER = (
    Knob("optimizer", str, "adam", "Optimizer: AdamW or plain SGD.", "optimizer", choices=("adam", "sgd")),
    Knob("lr", float, 1e-6, "Peak learning rate.", "optimizer", minimum=0),
    Knob("min_lr", float, 0.0, "Learning rate at the end of the decay.", "optimizer", minimum=0),
    Knob("lr_decay_style", str, "constant", "Shape of the decay after the warm-up.", "optimizer",
         choices=("constant", "linear", "cosine")),
    Knob("lr_warmup_iters", int, 0, "Updates of linear warm-up.", "optimizer", minimum=0),
    Knob("lr_decay_iters", int, None, "Updates until min_lr; unset means the whole run.", "optimizer", minimum=1),
    Knob("weight_decay", float, 0.0, "Decoupled weight decay.", "optimizer", minimum=0),
    Knob("adam_beta1", float, 0.9, "AdamW's first decay.", "optimizer", minimum=0, check=_below_one),
    Knob("adam_beta2", float, 0.999, "AdamW's second decay.", "optimizer", minimum=0, check=_below_one),
    Knob("adam_eps", float, 1e-8, "AdamW's epsilon.", "optimizer", exclusive_minimum=0),
    Knob("clip_grad", float, 1.0, "Largest global gradient norm; 0 turns clipping off.", "optimizer", minimum=0),
)  # fmt: skip

_TRAINER = (
    Knob("num_rollout", int, None, "Rollouts to run; unset means --num-epoch passes over the prompts.", "trainer",
         minimum=1),
    Knob("num_epoch", int, None, "Passes over the prompts when --num-rollout is unset.", "trainer", minimum=1),
    Knob("global_batch_size", int, None, "Responses per optimizer step; unset means all of a rollout.", "trainer",
         minimum=1),
    Knob("num_steps_per_rollout", int, None, "Optimizer steps per rollout; an alternative to --global-batch-size.",
         "trainer", minimum=1),
    Knob("epochs_per_rollout", int, 1, "Times that the steps of a rollout are gone through.", "trainer", minimum=1),
    Knob("recompute_log_probs", bool, False, "Score each rollout with the policy before its first step; "
         "always done when a rollout takes several steps.", "trainer"),
    Knob("micro_batch_size", int, None, "Responses per forward; unset fills --max-tokens-per-gpu.", "trainer",
         minimum=1),
    Knob("max_tokens_per_gpu", int, 4096, "Tokens per packed forward.", "trainer", minimum=1),
    Knob("loss_aggregation", str, "sample_mean", "How per-token losses become one number.", "trainer",
         choices=tuple(AGGREGATIONS)),
    Knob("calculate_per_token_loss", bool, False, "The same as --loss-aggregation token_mean.", "trainer"),
    Knob("mask_truncated", bool, False, "Do not train on responses that were cut at the limit.", "trainer"),
    Knob("check_loss_invariance", bool, False, "Before training, cut the first rollout three ways into micro-batches "
         "and stop if the gradients differ.", "trainer"),
    Knob("log_probs_chunk_size", int, None, "Rows of logits turned into log-probs at a time; unset takes as many as "
         "make two million logits.", "trainer", minimum=1),
    Knob("seed", int, 1234, "The one seed; every use of randomness derives its own from it.", "trainer", minimum=0),
)  # fmt: skip

_EVAL = (
    Knob("eval_prompt_data", str, None, "Held-out prompts, in the same layouts as --prompt-data.", "eval"),
    Knob("eval_interval", int, None, "Rollouts between evaluations; unset evaluates at the start and the end.",
         "eval", minimum=1),
    Knob("eval_limit", int, None, "Use only the first so many held-out prompts.", "eval", minimum=1),
    Knob("eval_temperature", float, 0.0, "0 is greedy.", "eval", minimum=0),
    Knob("eval_max_response_len", int, None, "Unset takes --rollout-max-response-len.", "eval", minimum=1),
    Knob("skip_eval_before_train", bool, False, "Do not evaluate before the first rollout.", "eval"),
)  # fmt: skip

_OUTPUT = (
    Knob("output_dir", str, None, "Folder of the run: config, metrics, checkpoints.", "output"),
    Knob("save_interval", int, None, "Rollouts between checkpoints; unset saves at the end.", "output", minimum=1),
    Knob("async_save", bool, False, "Go on training while a checkpoint is written.", "output"),
    Knob("keep_checkpoints", int, 2, "Complete checkpoints to keep.", "output", minimum=1),
    Knob("resume", str, "never", "Go on from the newest complete checkpoint (auto) or from the one named.", "output",
         flag_value="auto", check=_not_empty),
    Knob("wandb_mode", str, "disabled", "Also log to Weights & Biases.", "output",
         choices=("disabled", "offline", "online")),
    Knob("wandb_project", str, "stacx", "Project there.", "output"),
    Knob("wandb_name", str, None, "Name of the run there; unset takes the output folder's.", "output"),
)  # fmt: skip

HOST_KNOBS: tuple[Knob, ...] = (
    *_RECIPE,
    *_MODEL,
    *_DATA,
    *_ROLLOUT,
    *MEGATRON_KNOBS,
    *RAY_KNOBS,
    *SAMPLING_KNOBS,
    *SGLANG_KNOBS,
    *_ENVIRONMENT,
    *_REWARD,
    *_TEACHER,
    *_OPTIMIZER,
    *_TRAINER,
    *_EVAL,
    *_OUTPUT,
)
