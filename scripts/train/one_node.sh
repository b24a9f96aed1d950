#!/usr/bin/env bash
# GRPO with Megatron on one node of eight GPUs: 4b or 32b; 235b needs several nodes, as `stacx plan` will say.
# usage: SGLANG_URL=http://host:port,... one_node.sh SIZE MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER [stacx flag ...]
# PRINT=1 prints the commands instead of running them.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/grpo.sh"
if [ $# -lt 4 ]; then
    echo "usage: one_node.sh 4b|32b MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER [stacx flag ...]" >&2
    exit 2
fi
size=$1
shift
grpo "$size" 1 "$@"
