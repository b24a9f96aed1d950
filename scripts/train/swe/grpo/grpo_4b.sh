#!/usr/bin/env bash
# GRPO of Qwen3-4B-Instruct-2507 in sandboxes.
# usage: TASKS=FOLDER grpo_4b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch grpo 4b "$@"
