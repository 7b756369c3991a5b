#!/usr/bin/env bash
# Builds the playground with Emscripten and runs its test in Chromium. Skipped (77) without npm or if playwright-core cannot
# be installed.
# usage: browser_test.sh SOURCE_DIR PENSTOCK
set -euo pipefail
source_dir=$1 penstock=$2
here=$(dirname "$(readlink -f "$0")")
"$source_dir/dev" playground
command -v chromium >/dev/null || { echo "chromium is needed" >&2; exit 1; }
command -v npm >/dev/null || { echo "npm is needed" >&2; exit 77; }
modules=$source_dir/build/playground/test
mkdir -p "$modules"
if [ ! -d "$modules/node_modules/playwright-core" ]; then
  PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$modules" playwright-core ||
    { echo "cannot install playwright-core" >&2; exit 77; }
fi
# Node looks for modules next to the script.
cp "$here"/*.mjs "$modules"
exec node "$modules/browser_test.mjs" "$source_dir/build/playground/playground.html" "$penstock"
