#!/usr/bin/env bash
# Makes the packages and uses them as another machine would: installs the Debian packages and unpacks the tarball in a minimal Debian made
# by debootstrap, of this machine's release and of the next one, and trains there once a libtorch is available; uses the tarball and the
# development package from other directories.
# usage: packages.sh CHECKOUT TORCH. Exits with 77 if it is not run by root, without debootstrap, or if there is no mirror.
set -euo pipefail
checkout=$1 torch=$2
skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "debootstrap and chroot need root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
unshare --mount true 2>/dev/null || skip "mount namespaces are not available"
# The mounts are made in a namespace of this script and disappear with it.
[ -n "${PENSTOCK_OWN_MOUNTS:-}" ] || PENSTOCK_OWN_MOUNTS=1 exec unshare --mount --propagation private "$0" "$@"

dir=$(mktemp -d)
cleanup() {
  umount "$dir"/debian-*/opt/python "$dir"/debian-*/proc 2>/dev/null || true
  rm -rf --one-file-system "$dir"
}
trap cleanup EXIT
fail() { printf '%s\n' "$@" >&2; exit 1; }

# says PATTERN COMMAND…: the command succeeds and prints a line that matches. refuses PATTERN COMMAND…: it fails with code 1 and does so.
attempt() { code=0; output=$("$@" 2>&1 </dev/null) || code=$?; }
check() {
  local expected=$1 pattern=$2; shift 2
  attempt "$@"
  printf '+ %s\n%s\n' "$*" "$output"
  [ "$code" = "$expected" ] || fail "exit code $code"
  grep -qE -- "$pattern" <<<"$output" || fail "no line matches '$pattern'"
}
says() { check 0 "$@"; }
refuses() { check 1 "$@"; }

unset CMAKE_PREFIX_PATH LD_LIBRARY_PATH
PENSTOCK_TORCH=$torch "$checkout/dev" package
unset PENSTOCK_TORCH
cd "$checkout/build/packages"
ls -l

echo "== content of the packages"
tool=$(echo penstock_*.deb) torch_tool=$(echo penstock-torch_*.deb) dev=$(echo libpenstock-dev_*.deb)
unpacked=$dir/unpacked
for package in "$tool" "$torch_tool" "$dev"; do
  dpkg-deb --info "$package"
  dpkg-deb --contents "$package"
  dpkg-deb --extract "$package" "$unpacked"
  for file in copyright changelog.gz changelog.Debian.gz; do
    [ -s "$unpacked/usr/share/doc/${package%%_*}/$file" ] || fail "$package has no $file"
  done
done
depends=$(dpkg-deb --field "$tool" Depends | sed 's/ ([^)]*)//g')
[ "$depends" = "libc6, libgcc-s1, libstdc++6" ] || fail "$tool depends on $depends"
for file in bash-completion/completions/penstock zsh/vendor-completions/_penstock fish/vendor_completions.d/penstock.fish \
  man/man1/penstock.1.gz man/man1/penstock-train.1.gz; do
  [ -s "$unpacked/usr/share/$file" ] || fail "$tool has no $file"
done
! find "$unpacked" -name 'libtorch*' -o -name 'libc10*' | grep . || fail "libtorch is in the packages"
[ -z "$(readelf -d "$unpacked/usr/bin/penstock" | grep PATH)" ] || fail "penstock has a RUNPATH"
readelf -d "$unpacked/usr/bin/penstock-torch" | grep -F 'runpath: [$ORIGIN/../lib/penstock/torch/lib]'
for program in penstock penstock-torch; do
  ! readelf -S "$unpacked/usr/bin/$program" | grep -F .symtab || fail "$program is not stripped"
done
! grep -rlF -e "$checkout" -e "$torch" --include='*.cmake' --include='*.pc' --include='*.h' "$unpacked" ||
  fail "the development package names directories of this machine"

echo "== the development package, in another directory"
consume() {
  local consumer=$1; shift
  cmake -S "$checkout/tests/project/consumers/$consumer" -B "$dir/$consumer" -G Ninja "$@" && cmake --build "$dir/$consumer" &&
    "$dir/$consumer/consumer"
}
refuses 'Set PENSTOCK_TORCH|PENSTOCK_TORCH to the' consume find_package_torch -DCMAKE_PREFIX_PATH="$unpacked/usr"
says '^penstock [0-9.]+ on libtorch 2\.13' consume find_package_torch -DCMAKE_PREFIX_PATH="$unpacked/usr" -DPENSTOCK_TORCH="$torch"
rm -rf "$dir/find_package_torch"
mkdir -p "$unpacked/usr/lib/penstock"
ln -s "$torch" "$unpacked/usr/lib/penstock/torch"
says '^penstock [0-9.]+ on libtorch 2\.13' consume find_package_torch -DCMAKE_PREFIX_PATH="$unpacked/usr"
says '^-L.*/penstock/torch/lib' env PKG_CONFIG_PATH="$unpacked/usr/lib/pkgconfig" pkg-config --libs penstock

echo "== the tarball, in a directory with a space"
mkdir "$dir/any place"
tar -xzf penstock-*.tar.gz -C "$dir/any place" --strip-components=1
tree="$dir/any place"
says '^penstock [0-9.]+$' "$tree/bin/penstock" --version
says '^0F0,0F1' "$tree/bin/penstock" schedule 1F1B --ranks 4 --microbatches 8
refuses '^penstock: error: penstock version needs libtorch 2.13, which is not in .*/lib/penstock/torch' "$tree/bin/penstock" version
says '^libtorch 2\.13' env PENSTOCK_TORCH="$torch" "$tree/bin/penstock" version
says '^penstock [0-9.]+: works' consume find_package_plan -DCMAKE_PREFIX_PATH="$tree"

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# The mirror of this machine, from any format of its apt sources.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Identifier: Packages' | awk -v suite="$suite" '$2 == suite { print $1; exit }')
[ -n "$mirror" ] || skip "apt has no source for $suite"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin timeout 600 chroot "$debian" "$@"; }

# The schedules, the planner and the validator of the installed tool.
use_tool() {
  says '^penstock [0-9.]+$' inside penstock --version
  says '^0F0,0F1' inside penstock schedule 1F1B --ranks 4 --microbatches 8
  says '^1F1B +4 +57 +15\.8%' inside penstock simulate 1F1B ZB1P --ranks 4 --microbatches 16
  says '^.*ZB1P' inside penstock plan --ranks 4 --microbatches 16
  inside penstock schedule ZB1P --ranks 4 --microbatches 8 >"$debian/tmp/valid.csv"
  says '^/tmp/valid\.csv: valid: compute only, 4 ranks' inside penstock validate /tmp/valid.csv
  printf '%s\n' 0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1 1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1 \
    >"$debian/tmp/deadlock.csv"
  refuses 'deadlock: row 1, column 4, 0SEND_F1 \(.*\) -> row 2, column 4, 1SEND_B0 \(.*\) -> row 1, column 4, 0SEND_F1$' \
    inside penstock validate --send-mode blocking /tmp/deadlock.csv
  says '_penstock penstock$' inside bash -c 'source /usr/share/bash-completion/completions/penstock && complete -p penstock'
  inside penstock studio --output /tmp/page.html
  grep -qi '<html' "$debian/tmp/page.html" || fail "penstock studio has no page"
}

# Installs and uses everything in $debian, a minimal Debian.
use_everything() {
  mount -t proc proc "$debian/proc"
  cp ./*.deb "$debian/tmp"
  says '^Setting up penstock ' inside dpkg -i "/tmp/$tool"
  use_tool
  refuses '^hint: install the package penstock-torch' inside penstock train
  says '^Setting up penstock-torch ' inside dpkg -i "/tmp/$torch_tool" "/tmp/$dev"
  refuses '^penstock: error: penstock train needs libtorch 2\.13, which is not in ./usr/lib/penstock/torch.$' inside penstock train
  [ "$(wc -l <<<"$output")" = 2 ] && grep -q '^hint: install it' <<<"$output" || fail "not an error with a hint"
  refuses '^penstock: error: PENSTOCK_TORCH is ' inside env PENSTOCK_TORCH=/opt penstock version

  echo "== a libtorch for it, outside of the packages"
  mkdir -p "$debian/opt/python"
  # With its neighbors, which contain the libraries that a CUDA build needs.
  mount --bind "$(dirname "$torch")" "$debian/opt/python"
  mount -o remount,bind,ro "$debian/opt/python"
  local there training
  there=/opt/python/$(basename "$torch")
  training=(train --ranks 2 --steps 3 --layers 2 --width 16 --heads 2 --seq 8 --batch 8 --json)
  says '^\{"step":3,' inside env PENSTOCK_TORCH="$there" penstock "${training[@]}"
  says 'library path: unchanged$' inside env PENSTOCK_TORCH="$there" LD_LIBRARY_PATH=unchanged \
    penstock run --ranks 1 -- sh -c 'echo "library path: $LD_LIBRARY_PATH"'
  mkdir -p "$debian/usr/lib/penstock"
  ln -s "$there" "$debian/usr/lib/penstock/torch"
  says '^\{"step":3,' inside penstock "${training[@]}"
  says '^ok +round trip' inside penstock doctor
  says '^Removing penstock' inside dpkg -r penstock-torch penstock libpenstock-dev

  echo "== the tarball, without the packages"
  mkdir "$debian/opt/penstock"
  tar -xzf penstock-*.tar.gz -C "$debian/opt/penstock" --strip-components=1
  says '^0F0,0F1' inside /opt/penstock/bin/penstock schedule 1F1B --ranks 4 --microbatches 8
  says '^\{"step":3,' inside env PENSTOCK_TORCH="$there" /opt/penstock/bin/penstock "${training[@]}"
}

suites=("$suite")
[ "$suite" != bookworm ] || suites+=(trixie)  # docs/install.md says that the packages also run on newer releases
for release in "${suites[@]}"; do
  echo "== a minimal Debian: $release"
  debian=$dir/debian-$release
  debootstrap --variant=minbase "$release" "$debian" "$mirror" >"$dir/debootstrap.log" 2>&1 ||
    { tail -n 5 "$dir/debootstrap.log"; skip "debootstrap of $release failed"; }
  use_everything
done
echo "the packages work on ${suites[*]}"
