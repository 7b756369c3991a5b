# Finds or installs libtorch. Sourced by ./dev, whose functions it uses.
# shellcheck shell=bash disable=SC2154

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
  local log; log=$(mktemp)
  local pip=(.venv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check)
  quietly python3 -m venv .venv || die "cannot create a virtual environment in .venv"
  say "installing torch $torch_version+cpu into .venv if pip finds it (0.2 GB)"
  if "${pip[@]}" "torch==$torch_version+cpu" >"$log" 2>&1; then rm -f "$log"; return 0; fi
  if ! grep -q 'No matching distribution' "$log"; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  say "pip finds no CPU build; installing torch $torch_version, which for Linux is the CUDA build: 2.7 GB to fetch, 5 GB on disk"
  say "(it works without a GPU; to use the CPU build, stop now and set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL to its location)"
  quietly "${pip[@]}" "torch==$torch_version"
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
