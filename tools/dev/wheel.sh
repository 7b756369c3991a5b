# The command `wheel` of ./dev. Sourced by ./dev, whose functions it uses.
# shellcheck shell=bash disable=SC2154

# Builds a wheel against the libtorch in use. The objects stay in build/wheel-objects, so the next wheel compiles only what changed.
wheel() {
  local python tools=$PWD/build/wheel-tools
  python=$(torch_python)
  [ -n "$python" ] || die "a wheel needs the Python of this libtorch" "set PENSTOCK_TORCH to the torch directory of a Python package"
  [ -d "$tools/scikit_build_core" ] && [ -d "$tools/nlohmann_json" ] || quietly "$python" -m pip install --quiet --disable-pip-version-check \
    --target "$tools" "scikit-build-core>=1.0" "nlohmann-json>=3.11" || die "cannot install scikit-build-core and nlohmann-json"
  say "building a wheel for $python; the first one compiles everything"
  rm -rf build/wheel
  # The cache of compiled files is that of the other builds.
  local launcher="cmake;-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_BASEDIR=$PWD"
  launcher+=";CCACHE_NOHASHDIR=1;CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache};ccache"
  PYTHONPATH=$tools CMAKE_BUILD_PARALLEL_LEVEL=$jobs CMAKE_CXX_COMPILER_LAUNCHER=$launcher \
    quietly "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheel \
    -C build-dir="$PWD/build/wheel-objects" -C cmake.define.PENSTOCK_TORCH="$PENSTOCK_TORCH" ./python || die "the build of the wheel failed"
  say "the wheel is in build/wheel:"
  (cd build/wheel && stat --format '%s %n' -- * | numfmt --to=iec --suffix=B --padding=8)
}
