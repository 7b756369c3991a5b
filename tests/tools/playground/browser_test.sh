#!/usr/bin/env bash
# Builds the playground with Emscripten and runs its test in Chromium. Skipped (77) without npm or if playwright-core cannot
# be installed.
# usage: browser_test.sh SOURCE_DIR PENSTOCK
set -euo pipefail
source_dir=$1 penstock=$2
here=$(dirname "$(readlink -f "$0")")
. "$here/../../support/playwright.sh"
"$source_dir/dev" playground
command -v chromium >/dev/null || { echo "chromium is needed" >&2; exit 1; }
modules=$source_dir/build/playground/test
playwright "$modules" "$here"/*.mjs
exec node "$modules/browser_test.mjs" "$source_dir/build/playground/playground.html" "$penstock"
