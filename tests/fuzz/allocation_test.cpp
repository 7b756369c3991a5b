// Fails the allocations of the parsers one at a time: each attempt must end in std::bad_alloc, an Error or
// the correct result, and must not leak memory.
#include "fuzz/allocations.h"
#include "fuzz/targets.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <random>

namespace penstock::fuzz {
namespace {

struct Attempt {
  enum class End { Accepted, Refused, OutOfMemory };
  End end = End::Accepted;
  const char* wrong = nullptr;
  Allocations allocations;
};

Attempt attempt(const Target& target, const std::string& input, long failing) {
  Attempt result;
  start_counting(failing);
  try {
    result.wrong = target.check(input);
  } catch (const std::bad_alloc&) {
    result.end = Attempt::End::OutOfMemory;
  } catch (const Error&) {
    result.end = Attempt::End::Refused;
  } catch (const std::exception&) {
    result.wrong = "another exception than std::bad_alloc and Error";
  }
  result.allocations = stop_counting();
  // A swallowed std::bad_alloc: a stream that drops text, or a handler that catches all exceptions.
  if (result.wrong == nullptr && result.end == Attempt::End::Accepted && result.allocations.threw)
    result.wrong = "the input is accepted although an allocation failed";
  return result;
}

//! Memory that the first runs allocate and keep (tables, caches of the dispatcher) is not a leak: a leak
//! repeats.
bool leaks(const Target& target, const std::string& input, long failing) {
  for (int i = 0; i < 3; ++i)
    if (attempt(target, input, failing).allocations.kept <= 0) return false;
  return true;
}

//! The known inputs, and damaged ones that exercise the error paths of parsers.
std::vector<std::string> inputs_for(const Target& target, std::mt19937& random) {
  constexpr int damaged = 12;
  std::vector<std::string> inputs = inputs_of(target);
  const std::size_t known = inputs.size();
  for (int i = 0; i < damaged; ++i) {
    std::string input = inputs[random() % known];
    if (input.empty()) continue;
    const std::size_t at = random() % input.size();
    if (i % 2 == 0) {
      input.resize(at);
    } else {
      input[at] = static_cast<char>(random() % 256);
    }
    inputs.push_back(std::move(input));
  }
  if (target.may_run_out_of_memory != nullptr)
    std::erase_if(inputs, [&](const std::string& input) { return !target.may_run_out_of_memory(input); });
  return inputs;
}

class FuzzAllocationFailures : public testing::TestWithParam<Target> {};

TEST_P(FuzzAllocationFailures, EndInErrorWithoutLeaks) {
  constexpr long short_run = 500, most_of_long_runs = 5000;
  const unsigned seed = 17;
  std::mt19937 random(seed);
  const Target& target = GetParam();
  const std::vector<std::string> inputs = inputs_for(target, random);
  ASSERT_FALSE(inputs.empty());
  const long share = std::max(1L, most_of_long_runs / static_cast<long>(inputs.size()));
  long attempts = 0, out_of_memory = 0, refused = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string& input = inputs[i];
    for (int warm_up = 0; warm_up < 2; ++warm_up) attempt(target, input, -1);
    ASSERT_FALSE(leaks(target, input, -1)) << "input " << i;
    const long count = attempt(target, input, -1).allocations.made;
    // Every allocation of a short run; in a long one, a random one out of each `stride`.
    const long stride = count <= short_run ? 1 : (count + share - 1) / share;
    for (long base = 0; base < count; base += stride) {
      const long failing =
          std::min(count - 1, base + static_cast<long>(random() % static_cast<unsigned long>(stride)));
      const Attempt got = attempt(target, input, failing);
      ASSERT_STREQ(got.wrong, nullptr) << "input " << i << ", allocation " << failing << ", seed " << seed;
      if (got.allocations.kept > 0) {
        ASSERT_FALSE(leaks(target, input, failing))
            << "input " << i << ", allocation " << failing << ", seed " << seed;
      }
      ++attempts;
      out_of_memory += got.end == Attempt::End::OutOfMemory ? 1 : 0;
      refused += got.end == Attempt::End::Refused ? 1 : 0;
    }
  }
  EXPECT_GT(out_of_memory, 0);
  std::printf("%s: seed %u, %zu inputs, %ld attempts: %ld out of memory, %ld refused\n", target.name, seed,
              inputs.size(), attempts, out_of_memory, refused);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzAllocationFailures,
                         testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace penstock::fuzz
