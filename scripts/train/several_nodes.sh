#!/usr/bin/env bash
# GRPO with Megatron on several nodes of eight GPUs, joined by Ray. PRINT=1 prints the commands instead of running them.
#   on the first node:   several_nodes.sh head
#   on every other node: several_nodes.sh worker ADDRESS_OF_THE_FIRST
#   on the first again, once `ray status` shows all nodes:
#       SGLANG_URL=http://host:port,... several_nodes.sh train SIZE NODES MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER
#   on every node, afterwards: ray stop
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/grpo.sh"
PORT=${RAY_PORT:-6379}

usage() {
    echo "usage: several_nodes.sh head | worker ADDRESS | train SIZE NODES MODEL_FOLDER TRAIN_JSONL OUTPUT_FOLDER" >&2
    exit 2
}

case ${1:-} in
head)
    run ray start --head --port "$PORT" --num-gpus "$GPUS_PER_NODE" ;;
worker)
    [ $# -eq 2 ] || usage
    run ray start --address "$2:$PORT" --num-gpus "$GPUS_PER_NODE" --block ;;
train)
    [ $# -ge 6 ] || usage
    shift
    grpo "$@" --ray-address "127.0.0.1:$PORT" --max-restarts 3 ;;
*)
    usage ;;
esac
