#!/usr/bin/env bash
# GRPO of Qwen3-8B in sandboxes.
# usage: TASKS=FOLDER grpo_8b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch grpo 8b "$@"
