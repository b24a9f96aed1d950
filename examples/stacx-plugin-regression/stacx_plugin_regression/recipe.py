"""The recipe and its modality; free of torch, so that listing stays quick."""

from __future__ import annotations

from stacx_core import BatchKey, Knob, Modality, ModelRole, TrainingConfig, recipe

POINTS = Modality(
    name="points",
    setup="stacx_plugin_regression.run:PointSetup",
    worker="stacx_plugin_regression.line:LineWorker",
    check_rows="stacx_plugin_regression.check_rows:point_rows",
    sample="stacx_plugin_regression.run:write_predictions",
    host_knobs=(
        *("algorithm", "hf_checkpoint", "dtype", "device", "prompt_data", "rollout_batch_size", "num_rollout"),
        *(
            "optimizer",
            "lr",
            "lr_decay_style",
            "clip_grad",
            "num_steps_per_rollout",
            "micro_batch_size",
            "max_tokens_per_gpu",
        ),
        *("loss_aggregation", "seed", "eval_prompt_data", "eval_interval", "output_dir", "save_interval", "resume"),
        *("wandb_mode", "check_loss_invariance"),
    ),
    knobs=(Knob("input_noise", float, 0.0, "Standard deviation of noise in the inputs.", "points", minimum=0),),
    batch_keys=(
        BatchKey("inputs", "[R, 3] float32", "rollout", "points at which the line is asked"),
        BatchKey("targets", "[R] float32", "rollout", "what it ought to say there"),
    ),
    unit="point",
)


@recipe("least_squares")
def least_squares() -> TrainingConfig:
    """One role."""
    line = ModelRole(
        "line",
        "stacx_plugin_regression.line:SquaredError",
        sync_to_rollout=True,
        inputs_key="inputs",
        reads={"targets": ()},
    )
    return TrainingConfig(
        "least_squares",
        (line,),
        description="Squared error on points",
        requires=("hf_checkpoint", "prompt_data"),
        rollout="stacx_plugin_regression.run:PointRollIn",
        supports=("data_parallel",),
        modality=POINTS,
    )
