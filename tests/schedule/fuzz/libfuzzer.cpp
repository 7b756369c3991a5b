// The entry point for clang's libFuzzer; tests/schedule/fuzz/run builds and starts it.
#include "schedule/fuzz/target.h"

#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const char* wrong = penstock::fuzz::try_csv({reinterpret_cast<const char*>(data), size});
  if (wrong == nullptr) return 0;
  std::fprintf(stderr, "fuzz: %s\n", wrong);
  std::abort();
}
