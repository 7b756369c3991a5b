#!/usr/bin/env bash
# Trains adapters with Penstock and with PEFT from the same initial values (lora_peft.py). Exits with 77 if Python lacks a package.
# usage: lora_peft.sh CHECKOUT BUILD
set -euo pipefail
python=${PENSTOCK_PYTHON:-python3} modules='torch, numpy, safetensors, transformers, peft'
"$python" -c "import $modules" 2>/dev/null || { echo "this Python lacks one of $modules; ./dev test --slow installs them"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$python" -B -W ignore "$1/tests/tools/train/lora_peft.py" "$2/bin/penstock" "$1/tests/train" "$dir"
