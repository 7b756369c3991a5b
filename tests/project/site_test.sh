#!/usr/bin/env bash
# Looks at the pages of the site, which ./dev docs builds first. Skipped (77) without the site, npm or playwright-core.
# usage: site_test.sh SOURCE_DIR
set -euo pipefail
site=$1/build/docs/site modules=$1/build/docs/test
here=$(dirname "$(readlink -f "$0")")
. "$here/../support/playwright.sh"
[ -f "$site/index.html" ] || { echo "there is no site; ./dev docs builds it" >&2; exit 77; }
command -v chromium >/dev/null || { echo "chromium is needed" >&2; exit 1; }
playwright "$modules" "$here/site_test.mjs"
exec node "$modules/site_test.mjs" "$site" "$1/build/docs/screenshots"
