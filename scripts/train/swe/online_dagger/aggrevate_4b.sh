#!/usr/bin/env bash
# AggreVaTe: Qwen3-4B-Instruct-2507 plays the first turns, Qwen3-Coder-30B-A3B-Instruct the rest.
# usage: TASKS=FOLDER aggrevate_4b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch aggrevate 4b "$@"
