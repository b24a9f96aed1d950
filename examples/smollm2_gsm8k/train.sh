#!/bin/sh
# GRPO of SmolLM2-135M-Instruct on GSM8K, sized for a CPU.
# usage: train.sh MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER [any further stacx flag]
set -eu
model=$1 data=$2 output=$3
shift 3
exec stacx train --algorithm grpo \
    --hf-checkpoint "$model" \
    --prompt-data "$data" --input-key question --label-key answer --rm-type gsm8k \
    --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 64 \
    --num-rollout 3 --lr 1e-6 \
    --output-dir "$output" "$@"
