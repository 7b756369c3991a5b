# The lane of ./dev for the CUDA build of libtorch. Sourced by ./dev, whose functions it uses.
# shellcheck shell=bash disable=SC2154

# fetch_cuda_torch VERSION DIR: unpacks the CUDA build of torch, with the packages of NVIDIA that it needs, into DIR/site. Does not install it.
fetch_cuda_torch() {
  local version=$1 root=$2 wheel watched=$2/wheels  # with the files that pip downloads
  [ ! -f "$root/site/.complete" ] || return 0
  say "fetching the CUDA build of torch $version into $root: 2.6 GB to fetch, 5 GB on disk"
  rm -rf "$root/wheels" "$root/site"
  mkdir -p "$root/wheels" "$root/site"
  # Not from PIP_FIND_LINKS, which may name a CPU build. The compiler's headers are separate packages.
  TMPDIR=$watched PIP_FIND_LINKS='' quietly python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --only-binary :all: \
    --python-version 3.12 --dest "$root/wheels" "torch==$version" nvidia-cuda-crt nvidia-cuda-cccl || die "cannot fetch torch $version"
  for wheel in "$root"/wheels/torch-*.whl "$root"/wheels/nvidia_*.whl; do python3 -m zipfile -e "$wheel" "$root/site"; done
  rm -rf "$root/wheels"
  [ -f "$root/site/torch/lib/libtorch_cuda.so" ] || die "pip fetched a torch $version without CUDA"
  touch "$root/site/.complete"
}

# lane cuda [VERSION] [MODULE…]: everything that can be tested of a CUDA build without a GPU. Modules are those of tests/; the default is all on
# libtorch. The tests of NCCL always run.
lane() {
  [ "${1:-}" = cuda ] || die "unknown lane '${1:-}'" "use cuda" 2
  shift
  local version=$torch_version modules=(value comm tensor checkpoint graph runtime parallel pipe models train tools)
  case "${1:-}" in
    2.13 | 2.14 | 2.15) version=$1.0; shift ;;
    [0-9]*) die "unknown version '$1' of libtorch" "use 2.13, 2.14 or 2.15" 2 ;;
  esac
  [ $# -eq 0 ] || modules=("$@")
  local root=$PWD/build/cuda-$version dir=build/cuda-$version/release module programs suites names status=0 compiler=()
  need_packages "${packages[@]}"
  fetch_cuda_torch "$version" "$root"
  export PENSTOCK_TORCH=$root/site/torch PENSTOCK_PYTHON=
  [ -f "$dir/build.ninja" ] || select_compiler
  configure release "$dir" "${compiler[@]}" -DPENSTOCK_FAKE_CUDA=ON -DPENSTOCK_EXAMPLES=OFF -DPENSTOCK_BENCH=OFF
  programs=$(IFS='|'; echo "${modules[*]}")
  # Cases are registered by the names of their suites, which start with the module's: Comm…, Tool….
  suites=; for module in "${modules[@]}"; do module=${module%s}; suites+="|${module^}"; done
  mapfile -t names < <(ninja -C "$dir" -t targets all | sed -nE "/_slow_test:/d; s/^(($programs|nccl)_[a-z0-9_]*test): phony$/\1/p")
  [ ${#names[@]} -gt 0 ] || die "there are no tests of ${modules[*]}" "use names of folders in tests/" 2
  say "building library, tool and ${#names[@]} test programs in $dir"
  python3 tools/dev/build_progress.py -C "$dir" -j "$jobs" penstock_tool penstock_torch_tool "${names[@]}" || die "the build failed"
  say "running the fast tests on the CPU with the CUDA build of torch $version"
  ctest --test-dir "$PWD/$dir" --output-on-failure --timeout 900 -j "$jobs" -LE 'slow|case' -R "^($programs)_|^([A-Za-z]+/)?(${suites#|})" \
    -E '_NOT_BUILT$' --no-tests=error || status=1
  say "running the tests of NCCL on the fake CUDA runtime"
  ctest --test-dir "$PWD/$dir" --output-on-failure --timeout 900 -j 1 -R '^Nccl|/Nccl' --no-tests=error || status=1
  return "$status"
}
