# Sourced by one_node.sh and several_nodes.sh: the layouts of three models on nodes of eight GPUs, and how GRPO is run.

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run.sh"
GPUS_PER_NODE=8

# layout SIZE NODES: sets `layout` to the flags that cut the model. `stacx plan` says what they need and what else fits.
layout() {
    local nodes=$2
    case $1 in
    4b)
        layout=(--tensor-model-parallel-size 2 --max-tokens-per-gpu 8192) ;;
    32b)
        layout=(--tensor-model-parallel-size 8 --max-tokens-per-gpu 8192)
        # On one node nothing is left to split the optimizer states over.
        if [ "$nodes" -eq 1 ]; then
            layout=(--tensor-model-parallel-size 8 --max-tokens-per-gpu 4096 --gradient-checkpointing)
        fi ;;
    235b)
        layout=(--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --expert-model-parallel-size 32
            --max-tokens-per-gpu 8192 --gradient-checkpointing) ;;
    *)
        echo "error: no layout for size '$1'; there are 4b, 32b and 235b" >&2
        exit 2 ;;
    esac
    layout+=(--sequence-parallel --use-distributed-optimizer --num-nodes "$nodes" --num-gpus-per-node "$GPUS_PER_NODE")
}

# grpo SIZE NODES MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER [any further stacx flag]: plans, then trains; prints the
# commands instead with PRINT=1. SGLANG_URL has the URLs of running SGLang servers, on GPUs of their own.
grpo() {
    local size=$1 nodes=$2 model=$3 data=$4 output=$5
    shift 5
    layout "$size" "$nodes"
    run stacx plan --model "$model" --gpu-memory-gb "${GPU_MEMORY_GB:-80}" "${layout[@]}"
    run stacx train --algorithm grpo --backend megatron "${layout[@]}" \
        --hf-checkpoint "$model" --dtype bf16 \
        --prompt-data "$data" --input-key question --label-key answer --rm-type gsm8k \
        --rollout-batch-size 128 --n-samples-per-prompt 8 --rollout-max-response-len 3072 \
        --rollout-engine sglang --sglang-url "${SGLANG_URL:?give the URLs of SGLang servers, separated by commas}" \
        --update-weight-mode distributed --lr 1e-6 --num-rollout 100 \
        --output-dir "$output" "$@"
}
