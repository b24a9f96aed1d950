"""What several processes cost and save: steps of the torch backend and of Megatron-core, and moving weights out.

    python benchmarks/many_processes.py

Steps: the same model and batch by the torch backend in one process, and by Megatron-core on one and on two; in one of
these layouts also through Ray, as `stacx train` does it, which shows what the driver costs. Weights:
the time to gather them from two tensor-parallel processes, one weight after the other, as they are sent to rollout
engines, and what that adds to the memory of each process, for models of three sizes. What gloo moves between
processes goes through the processors that compute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from process_jobs import WARM_UP, StepsJob, WeightsJob
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.sample import Sample
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.testing.parallel import UpdateJob
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.variants import default_variant
from stacx_core.trainer.ray.learner import ray_learner

DRIVEN = "megatron TP=2"
"""The layout that is also driven through Ray."""

SECONDS = 600.0
MEBI = 2**20
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "torch": (1, {}),
    "megatron": (1, {"backend": "megatron"}),
    "megatron TP=2": (2, {"backend": "megatron", "tensor_model_parallel_size": 2}),
    "megatron PP=2": (2, {"backend": "megatron", "pipeline_model_parallel_size": 2}),
    "megatron DP=2": (2, {"backend": "megatron"}),
    "megatron CP=2": (2, {"backend": "megatron", "context_parallel_size": 2}),
}
"""Name -> processes, and knobs."""


def make_model(folder: Path, width: int, layers: int, vocabulary: int = 4096) -> int:
    """Save a random Llama; returns its size in bytes (fp32)."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(width // 128, 2),
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def batch_of(samples: int, length: int, vocabulary: int = 4096) -> Batch:
    """Samples of one length, of which half is trained."""
    rows = [
        Sample(
            index=index,
            group_index=index,
            tokens=torch.randint(vocabulary, (length,)).tolist(),
            response_length=length // 2,
        )
        for index in range(samples)
    ]
    return samples_to_batch(rows, mask_truncated=False, reward_key=None)[0]


def job_for(checkpoint: Path, batch: Batch, tokens: int) -> UpdateJob:
    """An update of sft."""
    config = TRAINING_CONFIGS["sft"]
    count = len(batch["tokens"])
    args = default_variant(config).args.replace(
        hf_checkpoint=str(checkpoint),
        ref_load=None,
        output_dir=str(checkpoint / "run"),
        num_steps_per_rollout=1,
        rollout_batch_size=count,
        global_batch_size=count,
        max_tokens_per_gpu=tokens,
    )
    return UpdateJob(config, "benchmark", args, batch)


def measure_steps(folder: Path, steps: int, samples: int, length: int) -> None:
    """Print a line per layout, and one for what Ray and the driver add to one of them."""
    size = make_model(folder / "steps", 256, 4)
    job = job_for(folder / "steps", batch_of(samples, length), tokens=samples * length // 4)
    print(f"A step on {samples} samples of {length} tokens, Llama of {size / MEBI:.0f} MiB, one thread a process:")
    base, alone = 0.0, dict[str, float]()
    for name, (count, knobs) in STEPS.items():
        timed = StepsJob(job.config, job.variant, job.args.replace(**knobs), job.batch, steps)
        with Ranks(SECONDS, count) as ranks:
            seconds = statistics.median(max(of_step) for of_step in zip(*ranks.run(timed), strict=True))
        base = base or seconds
        alone[name] = seconds
        rate = samples * length / seconds
        print(
            f"  {name:14} {count} process(es)  {seconds:6.3f} s  {rate:7.0f} tokens/s  {base / seconds:4.2f}",
            flush=True,
        )

    measure_driver(job, steps, alone[DRIVEN])


def measure_driver(job: UpdateJob, steps: int, alone: float) -> None:
    """Print what a step takes when the driver asks for it through Ray, and how much of it the driver computes."""
    count, knobs = STEPS[DRIVEN]
    args = job.args.replace(role_workers="ray", num_gpus_per_node=count, device="cpu", **knobs)
    learner = ray_learner(job.config, args, None, num_rollout=WARM_UP + steps)
    seconds, busy = [], []
    try:
        for step in range(WARM_UP + steps):
            began, computed = time.perf_counter(), time.process_time()
            learner.update(job.batch, step)
            seconds.append(time.perf_counter() - began)
            busy.append(time.process_time() - computed)
    finally:
        learner.close()
    wall, own = (statistics.median(values[WARM_UP:]) for values in (seconds, busy))
    print(
        f"  {DRIVEN} through Ray: {wall:.3f} s, {wall - alone:+.3f} s to the same processes without it; the driver "
        f"computes for {own * 1000:.1f} ms of a step",
        flush=True,
    )


def measure_weights(folder: Path, widths: Sequence[int]) -> None:
    """Print a line per size and process."""
    print("Weights of two tensor-parallel processes, gathered on the first:")
    for width in widths:
        size = make_model(folder / f"width{width}", width, 8)
        job = job_for(folder / f"width{width}", batch_of(2, 8), tokens=64)
        args = job.args.replace(backend="megatron", tensor_model_parallel_size=2)
        with Ranks(SECONDS, 2) as ranks:
            moved = ranks.run(WeightsJob(job.config, job.variant, args, job.batch))
        for rank, one in enumerate(moved):
            held = f"holds {one.held / MEBI:6.0f} MiB ({one.held / size:.2f} of the model)"
            more = f"at most {one.peak / MEBI:5.0f} MiB ({one.peak / size:.2f}) more"
            print(f"  model {size / MEBI:6.0f} MiB  process {rank}: {one.seconds:6.2f} s, {held}, {more}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="measured of each layout")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024], help="of the models that are moved")
    options = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        measure_steps(Path(temporary), options.steps, options.samples, options.length)
        measure_weights(Path(temporary), options.widths)


if __name__ == "__main__":
    main()
