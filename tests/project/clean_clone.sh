#!/usr/bin/env bash
# Runs the two commands of the README in a fresh clone without any preparation. Slow: builds everything without a cache.
# usage: clean_clone.sh CHECKOUT
set -euo pipefail
checkout=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git clone --quiet "$checkout" "$dir/penstock"
mkdir "$dir/home"
cd "$dir/penstock"

# The commands are in the first shell block of the README.
mapfile -t commands < <(sed -n '/^```sh$/,/^```$/p;' README.md | sed -n '2,/^```$/p' | sed '/^```$/d; s/ *#.*//')
printf 'command: %s\n' "${commands[@]}"
[ "${commands[*]}" = "./dev train ./dev test" ] || { echo "the first block of the README is not the two commands"; exit 1; }

fresh() { env -u CCACHE_DIR -u PENSTOCK_TORCH -u PENSTOCK_PYTHON HOME="$dir/home" "$@"; }
for command in "${commands[@]}"; do
  SECONDS=0
  fresh $command || { echo "'$command' failed"; exit 1; }
  echo "'$command' took $SECONDS s"
done

# The README's path for programs with a training loop.
mapfile -t commands < <(grep -A1 '^ninja -C build/release example_ddp$' README.md)
[ ${#commands[@]} = 2 ] || { echo "the README does not build and run example_ddp"; exit 1; }
for command in "${commands[@]}"; do fresh $command || { echo "'$command' failed"; exit 1; }; done

# The commands may write only to ignored folders of the checkout.
[ -z "$(ls -A "$dir/home")" ] || { echo "HOME contains $(ls -A "$dir/home")"; exit 1; }
[ -z "$(git status --porcelain)" ] || { git status --short; echo "files were left in the checkout"; exit 1; }

# A second build must have nothing to do.
fresh ./dev build 2>&1 | tee "$dir/second"
! grep -q '^dev: built in' "$dir/second" || { echo 'the second build compiled something'; exit 1; }
