#!/usr/bin/env bash
# changed_sources.sh [COMMIT]: prints the sources to lint for the changes since a commit (default: where this branch left
# main): changed sources, and for each changed header one source that includes it.
set -euo pipefail
base=${1:-}
fail() { printf 'dev: error: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit 2; }
if [ -z "$base" ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null) ||
    fail "cannot tell which commit to compare with" "name it: ./dev lint --changed COMMIT"
fi
git rev-parse --quiet --verify "$base^{commit}" >/dev/null || fail "unknown commit '$base'"
folders=(bench examples include python src tests tools)
{ git diff --name-only --diff-filter=d "$base" -- "${folders[@]}"; git ls-files --others --exclude-standard "${folders[@]}"; } |
  while read -r file; do
    case "$file" in
      src/pch* | tests/project/consumers/* | tests/fuzz/libfuzzer.cpp) ;;  # not compiled for lint
      *.cpp) echo "$file" ;;
      tests/*.h)
        { grep -rlF --include='*.cpp' "\"${file#tests/}\"" tests || true
          grep -lF "\"${file##*/}\"" "${file%/*}"/*.cpp || true; } 2>/dev/null | LC_ALL=C sort | head -n 1 ;;
      *.h)
        including=${file#include/} including=${including#src/} including=${including#tools/penstock/} including=${including#tools/playground/}
        users=(src tools)
        case "$file" in
          bench/*) users=(bench) including=${file##*/} ;;
          python/*) users=(python) including=${file#python/ext/} ;;
        esac
        { grep -rlF --include='*.cpp' -e "<$including>" -e "\"$including\"" "${users[@]}" || true; } | LC_ALL=C sort | head -n 1 ;;
    esac
  done | sort -u
