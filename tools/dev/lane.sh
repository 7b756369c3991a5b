# The lane of ./dev for the CUDA build of libtorch. Sourced by ./dev, whose functions it uses.
# shellcheck shell=bash disable=SC2154

# fetch_cuda_torch VERSION DIR: unpacks the CUDA build of torch, with the packages of NVIDIA that it needs, into DIR/site. Does not install it.
fetch_cuda_torch() {
  local version=$1 root=$2 wheel
  [ ! -f "$root/site/.complete" ] || return 0
  say "fetching the CUDA build of torch $version into $root: 2.6 GB to fetch, 5 GB on disk"
  rm -rf "$root/wheels" "$root/site"
  mkdir -p "$root/wheels" "$root/site"
  # Not from PIP_FIND_LINKS, which may name a CPU build. The compiler's headers are separate packages.
  PIP_FIND_LINKS='' quietly python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --only-binary :all: \
    --python-version 3.12 --dest "$root/wheels" "torch==$version" nvidia-cuda-crt nvidia-cuda-cccl || die "cannot fetch torch $version"
  for wheel in "$root"/wheels/torch-*.whl "$root"/wheels/nvidia_*.whl; do python3 -m zipfile -e "$wheel" "$root/site"; done
  rm -rf "$root/wheels"
  [ -f "$root/site/torch/lib/libtorch_cuda.so" ] || die "pip fetched a torch $version without CUDA"
  touch "$root/site/.complete"
}

# lane cuda: everything that can be tested of the CUDA build without a GPU.
lane() {
  [ "${1:-}" = cuda ] || die "unknown lane '${1:-}'" "use cuda" 2
  local version=$torch_version
  local root=$PWD/build/cuda-$version dir
  need_packages "${packages[@]}"
  fetch_cuda_torch "$version" "$root"
  export PENSTOCK_TORCH=$root/site/torch PENSTOCK_PYTHON=
  dir=build/cuda-$version/release
  configure release "$dir" -DPENSTOCK_FAKE_CUDA=ON -DPENSTOCK_EXAMPLES=OFF -DPENSTOCK_BENCH=OFF
  say "building $dir"
  python3 tools/dev/build_progress.py -C "$dir" -j "$jobs" || die "the build failed"
  say "running the fast tests on the CPU with the CUDA build"
  ctest --test-dir "$PWD/$dir" --output-on-failure --timeout 900 -j "$jobs" -LE 'slow|case' --no-tests=error
  say "running the tests of NCCL on the fake CUDA runtime"
  ctest --test-dir "$PWD/$dir" --output-on-failure --timeout 900 -j 1 -R '^Nccl|/Nccl' --no-tests=error
}
