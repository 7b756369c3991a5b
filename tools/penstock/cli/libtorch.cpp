// Looks for libtorch before the dynamic loader does, so that a missing one is an error with a hint and not a
// message of the loader. PENSTOCK_TORCH_LIBRARIES is the directory in the RUNPATH of penstock-torch:
// absolute, or relative to the program (PENSTOCK_PORTABLE). PENSTOCK_BUILT_WITH_TORCH is the minor version of
// libtorch that penstock-torch was built with. It does not run with another one.
#include "cli/libtorch.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibraryPath = "LD_LIBRARY_PATH";
constexpr const char* kAdded = "PENSTOCK_ADDED_LIBRARY_PATH";  // what expose_libtorch added to it

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool has_libtorch(const fs::path& libraries) {
  std::error_code error;
  return fs::exists(libraries / "libtorch_cpu.so", error);
}

//! Empty if the directory does not state the version.
std::string version_of(const fs::path& torch) {
  std::ifstream file(torch / "share/cmake/Torch/TorchConfigVersion.cmake");
  const std::string before = "PACKAGE_VERSION \"";
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(before);
    if (at == std::string::npos) continue;
    const auto begin = at + before.size();
    return line.substr(begin, line.find('"', begin) - begin);
  }
  return "";
}

void check_version(const fs::path& torch, const std::string& hint) {
  const std::string version = version_of(torch);
  if (version.empty() || version.starts_with(PENSTOCK_BUILT_WITH_TORCH ".")) return;
  throw Error(quote(torch.string(), 200) + " is libtorch " + version +
                  ", but penstock needs " PENSTOCK_BUILT_WITH_TORCH,
              {}, hint);
}

void add_to_library_path(const std::string& libraries) {
  const std::string old = variable(kLibraryPath);
  setenv(kLibraryPath, (old.empty() ? libraries : libraries + ":" + old).c_str(), 1);
  setenv(kAdded, libraries.c_str(), 1);
}

//! Asks the loader for the smallest library of libtorch.
bool loader_finds_libtorch() {
  void* const library = dlopen("libc10.so", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

void use_named(const fs::path& torch, const fs::path& built_in) {
  const std::string hint =
      "set PENSTOCK_TORCH to the `torch` directory of a Python package with torch " PENSTOCK_BUILT_WITH_TORCH
      ", or to an unpacked libtorch " PENSTOCK_BUILT_WITH_TORCH;
  const fs::path libraries = torch / "lib";
  if (!has_libtorch(libraries)) {
    throw Error("PENSTOCK_TORCH is " + quote(torch.string(), 200) +
                    ", which is not the directory of a libtorch: it has no lib/libtorch_cpu.so",
                {}, hint);
  }
  check_version(torch, hint);
  std::error_code error;
  if (!fs::equivalent(libraries, built_in, error) || error) add_to_library_path(libraries.string());
}

}  // namespace

void expose_libtorch(const fs::path& directory, const std::string& command) {
  const fs::path built_in = (directory / PENSTOCK_TORCH_LIBRARIES).lexically_normal();
  if (const std::string named = variable("PENSTOCK_TORCH"); !named.empty()) {
    use_named(fs::absolute(named), built_in);
    return;
  }
  const fs::path torch = built_in.parent_path();
  const std::string hint = "install it, for example with `pip install torch==" PENSTOCK_BUILT_WITH_TORCH
                           ".0`, and set PENSTOCK_TORCH to its directory, or link " +
                           torch.string() + " to it";
  if (has_libtorch(built_in)) {
    check_version(torch, hint);
  } else if (!loader_finds_libtorch()) {
    throw Error("penstock " + command + " needs libtorch " PENSTOCK_BUILT_WITH_TORCH ", which is not in " +
                    quote(torch.string(), 200),
                {}, hint);
  }
}

void restore_library_path() {
  const std::string added = variable(kAdded), path = variable(kLibraryPath);
  if (added.empty()) return;
  if (path == added) unsetenv(kLibraryPath);
  if (path.starts_with(added + ":")) setenv(kLibraryPath, path.substr(added.size() + 1).c_str(), 1);
  unsetenv(kAdded);
}

}  // namespace penstock::tool
