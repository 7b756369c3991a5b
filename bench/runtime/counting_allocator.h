// Counts the bytes of CPU tensors: the current total, and the peak since `start`.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>

namespace penstock::bench {

class CountingAllocator final : public c10::Allocator {
 public:
  //! Starts counting CPU tensors. Call it before the first tensor is created.
  static void install() {
    static CountingAllocator counting;
    c10::SetCPUAllocator(&counting, 1);
  }
  static void start() { peak_ = held_.load(); }
  static std::size_t now() { return static_cast<std::size_t>(held_.load()); }
  static std::size_t peak() { return static_cast<std::size_t>(peak_.load()); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, at::kCPU};
    void* const block = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    const std::int64_t held = held_ += size_of(block);
    std::int64_t peak = peak_;
    while (held > peak && !peak_.compare_exchange_weak(peak, held)) {
    }
    return {block, block, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static std::int64_t size_of(void* block) { return static_cast<std::int64_t>(malloc_usable_size(block)); }
  static void release(void* block) {
    held_ -= size_of(block);
    std::free(block);
  }
  static inline std::atomic<std::int64_t> held_{0}, peak_{0};
};

}  // namespace penstock::bench
