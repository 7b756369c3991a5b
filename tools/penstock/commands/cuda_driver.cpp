// Loads libcuda at run time: a CPU build of libtorch, and a machine without a driver, do not have it.
#include "commands/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>

namespace penstock::tool {
namespace {

// The functions of the driver API return 0 for success. A device is an int.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*get)(int* device, int index) = nullptr;
  int (*name)(char* text, int length, int device) = nullptr;
  int (*can_access)(int* result, int from, int to) = nullptr;
};

// Returns null without a driver.
const Driver* driver() {
  static Driver loaded;
  static const bool usable = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto load = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    return load(loaded.init, "cuInit") && load(loaded.get, "cuDeviceGet") &&
           load(loaded.name, "cuDeviceGetName") && load(loaded.can_access, "cuDeviceCanAccessPeer") &&
           loaded.init(0) == 0;
  }();
  return usable ? &loaded : nullptr;
}

}  // namespace

std::optional<std::string> device_name(int index) {
  const Driver* const cuda = driver();
  int device = 0;
  std::array<char, 256> text{};
  if (cuda == nullptr || cuda->get(&device, index) != 0 ||
      cuda->name(text.data(), static_cast<int>(text.size()) - 1, device) != 0)
    return std::nullopt;
  return text.data();
}

std::optional<bool> can_access_peer(int from, int to) {
  const Driver* const cuda = driver();
  int first = 0, second = 0, result = 0;
  if (cuda == nullptr || cuda->get(&first, from) != 0 || cuda->get(&second, to) != 0 ||
      cuda->can_access(&result, first, second) != 0)
    return std::nullopt;
  return result != 0;
}

}  // namespace penstock::tool
