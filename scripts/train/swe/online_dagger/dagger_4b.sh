#!/usr/bin/env bash
# DAgger: Qwen3-4B-Instruct-2507 learns from Qwen3-Coder-30B-A3B-Instruct, which labels the states that both visit.
# usage: TASKS=FOLDER dagger_4b.sh [stacx flag ...]; ENV_REFERENCE.md has all variables.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"
launch dagger 4b "$@"
