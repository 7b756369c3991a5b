#!/usr/bin/env bash
# Tests Penstock with PyPI's CUDA build of torch and without a CUDA toolkit: configures, compiles the smallest target that uses
# libtorch's headers, and links and runs a program with the library of this build, which may be a CPU build (the ABI is equal).
# usage: cuda_wheel.sh CHECKOUT BUILD. PENSTOCK_CUDA_TORCH=DIR uses an existing CUDA build. Exits with 77 if none is available.
set -euo pipefail
checkout=$1 build=$2
dir=$(mktemp -d "$build/cuda_wheel.XXXXXX")
trap 'rm -rf "$dir"' EXIT
torch=${PENSTOCK_CUDA_TORCH:-}
SECONDS=0
if [ -z "$torch" ]; then
  # Request a Python version other than the current one, so that pip does not choose a local CPU wheel.
  other=$(python3 -c 'import sys; print("3.12" if sys.version_info[1] != 12 else "3.13")')
  TMPDIR=$dir PIP_FIND_LINKS='' python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --target "$dir/site" \
    --python-version "$other" --only-binary=:all: torch==2.13.0 || { echo "torch could not be downloaded"; exit 77; }
  torch=$dir/site/torch
  echo "fetched in $SECONDS s: $(du -sh "$dir/site" | cut -f1) on disk"
fi
grep -q "^cuda.* = '" "$torch/version.py" || { echo "$torch is not a CUDA build"; exit 77; }

# Hides nvcc and CUDA toolkits: the environment is empty, and CMake ignores the usual toolkit directories.
bare() { env -i PATH=/usr/bin:/bin HOME="$dir" "$@"; }
hidden=$(printf '%s;' /usr/local/cuda*)
! bare sh -c 'command -v nvcc' || { echo "a CUDA toolkit is in /usr/bin"; exit 77; }
SECONDS=0
bare cmake -S "$checkout" -B "$dir/build" -G Ninja -DPENSTOCK_TORCH="$torch" -DCMAKE_IGNORE_PREFIX_PATH="$hidden" -DPENSTOCK_CCACHE=
echo "configured in $SECONDS s"
SECONDS=0
bare ninja -C "$dir/build" penstock_pch
echo "penstock_pch was compiled in $SECONDS s"

SECONDS=0
cmake --install "$build" --prefix "$dir/installed" >/dev/null
bare cmake -S "$checkout/tests/project/consumers/find_package_torch" -B "$dir/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$dir/installed" \
  -DPENSTOCK_TORCH="$torch" -DCMAKE_IGNORE_PREFIX_PATH="$hidden"
bare ninja -C "$dir/consumer"
bare ldd "$dir/consumer/consumer" | grep libtorch_cuda.so
bare "$dir/consumer/consumer"
echo "a program was linked and run in $SECONDS s"
SECONDS=0
bare LD_LIBRARY_PATH="$torch/lib" "$build/bin/penstock" train --ranks 2 --steps 2 --output "$dir/run" | tail -n 4
echo "two ranks trained on it, without a GPU, in $SECONDS s"
