# Prepares tests that open pages in Chromium. Sourced by their scripts.
# shellcheck shell=bash

# playwright FOLDER SCRIPT…: copies the scripts to the folder, because Node looks for modules next to them, and installs playwright-core
# there. Exits with 77, which skips the test, without Chromium or npm, or if the package cannot be installed.
playwright() {
  local folder=$1 program; shift
  for program in chromium npm; do
    command -v "$program" >/dev/null || { echo "$program is needed" >&2; exit 77; }
  done
  mkdir -p "$folder"
  if [ ! -d "$folder/node_modules/playwright-core" ]; then
    PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$folder" playwright-core ||
      { echo "cannot install playwright-core" >&2; exit 77; }
  fi
  cp "$@" "$folder"
}
