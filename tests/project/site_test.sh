#!/usr/bin/env bash
# Looks at the pages of the site, which ./dev docs builds first. Skipped (77) without the site, npm or playwright-core.
# usage: site_test.sh SOURCE_DIR
set -euo pipefail
site=$1/build/docs/site modules=$1/build/docs/test
here=$(dirname "$(readlink -f "$0")")
[ -f "$site/index.html" ] || { echo "there is no site; ./dev docs builds it" >&2; exit 77; }
command -v chromium >/dev/null || { echo "chromium is needed" >&2; exit 1; }
command -v npm >/dev/null || { echo "npm is needed" >&2; exit 77; }
mkdir -p "$modules"
if [ ! -d "$modules/node_modules/playwright-core" ]; then
  PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$modules" playwright-core ||
    { echo "cannot install playwright-core" >&2; exit 77; }
fi
# Node looks for modules next to the script.
cp "$here/site_test.mjs" "$modules"
exec node "$modules/site_test.mjs" "$site" "$1/build/docs/screenshots"
