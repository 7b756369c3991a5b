#!/usr/bin/env bash
# Runs examples/lora/fine_tune.sh in an empty directory and checks what it says and writes: with the plain model, or with that of
# transformers, whose adapters PEFT loads. Exits with 77 if Python lacks a package.
# usage: lora_example.sh CHECKOUT BUILD plain|transformers
set -euo pipefail
export PENSTOCK=$2/bin/penstock PYTHON=${PENSTOCK_PYTHON:-python3}
modules='torch, numpy, safetensors, tensorboard' plain=(--plain) peft=()
[ "$3" = plain ] || { modules+=', transformers, peft'; plain=(); peft=(--peft); }
"$PYTHON" -c "import $modules" 2>/dev/null || { echo "this Python lacks one of $modules; ./dev test [--slow] installs them"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$1"/examples/lora/fine_tune.sh "$dir/run" "${plain[@]}" > "$dir/said" || { tail -n 30 "$dir/said"; exit 1; }

fail() { echo "$1"; tail -n 30 "$dir/said"; exit 1; }
grep -q '^trained  *[0-9]* of [0-9]* parameters' "$dir/said" || fail "the dry run does not count trained parameters"
grep -q '^stopped by SIGINT after step [0-9]* of 200' "$dir/said" || fail "the run was not stopped"
grep -q '^loss .* at step 200' "$dir/said" || fail "the run did not go on to step 200"
grep -q '^[0-9]* parameters in 28 adapters; loss' "$dir/said" || fail "Python did not read the result"
grep -q '^3 5 7 ' "$dir/said" || fail "nothing was generated"
exported=PlainLlama
[ "$3" = plain ] || exported=Logits
grep -q "^exported $exported" "$dir/said" || fail "another model was exported"

# The first run again, from the configuration that it printed, but without a stop.
cd "$dir/run"
sed -n '/^# resolved configuration/,/^$/p' first.txt > config.toml
"$PENSTOCK" train --config config.toml --checkpoint unstopped --log-json unstopped.jsonl --tensorboard '' --failure-log '' --quiet
"$PYTHON" -B -W ignore "$1/tests/tools/train/lora_example.py" . "$1/examples/lora" "${peft[@]}"
grep ' adapters; loss ' "$dir/said"
