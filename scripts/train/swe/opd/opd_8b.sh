#!/usr/bin/env bash
# On-policy distillation of Qwen3-Coder-30B-A3B-Instruct into Qwen3-8B.
# usage: TASKS=FOLDER opd_8b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch opd 8b "$@"
