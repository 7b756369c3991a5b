// Entry points of clang's libFuzzer. PENSTOCK_FUZZ_TARGET names the target. With PENSTOCK_FUZZ_SEEDS=DIR the
// program only writes the inputs of the target there.
#include "fuzz/targets.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace {

const penstock::fuzz::Target& chosen() {
  static const penstock::fuzz::Target& target = []() -> const penstock::fuzz::Target& {
    const char* const name = std::getenv("PENSTOCK_FUZZ_TARGET");
    for (const auto& one : penstock::fuzz::targets())
      if (name != nullptr && std::string_view(name) == one.name) return one;
    std::fprintf(stderr, "PENSTOCK_FUZZ_TARGET must be one of:");
    for (const auto& one : penstock::fuzz::targets()) std::fprintf(stderr, " %s", one.name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }();
  return target;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const penstock::fuzz::Target& target = chosen();
  const char* const directory = std::getenv("PENSTOCK_FUZZ_SEEDS");
  if (directory == nullptr) return 0;
  std::filesystem::create_directories(directory);
  int number = 0;
  for (const std::string& input : penstock::fuzz::inputs_of(target)) {
    const auto path = std::filesystem::path(directory) / ("seed-" + std::to_string(number++));
    std::ofstream(path, std::ios::binary).write(input.data(), static_cast<std::streamsize>(input.size()));
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const char* const wrong =
      penstock::fuzz::problem_with(chosen(), {reinterpret_cast<const char*>(data), size});
  if (wrong == nullptr) return 0;
  std::fprintf(stderr, "fuzz: %s\n", wrong);
  std::abort();
}
