#!/usr/bin/env bash
# Makes a wheel of the Python package and uses it outside of the checkout, in new virtual environments: one without torch, and one that sees
# an installed torch.
# usage: wheel.sh CHECKOUT TORCH. Exits with 77 if TORCH is not the torch package of a Python.
set -euo pipefail
checkout=$1 torch=$2
python=$torch/../../../../bin/python3
[ -x "$python" ] || { echo "skipped: $torch is not in a Python environment"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { printf '%s\n' "$@" >&2; exit 1; }

# expect CODE PATTERN COMMAND…: the command exits with this code and prints a line that matches.
expect() {
  local expected=$1 pattern=$2 code=0 output; shift 2
  output=$("$@" 2>&1 </dev/null) || code=$?
  printf '+ %s\n%s\n' "$*" "$output"
  [ "$code" = "$expected" ] || fail "exit code $code"
  grep -qE -- "$pattern" <<<"$output" || fail "no line matches '$pattern'"
}

unset CMAKE_PREFIX_PATH LD_LIBRARY_PATH PYTHONPATH
PENSTOCK_TORCH=$torch "$checkout/dev" wheel
unset PENSTOCK_TORCH
cd "$dir"

echo "== content of the wheel"
"$python" -m zipfile -e "$checkout"/build/wheel/penstock-*.whl unpacked
find unpacked -type f
[ -f unpacked/penstock/py.typed ] && [ -f unpacked/penstock/_plan.pyi ] || fail "the types are missing"
! find unpacked -name 'libtorch*' -o -name 'libc10*' | grep . || fail "libtorch is in the wheel"
while read -r file; do
  paths=$(readelf -d "$file" 2>/dev/null | sed -nE 's/.*(RPATH|RUNPATH).*\[(.*)\]/\2/p')
  case "$paths" in '' | '$ORIGIN/../torch/lib' | '$ORIGIN/../../torch/lib') ;; *) fail "$file has the run path $paths" ;; esac
done < <(find unpacked -name '*.so' -o -path '*/bin/*')

echo "== without torch"
"$python" -m venv plain
plain/bin/python -m pip install --quiet --no-deps --no-index "$checkout"/build/wheel/penstock-*.whl
expect 0 '^0F0,0F1,0B0,0B1$' plain/bin/python -m penstock schedule 1F1B --ranks 2 --microbatches 2
expect 0 '^0F0,0F1,0B0,0B1$' plain/bin/penstock schedule 1F1B --ranks 2 --microbatches 2
expect 1 'needs libtorch' plain/bin/penstock doctor
expect 0 '^51.0 ' plain/bin/python -c 'if True:
  import importlib.util, penstock.plan, penstock.schedule, penstock.view
  assert importlib.util.find_spec("torch") is None
  made = penstock.schedule.generate("ZB1P", ranks=4, microbatches=16)
  print(penstock.plan.simulate(made).step_time, len(penstock.view.svg(made)))'

echo "== with the installed torch"
"$python" -m venv beside
dirname "$torch" >"$(echo beside/lib/python3*/site-packages)/torch.pth"
beside/bin/python -m pip install --quiet --no-deps --no-index "$checkout"/build/wheel/penstock-*.whl
expect 0 'libtorch' beside/bin/python -m penstock version
# Over Gloo: a wheel is compiled with declarations of its names instead of its headers.
expect 0 '^loss .* at step 2$' beside/bin/penstock train --ranks 2 --backend gloo --steps 2 --batch 4 --microbatches 2
expect 0 '^torch ' beside/bin/python -c 'if True:
  import torch, penstock.schedule
  print("torch", torch.__version__, penstock.schedule.names())'
for module in unpacked/penstock/*.so; do
  name=$(basename "$module")
  expect 0 "penstock.${name%%.*}" beside/bin/python -c "import torch, penstock.${name%%.*} as module; print(module)"
done

echo "== a pipeline of two ranks, and the same program on torch.distributed.pipelining"
cp "$checkout/python/examples/stages.py" ours.py
sed 's/penstock\.pipelining/torch.distributed.pipelining/' ours.py >theirs.py
for program in ours theirs; do
  packages=
  [ "$program" = ours ] || packages=$checkout/build/python  # the reference needs numpy
  PYTHONPATH=$packages OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo beside/bin/python -m torch.distributed.run --nproc-per-node=2 --rdzv-backend=c10d \
    --rdzv-endpoint=127.0.0.1:0 "$program.py" InterleavedZeroBubble 2>&1 </dev/null | tee "$program.log"
done
expect 0 '^[1-9][0-9]* equal losses$' beside/bin/python -c 'if True:
  import pathlib, re
  ours, theirs = ([float(x) for x in re.findall(r"step \d+ loss (\S+)", pathlib.Path(name).read_text())] for name in ("ours.log", "theirs.log"))
  assert len(ours) == len(theirs) and len(set(ours)) > 1, (ours, theirs)
  assert all(abs(a - b) <= 2e-4 * abs(b) for a, b in zip(ours, theirs)), (ours, theirs)
  print(len(ours), "equal losses")'
echo "the wheel works"
