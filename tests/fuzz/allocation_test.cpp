// Lets every allocation of the parsers fail in turn: each must end in std::bad_alloc or an error of ours, and
// leave no memory behind.
#include "fuzz/targets.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local long fail_at = -1;  // counts down to the allocation that fails; negative: none
thread_local long live = 0;      // blocks that are held
thread_local bool counting = false;

void* allocate(std::size_t size, std::size_t alignment) {
  if (counting && fail_at >= 0 && fail_at-- == 0) return nullptr;
  void* const block = alignment > alignof(std::max_align_t)
                          ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                          : std::malloc(size == 0 ? 1 : size);
  if (block != nullptr && counting) ++live;
  return block;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  if (void* const block = allocate(size, alignment)) return block;
  throw std::bad_alloc();
}

void release(void* block) noexcept {
  if (block != nullptr && counting) --live;
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate_or_throw(size, 1);
}
void* operator new[](std::size_t size) {
  return allocate_or_throw(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t& /*unused*/) noexcept {
  return allocate(size, 1);
}
void* operator new[](std::size_t size, const std::nothrow_t& /*unused*/) noexcept {
  return allocate(size, 1);
}
void operator delete(void* block) noexcept {
  release(block);
}
void operator delete[](void* block) noexcept {
  release(block);
}
void operator delete(void* block, std::size_t /*size*/) noexcept {
  release(block);
}
void operator delete[](void* block, std::size_t /*size*/) noexcept {
  release(block);
}
void operator delete(void* block, std::align_val_t /*alignment*/) noexcept {
  release(block);
}
void operator delete[](void* block, std::align_val_t /*alignment*/) noexcept {
  release(block);
}
void operator delete(void* block, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  release(block);
}
void operator delete[](void* block, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  release(block);
}

namespace penstock::fuzz {
namespace {

enum class End { Done, OutOfMemory, Wrong };

struct Attempt {
  End end = End::Done;
  bool reached = false;  //!< the allocation that was to fail
  long left = 0;         //!< blocks that were not released
};

Attempt attempt(const Target& target, const std::string& input, long failing) {
  Attempt result;
  counting = true;
  fail_at = failing;
  live = 0;
  try {
    if (target.check(input) != nullptr) result.end = End::Wrong;
  } catch (const std::bad_alloc&) {
    result.end = End::OutOfMemory;
  } catch (...) {
    result.end = End::Wrong;
  }
  result.reached = fail_at < 0;
  counting = false;
  result.left = live;
  return result;
}

class Allocations : public testing::TestWithParam<Target> {};

TEST_P(Allocations, EachMayFail) {
  constexpr long most_attempts = 1500;
  std::vector<std::string> inputs = inputs_of(GetParam());
  std::sort(inputs.begin(), inputs.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::erase_if(inputs, [](const std::string& input) { return input.size() > 60'000; });
  if (inputs.size() > 2) inputs.resize(2);
  for (const std::string& input : inputs) {
    // What is made once and kept (tables, the dispatcher's caches) is made before.
    for (int i = 0; i < 3; ++i) attempt(GetParam(), input, -1);
    EXPECT_EQ(attempt(GetParam(), input, -1).left, 0);
    long count = 0;
    while (attempt(GetParam(), input, count).reached) count = count * 2 + 1;
    // All of the first ones; of a long run every k-th.
    const long stride = std::max(1L, count / most_attempts);
    int failed = 0;
    for (long n = 0;; n += n < 300 ? 1 : stride) {
      const Attempt got = attempt(GetParam(), input, n);
      if (!got.reached) break;
      ASSERT_NE(got.end, End::Wrong) << "allocation " << n;
      ASSERT_EQ(got.left, 0) << "allocation " << n;
      failed += got.end == End::OutOfMemory ? 1 : 0;
    }
    EXPECT_GT(failed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Allocations, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace penstock::fuzz
