# The command `fuzz` of ./dev. Sourced by ./dev, whose functions it uses.
# shellcheck shell=bash

# fuzz [target] [seconds]: keeps inputs that reach new code in build/fuzz/corpus and failing inputs in build/fuzz/found.
fuzz() {
  local only=${1:-} seconds=${2:-60} program target seeds kept failed=0
  case "$only" in *[!0-9]* | '') ;; *) seconds=$only only= ;; esac
  build fuzz fuzz_plan fuzz_torch
  local dir=$PWD/build/fuzz
  mkdir -p "$dir/found"
  export LSAN_OPTIONS="suppressions=$PWD/tests/sanitize/leak.supp ${LSAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1 ${UBSAN_OPTIONS:-}"
  export OMP_NUM_THREADS=1
  for program in fuzz_plan fuzz_torch; do
    # Without a target, the program prints the targets that it has.
    for target in $("$dir/tests/fuzz/$program" 2>&1 </dev/null | sed -n 's/^PENSTOCK_FUZZ_TARGET must be one of: *//p'); do
      [ -z "$only" ] || [ "$only" = "$target" ] || continue
      ran=1 seeds=$dir/seeds/$target kept=$dir/corpus/$target
      rm -rf "$seeds"
      mkdir -p "$kept"
      PENSTOCK_FUZZ_TARGET=$target PENSTOCK_FUZZ_SEEDS=$seeds "$dir/tests/fuzz/$program" >/dev/null
      local dict=tests/fuzz/$target.dict
      [ -f "$dict" ] || dict=tests/fuzz/json.dict
      say "fuzzing $target for $seconds s"
      PENSTOCK_FUZZ_TARGET=$target "$dir/tests/fuzz/$program" -max_total_time="$seconds" -max_len=60000 -rss_limit_mb=4096 \
        -timeout=20 -dict="$dict" -artifact_prefix="$dir/found/$target-" -print_final_stats=1 "$kept" "$seeds" 2>&1 |
        grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|RELOAD)' || failed=1
    done
  done
  [ -n "${ran:-}" ] || die "unknown fuzz target '$only'" "" 2
  [ "$failed" = 0 ] || die "a fuzz target failed" "the input is in build/fuzz/found; run the fuzz program with that file as its argument"
}
