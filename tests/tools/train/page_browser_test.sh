#!/usr/bin/env bash
# Looks at the pages of a run. Skipped (77) without chromium, npm or playwright-core.
# usage: page_browser_test.sh PENSTOCK FOLDER
set -euo pipefail
penstock=$1 modules=$2
here=$(dirname "$(readlink -f "$0")")
command -v chromium >/dev/null || { echo "chromium is needed" >&2; exit 77; }
command -v npm >/dev/null || { echo "npm is needed" >&2; exit 77; }
mkdir -p "$modules"
if [ ! -d "$modules/node_modules/playwright-core" ]; then
  PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$modules" playwright-core ||
    { echo "cannot install playwright-core" >&2; exit 77; }
fi
# Node looks for modules next to the script.
cp "$here/page_browser_test.mjs" "$modules"
exec node "$modules/page_browser_test.mjs" "$penstock" "$modules/screenshots"
