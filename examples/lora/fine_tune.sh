#!/usr/bin/env bash
# Fine-tunes a model of Hugging Face with low-rank adapters (LoRA): export it once in Python, train it over four ranks, watch the run,
# stop it, continue it on one rank, and load the result in Python.
#
#   examples/lora/fine_tune.sh                      writes to a new directory runs/lora
#   PENSTOCK=… PYTHON=… fine_tune.sh DIRECTORY      another build, another Python (with torch 2.13, numpy, safetensors), another place
#
# Options after the directory are passed to export.py. docs/training.md, "LoRA", describes everything that is used here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
penstock=${PENSTOCK:-$here/../../build/release/bin/penstock} python=${PYTHON:-python3}
directory=${1:-runs/lora}
mkdir -p "$directory"

# 1. Export the model: the archive contains its graph and its weights. Penstock trains it without Python.
"$python" -W ignore "$here/export.py" "$directory" "${@:2}"
cd "$directory"

# 2. The layers to adapt, by pattern: a module selects all linear layers in it. All other parameters are frozen, so only the adapters
#    have gradients and optimizer states, and only they are in checkpoints. --dry-run shows how many parameters are trained, the
#    stages, and the memory of each rank, and starts nothing.
recipe=(model.pt2 --data data.safetensors --lora 'model.layers.*.self_attn,model.layers.*.mlp.*_proj' --lora-rank 8 --lora-alpha 16
  --lora-dropout 0.05 --lr 0.01 --batch 16 --steps 200 --microbatches 2 --checkpoint checkpoints --checkpoint-every 50 --log-json log.jsonl)
"$penstock" train "${recipe[@]}" --pp 2 --dp 2 --dry-run

# 3. Train over 2 x 2 ranks: two pipeline stages, two replicas. Watch the run with `tensorboard --logdir tensorboard`, with
#    --dashboard, or in its log, as here.
"$penstock" train "${recipe[@]}" --pp 2 --dp 2 --tensorboard tensorboard > first.txt &
run=$!
until [ -s log.jsonl ] && [ "$(wc -l < log.jsonl)" -ge 10 ]; do
  kill -0 "$run" 2> /dev/null || { echo "the run ended too early"; cat first.txt; exit 1; }
  sleep 0.1
done

# 4. Stop it, as Ctrl-C or a cluster would: all ranks finish their step and write a checkpoint. The exit code is 130.
kill -INT "$run"
wait "$run" && code=0 || code=$?
[ "$code" = 130 ] || { echo "exit code $code"; cat first.txt; exit 1; }
grep '^stopped by' first.txt
"$penstock" checkpoint inspect checkpoints | sed -n 1,3p

# 5. Continue on one rank. The checkpoint contains the adapters, model.pt2 the base: the run verifies that it is the same one.
"$penstock" train "${recipe[@]}" --ranks 1 --resume --quiet

# 6. The result: a copy of the exported model with merged weights, and the adapters alone in the format of PEFT.
"$penstock" checkpoint convert checkpoints trained.pt2 --model model.pt2
"$penstock" checkpoint convert checkpoints adapters
"$python" -W ignore "$here/check.py" .

# 7. Or use the checkpoint directly, without merging: generate, eval and inspect add the adapters to the base.
"$penstock" generate model.pt2 --checkpoint checkpoints --prompt-tokens 3,5,7 --greedy --max-tokens 6
