# Sets up the machine for `./dev`, which reads this file: Debian packages, libtorch and Python packages.

tool_packages=(g++ cmake ninja-build python3 nlohmann-json3-dev libcli11-dev libtomlplusplus-dev)  # commands without libtorch
plan_packages=("${tool_packages[@]}" ccache python3-dev python3-yaml libgtest-dev libgmock-dev)    # tests without libtorch
packages=("${tool_packages[@]}" make ccache pkg-config python3-dev python3-venv libgtest-dev libgmock-dev libgloo-dev iproute2)
test_packages=(chromium clang-format python3-yaml)
npm_package=()  # Debian's conflicts with a newer Node.js, which brings its own npm
command -v npm >/dev/null || npm_package=(npm)
package_packages=(dpkg-dev file emscripten)
slow_packages=("${npm_package[@]}" "${package_packages[@]}" debootstrap openmpi-bin mpich slurm-wlm munge libpmix-dev strace zsh fish man-db groff)
lint_packages=(clang clang-tidy)
docs_packages=(doxygen chromium emscripten python3-yaml "${npm_package[@]}")
playground_packages=(cmake ninja-build ccache python3 nlohmann-json3-dev emscripten)
newer_clangs=(16 19)  # for the slow tier
fast_compiler=clang-19  # the compiler of `release` and `debug`, if the system has it (adr/0015)
python_modules=(numpy safetensors pytest mypy tensorboard tokenizers)  # that tests need in addition to torch
torch_modules=()  # of the slow tier: they depend on torch, so they are installed without their dependencies

say() { printf 'dev: %s\n' "$*" >&2; }
die() { printf 'dev: error: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit "${3:-1}"; }

# report LOG: prints every ten seconds that a command still runs: the last line of its output, or the size of $watched, the directory
# that it fills. The output of `sleep`, which lives a little longer, must not keep the caller's pipe open.
report() {
  local seconds=0 news
  while sleep 10 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 10))
    news=$(tail -n 1 "$1" | cut -c 1-100)
    [ -z "${watched:-}" ] || news="$(du -sm "$watched" 2>/dev/null | cut -f 1) MB in $watched"
    say "$seconds s: $news"
  done
}

# logged LOG COMMAND…: runs a command with its output in LOG.
logged() {
  local log=$1 reporter status=0; shift
  report "$log" & reporter=$!
  "$@" >"$log" 2>&1 || status=$?
  { kill "$reporter" && wait "$reporter"; } 2>/dev/null || true
  return "$status"
}

# quietly COMMAND…: runs a command and shows its output only if it fails.
quietly() {
  local log; log=$(mktemp)
  if logged "$log" "$@"; then rm -f "$log"; return 0; fi
  tail -n 40 "$log" >&2
  rm -f "$log"
  return 1
}

# want_compiler PRESET: if a new build directory of this preset would use the fast compiler, and apt has it, the next call of need_packages
# that finds other packages missing includes it. Alone it is no reason to stop: GCC builds the same, in twice the time.
wanted=()
want_compiler() {
  case "$1" in release | debug) ;; *) return 0 ;; esac
  [ -z "${CXX:-}" ] && [ ! -f "build/$1/build.ninja" ] && apt-cache show "$fast_compiler" >/dev/null 2>&1 || return 0
  wanted=("$fast_compiler")
}

# Prints those of the given Debian packages that are not installed, one per line.
missing_packages() {
  local installed package
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qxF "ii $package" <<<"$installed" || echo "$package"
  done | awk '!seen[$0]++'
}

# Installs missing Debian packages, or prints the command that does.
need_packages() {
  command -v dpkg-query >/dev/null || { say "not a Debian system; install the equivalents of these Debian packages: $*"; return 0; }
  [ -n "$(missing_packages "$@")" ] || return 0
  local missing
  mapfile -t missing < <(missing_packages "$@" "${wanted[@]}")
  local line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] ||
    die "system packages are missing and only root can install them; run this command, then ./dev again:" "sudo sh -c '$line'"
  say "installing ${#missing[@]} Debian packages and their dependencies with apt-get: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive quietly sh -c "$line" || die "the installation failed" "$line"
}

# Prints the directory of torch 2.13, 2.14 or 2.15 if the given Python can import it. Does not import it.
torch_of() {
  "$1" - <<'PY' 2>/dev/null
import importlib.util, os, re
spec = importlib.util.find_spec("torch")
root = os.path.dirname(spec.origin)
version = re.search(r"__version__ = '([^']+)'", open(os.path.join(root, "version.py")).read()).group(1)
assert re.match(r"2\.1[345]\.", version) and os.path.isdir(os.path.join(root, "share/cmake/Torch"))
print(root)
PY
}

# Installs torch into .venv: the CPU build if pip finds one. Without the +cpu suffix, most indexes serve the CUDA build.
install_torch() {
  need_packages python3 python3-venv
  local log=.venv/tmp/log watched=.venv  # with the files that pip downloads
  local pip=(env TMPDIR="$PWD/.venv/tmp" .venv/bin/pip install --no-cache-dir --disable-pip-version-check)
  quietly python3 -m venv .venv || die "cannot create a virtual environment in .venv"
  mkdir -p .venv/tmp
  say "installing torch $torch_version+cpu into .venv if pip finds it (0.2 GB)"
  if ! logged "$log" "${pip[@]}" "torch==$torch_version+cpu"; then
    grep -q 'No matching distribution' "$log" || { tail -n 40 "$log" >&2; return 1; }
    say "pip finds no CPU build; installing torch $torch_version, which for Linux is the CUDA build: 2.7 GB to fetch, 5 GB on disk"
    say "(it works without a GPU; to use the CPU build, stop now and set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL to its location)"
    quietly "${pip[@]}" "torch==$torch_version" || return 1
  fi
  rm -rf .venv/tmp
}

# Prints the version of the libtorch in a directory, and whether it is a CPU or a CUDA build.
describe_torch() {
  local version cuda
  version=$(sed -nE "s/^__version__ = '([^']+)'.*/\1/p" "$1/version.py" 2>/dev/null || cat "$1/build-version" 2>/dev/null || true)
  cuda=$(sed -nE "s/^cuda: .* = '([0-9.]+)'.*/\1/p" "$1/version.py" 2>/dev/null || true)
  if [ -f "$1/lib/libtorch_cuda.so" ]; then
    echo "libtorch ${version:-of unknown version}, a CUDA${cuda:+ $cuda} build"
  else
    echo "libtorch ${version:-of unknown version}, a CPU build"
  fi
}

# Sets PENSTOCK_TORCH, and says which libtorch it is, and why.
find_torch() {
  local reason="PENSTOCK_TORCH names it"
  if [ -n "${PENSTOCK_TORCH:-}" ]; then
    [ -d "$PENSTOCK_TORCH/share/cmake/Torch" ] ||
      die "PENSTOCK_TORCH=$PENSTOCK_TORCH has no share/cmake/Torch" "set it to the directory of libtorch or to the torch directory of the wheel"
  elif PENSTOCK_TORCH=$(torch_of python3); then
    reason="python3 imports it"
  else
    reason="python3 imports none of a supported version, and .venv has it"
    PENSTOCK_TORCH=$(torch_of .venv/bin/python) || {
      install_torch ||
        die "cannot install torch $torch_version" "install it elsewhere and set PENSTOCK_TORCH to its directory"
      PENSTOCK_TORCH=$(torch_of .venv/bin/python) || die "the installed torch is not $torch_version"
    }
  fi
  say "using $(describe_torch "$PENSTOCK_TORCH") in $PENSTOCK_TORCH, because $reason"
  export PENSTOCK_TORCH
}

# Prints the Python that has this torch, for benchmarks and tests that compare with the reference.
torch_python() {
  local bin
  for bin in "$(realpath "$PENSTOCK_TORCH")/../../../../bin/python3" python3; do
    # Do not resolve the symlink: Python detects a virtual environment by the path it is started with.
    bin=$(command -v "$bin") && [ "$(torch_of "$bin")" -ef "$PENSTOCK_TORCH" ] && { realpath -s "$bin"; return; }
  done
  say "no Python found with this libtorch; comparisons with the reference cannot run"
}

# Installs Python packages inside the checkout.
python_packages() {
  export PYTHONPATH=$PWD/build/python${PYTHONPATH:+:$PYTHONPATH}
  local imports="$* ${torch_modules[*]}"
  imports=${imports% }
  [ -n "$PENSTOCK_PYTHON" ] && ! "$PENSTOCK_PYTHON" -c "import ${imports// /, }" 2>/dev/null || return 0
  say "installing Python packages into build/python: $imports"
  local install=("$PENSTOCK_PYTHON" -m pip install --quiet --no-cache-dir --disable-pip-version-check --target build/python)
  { quietly "${install[@]}" "$@" &&
    { [ ${#torch_modules[@]} = 0 ] || quietly "${install[@]}" --no-deps "${torch_modules[@]}"; }; } ||
    say "cannot install these Python packages; what needs them is skipped or fails: $imports"
}

# run_python ARGS…: runs the Python that has this libtorch, in the directory in which ./dev was called.
run_python() {
  PENSTOCK_PYTHON=$(torch_python 2>/dev/null)
  [ -n "$PENSTOCK_PYTHON" ] ||
    die "no Python here has the libtorch in $PENSTOCK_TORCH" "use any Python with torch, numpy and safetensors, or unset PENSTOCK_TORCH"
  python_packages numpy safetensors
  cd "$caller"
  exec "$PENSTOCK_PYTHON" "$@"
}

setup() {
  need_packages "${packages[@]}" "$@"
  find_torch
}

# setup_for PRESET: installs clang for the presets that use it, and libtorch unless the preset builds only the torch-free half. The
# package of clang++-19 is clang-19; another program that PENSTOCK_CLANG names must exist.
setup_for() {
  local needed=("${packages[@]}")
  case "$1" in
    tool) needed=("${tool_packages[@]}") ;;
    plan | clang-plan) needed=("${plan_packages[@]}") ;;
  esac
  case "$1:${PENSTOCK_CLANG:-}" in
    clang*:) needed+=(clang) ;;
    clang*:clang++-[0-9]*) command -v "$PENSTOCK_CLANG" >/dev/null || needed+=("clang-${PENSTOCK_CLANG#clang++-}") ;;
  esac
  want_compiler "$1"
  need_packages "${needed[@]}"
  case "$1" in
    clang*) command -v "${PENSTOCK_CLANG:-true}" >/dev/null ||
      die "PENSTOCK_CLANG=$PENSTOCK_CLANG is not a program" "set it to a clang++, such as clang++-19" ;;
  esac
  case "$1" in
    plan | clang-plan | tool) export PENSTOCK_TORCH= ;;
    *) find_torch ;;
  esac
}
