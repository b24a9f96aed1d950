#!/usr/bin/env bash
# AggreVaTe: Qwen3-8B plays the first turns, Qwen3-Coder-30B-A3B-Instruct the rest.
# usage: TASKS=FOLDER aggrevate_8b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch aggrevate 8b "$@"
