#!/bin/bash
# Writes 1 if all tests pass and 0 otherwise, also when they hang or cannot start.
mkdir -p /logs/verifier
cd /tests || exit 1
timeout 30 python3 -m unittest -v "$(ls test_*.py)"
[ $? -eq 0 ] && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
