#!/usr/bin/env bash
# Looks at the pages of a run. Skipped (77) without chromium, npm or playwright-core.
# usage: page_browser_test.sh PENSTOCK FOLDER
set -euo pipefail
penstock=$1 modules=$2
here=$(dirname "$(readlink -f "$0")")
. "$here/../../support/playwright.sh"
playwright "$modules" "$here/page_browser_test.mjs"
exec node "$modules/page_browser_test.mjs" "$penstock" "$modules/screenshots"
