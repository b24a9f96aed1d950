#!/usr/bin/env bash
# Python on the GPUs that generate: the --sglang-python of the launchers, whose other processes do not see these GPUs.
CUDA_VISIBLE_DEVICES=$ROLLOUT_DEVICES exec "$SGLANG_PYTHON" "$@"
