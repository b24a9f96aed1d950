"""What a run of flow models is made of; free of torch."""

from __future__ import annotations

from stacx_core import BatchKey, Modality
from stacx_plugin_diffusion.knobs import FLOW_KNOBS

BATCH_KEYS = (
    BatchKey("conditions", "dict", "conversion", "what the network is told of the prompt"),
    BatchKey("states", "[R, ...] float32", "rollout", "latents that the network is asked about"),
    BatchKey("sigmas", "[R] float32", "rollout", "noise levels of the states"),
    BatchKey("targets", "[R, ...] float32", "rollout", "noise minus data at the states"),
    BatchKey("noises", "[R, ...] float32", "rollout", "the noise in the states"),
    BatchKey("steps", "[R] int64", "rollout", "number of the denoising step from each state"),
    BatchKey("next_states", "[R, ...] float32", "rollout", "latents that the step from each state came to"),
    BatchKey("next_sigmas", "[R] float32", "rollout", "their noise levels"),
    BatchKey("second_sigmas", "[R] float32", "rollout", "the second noise level of the schedule"),
    BatchKey(
        "compared_states",
        "[R, ...] float32",
        "rollout",
        "latents at which a teacher is asked: the states, or samples of a generator with noise again",
    ),
    BatchKey("compared_sigmas", "[R] float32", "rollout", "their noise levels"),
    BatchKey("compared_noises", "[R, ...] float32", "rollout", "the noise in them"),
    BatchKey("compared_targets", "[R, ...] float32", "rollout", "noise minus sample at them"),
    BatchKey("example_weights", "[R] float32", "rollout", "weights that the data give"),
    BatchKey("old_velocities", "[R, ...] float32", "forward", "velocities of the policy that sampled"),
    BatchKey("ref_velocities", "[R, ...] float32", "forward", "velocities of the frozen reference"),
    BatchKey("teacher_velocities", "[R, ...] float32", "forward", "velocities of the teacher"),
    BatchKey("critic_velocities", "[R, ...] float32", "forward", "velocities of the critic"),
)

HOST_KNOBS = (
    *("algorithm", "hf_checkpoint", "ref_load", "dtype", "device", "num_threads", "gradient_checkpointing"),
    *("prompt_data", "rollout_shuffle", "rollout_batch_size", "n_samples_per_prompt", "rm_type", "eval_rm_type"),
    *("optimizer", "lr", "min_lr", "lr_decay_style", "lr_warmup_iters", "lr_decay_iters", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
    *("num_rollout", "num_epoch", "global_batch_size", "num_steps_per_rollout", "epochs_per_rollout"),
    *("micro_batch_size", "loss_aggregation", "check_loss_invariance", "seed"),
    *("eval_prompt_data", "eval_interval", "eval_limit", "skip_eval_before_train"),
    *("output_dir", "save_interval", "async_save", "keep_checkpoints", "resume"),
    *("wandb_mode", "wandb_project", "wandb_name"),
)
"""Those of the host that say something to a flow model."""

FLOW = Modality(
    name="flow",
    setup="stacx_plugin_diffusion.setup:FlowSetup",
    worker="stacx_plugin_diffusion.worker:FlowWorker",
    check_rows="stacx_plugin_diffusion.check_rows:flow_rows",
    sample="stacx_plugin_diffusion.setup:draw_samples",
    host_knobs=HOST_KNOBS,
    knobs=FLOW_KNOBS,
    batch_keys=BATCH_KEYS,
    unit="state",
)
"""Latents on their way from noise to data, read by networks that predict their velocity."""
