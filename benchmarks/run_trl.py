"""Train with TRL's GRPOTrainer and report: ``python run_trl.py MODEL SUMS STEPS OUTPUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import workload
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer


def reward(completions: list[str], completion_ids: list[list[int]], label: list[str], **_: Any) -> list[float | None]:
    """TRL's reward function: a whole step at a time; ``completion_ids`` end with the stop token if there is one."""
    for ids in completion_ids:
        workload.METER.count(len(ids))
    return [workload.digit_share(text, right) for text, right in zip(completions, label, strict=True)]


def run(model: str, sums: str, steps: int, output: str) -> None:
    """The work of Stacx's recipe in TRL's terms, all of a step in one batch, and nothing written."""
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in Path(sums).read_text(encoding="utf-8").splitlines()]
    config = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=workload.COMPLETIONS,
        gradient_accumulation_steps=1,
        num_generations=workload.GROUP,
        num_iterations=1,
        max_completion_length=workload.MAX_NEW_TOKENS,
        temperature=1.0,
        loss_type="grpo",
        beta=0.0,
        learning_rate=workload.LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=steps,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.train()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    print(workload.RESULT + json.dumps(workload.METER.report()))
