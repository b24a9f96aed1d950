#!/usr/bin/env bash
# Iterated fine-tuning of Qwen3-4B-Instruct-2507 on episodes of a teacher.
# usage: TASKS=FOLDER sft_4b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch sft 4b "$@"
