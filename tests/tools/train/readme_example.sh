#!/usr/bin/env bash
# Runs the README's example of an exported model literally: its Python code, then its commands, in an empty directory. The example
# program is built already. Exits with 77 if no Python has the libtorch of the build, or if it lacks safetensors.
# usage: readme_example.sh CHECKOUT BUILD TORCH
set -euo pipefail
readme=$1/README.md build=$2
export PENSTOCK_TORCH=$3
"$1/dev" python -c 'import torch, numpy, safetensors' 2>/dev/null || { echo "no Python has this libtorch, or it lacks numpy or safetensors"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir build
ln -s "$1/dev" dev
ln -s "$build" build/release

# The blocks of one language in the section.
blocks() { sed -n '/^## I have an exported model$/,/^## /p' "$readme" | sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" | sed '/^```/d'; }
blocks python > export.py
blocks sh | sed '/^ninja -C build\/release /d' > commands.sh
[ "$(sed -n '/^import torch, safetensors/,$p' export.py | wc -l)" = 6 ] || { echo "the export is not six lines long"; exit 1; }
echo 'safetensors.torch.save_file(model.state_dict(), "first.safetensors")' >> export.py
bash -euo pipefail commands.sh > said || { tail -n 20 said; exit 1; }

fail() { echo "$1"; tail -n 20 said; exit 1; }
grep -q '^step 200/200 ' said || fail "the model was not trained for 200 steps"
grep -q '^step 201/300 ' said || fail "it did not go on from its checkpoint"
grep -q ' from step 201$' said || fail "it does not say where it goes on"
grep -q '^epoch 20 loss 0\.[01]' said || fail "the example does not train the module"
grep -q measured runs/mine.html || fail "there is no timeline"
# Each layer is in exactly one stage.
for layer in 0 1 2 3; do
  "$build"/bin/penstock inspect model.pt2 --split layers.1=beginning,layers.2=beginning,layers.3=beginning |
    sed -n "/^stage $layer  [0-9]* operator/,/modules:/p" | grep -q "modules:.*layers\.$layer\>" || fail "layer $layer is not in stage $layer"
done
"$build"/bin/penstock inspect model.pt2 --stages 4 | grep -q '(partial)' && fail "a layer is in stages that only compute its sizes again"
# The loss keeps decreasing, and the returned weights are those of the model, updated.
loss() { sed -n "s|^step $1  *loss \([0-9.]*\).*|\1|p" said; }
awk -v a="$(loss 1/200)" -v b="$(loss 200/200)" -v c="$(loss 300/300)" 'BEGIN { exit !(b < 0.8 * a && c < b) }' ||
  fail "the loss does not fall: $(loss 1/200), $(loss 200/200), $(loss 300/300)"
./dev python - <<'TEXT'
from safetensors.torch import load_file
first, trained = load_file("first.safetensors"), load_file("trained.safetensors")
assert {n: (t.shape, t.dtype) for n, t in first.items()} == {n: (t.shape, t.dtype) for n, t in trained.items()}
assert all((first[n] != trained[n]).any() for n in first)
TEXT
echo "the README's example works: loss $(loss 1/200), $(loss 200/200), and $(loss 300/300) on other ranks"
