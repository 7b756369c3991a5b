#!/usr/bin/env bash
# Follows the section "In your own CMake project" of docs/install.md literally, with an empty home directory.
# usage: readme_consumer.sh CHECKOUT BUILD
set -euo pipefail
checkout=$1 build=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/home" "$dir/checkout/build"
ln -s "$checkout/examples" "$dir/checkout/examples"
ln -s "$build" "$dir/checkout/build/release"
export HOME=$dir/home
unset PENSTOCK_TORCH

section() { sed -n '/^## In your own CMake project$/,/^Without installing/p' "$checkout/docs/install.md"; }
# Arguments: number and language of a block.
block() { section | awk -v want="$1" -v open="\`\`\`$2" '$0 == "```" && on { on = 0 } on { print } $0 == open && ++count == want { on = 1 }'; }
cd "$dir/checkout"
block 1 sh | bash -euo pipefail > "$dir/installed"
block 1 cmake > ~/mine/CMakeLists.txt
cat ~/mine/CMakeLists.txt
block 2 sh | bash -euo pipefail | tee "$dir/said"
grep -q '^step 60 loss 0\.0' "$dir/said" || { echo "the program did not train"; exit 1; }
