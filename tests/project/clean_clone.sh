#!/usr/bin/env bash
# Runs the commands of the README in a fresh clone without any preparation: the two at its top, then its four paths as printed.
# Slow: builds everything without a cache.
# usage: clean_clone.sh CHECKOUT
set -euo pipefail
checkout=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git clone --quiet "$checkout" "$dir/penstock"
mkdir "$dir/home"
cd "$dir/penstock"
fail() { echo "$1"; exit 1; }
fresh() { env -u CCACHE_DIR -u PENSTOCK_TORCH -u PENSTOCK_PYTHON HOME="$dir/home" "$@"; }

# blocks LANGUAGE [HEADING]: the blocks of a language in a section of the README, or before the first section.
blocks() {
  awk -v heading="${2:-}" -v fence="\`\`\`$1" '
    /^## / { inside = $0 == "## " heading } !heading && NR == 1 { inside = 1 }
    $0 == "```" { printing = 0 } printing { print } inside && $0 == fence { printing = 1 }' README.md
}
# run NAME COMMANDS: runs lines of shell as a user would paste them, and shows how long they took.
run() {
  [ -n "$2" ] || fail "the README has no commands in '$1'"
  echo "== $1"
  SECONDS=0
  fresh bash -euxo pipefail -c "$2" </dev/null || fail "the commands of '$1' failed"
  echo "'$1' took $SECONDS s"
}

commands=$(blocks sh)
[[ $commands = './dev train '*$'\n''./dev test '* ]] || fail "the README does not begin with the two commands"
while read -r command; do run "$command" "$command"; done <<<"$commands"

# A second build must have nothing to do.
fresh ./dev build 2>&1 | tee "$dir/second"
! grep -q '^dev: built in' "$dir/second" || fail 'the second build compiled something'

run 'the first path' "$(blocks sh 'I have a libtorch training loop')"

blocks python 'I have an exported model' > export.py
run 'the second path' "$(blocks sh 'I have an exported model')"
rm -r export.py model.pt2 data.safetensors trained.safetensors runs

# Its last command serves a page until it is interrupted.
commands=$(blocks sh 'I study schedules')
[[ $commands = *$'\n'build/tool/bin/penstock\ studio ]] || fail "the third path does not end with the playground"
run 'the third path' "${commands%$'\n'*}"
env HOME="$dir/home" build/tool/bin/penstock studio >"$dir/studio" & studio=$!
until address=$(grep -oE 'http://127\.0\.0\.1:[0-9]+/' "$dir/studio"); do kill -0 "$studio" || fail "penstock studio ended"; done
python3 -c 'import sys, urllib.request as u; print(len(u.build_opener(u.ProxyHandler({})).open(sys.argv[1]).read()))' \
  "$address" | grep -E '^[0-9]{6}' || fail "penstock studio serves no page"
kill -INT "$studio"
wait "$studio" || fail "penstock studio did not end cleanly"

# The build of a wheel, in the virtual environment that has this torch or in a new one.
export PIP_NO_CACHE_DIR=1
run 'the Python path' "$(blocks sh 'I write pipelines in Python')"
run 'a pipeline in Python' '.venv/bin/penstock run --ranks 2 -- .venv/bin/python python/examples/stages.py InterleavedZeroBubble'

# The commands may write only to ignored folders of the checkout.
[ -z "$(ls -A "$dir/home")" ] || fail "HOME contains $(ls -A "$dir/home")"
[ -z "$(git status --porcelain)" ] || { git status --short; fail "files were left in the checkout"; }
