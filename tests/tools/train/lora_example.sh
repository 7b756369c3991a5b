#!/usr/bin/env bash
# Runs examples/lora/fine_tune.sh in an empty directory, with the plain model, and checks what it says. Exits with 77 if Python lacks
# torch or safetensors.
# usage: lora_example.sh CHECKOUT BUILD
set -euo pipefail
export PENSTOCK=$2/bin/penstock PYTHON=${PENSTOCK_PYTHON:-python3}
"$PYTHON" -c 'import torch, numpy, safetensors' 2>/dev/null || { echo "this Python lacks torch, numpy or safetensors; ./dev test installs them"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$1"/examples/lora/fine_tune.sh "$dir/run" --plain > "$dir/said" || { tail -n 30 "$dir/said"; exit 1; }

fail() { echo "$1"; tail -n 30 "$dir/said"; exit 1; }
grep -q '^trained  *[0-9]* of [0-9]* parameters' "$dir/said" || fail "the dry run does not count trained parameters"
grep -q '^stopped by SIGINT after step [0-9]* of 200' "$dir/said" || fail "the run was not stopped"
grep -q '^loss .* at step 200' "$dir/said" || fail "the run did not go on to step 200"
grep -q '^[0-9]* parameters in 28 adapters; loss' "$dir/said" || fail "Python did not read the result"
grep -q '^3 5 7 ' "$dir/said" || fail "nothing was generated"
ls "$dir"/run/tensorboard/events.* > /dev/null || fail "there are no event files"
grep ' adapters; loss ' "$dir/said"
