// Replaces the global operators new and delete.
#include "fuzz/allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false, threw = false;
thread_local long made = 0, kept = 0, to_fail = -1;

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (counting && made++ == to_fail) return nullptr;
  void* const block = alignment > alignof(std::max_align_t)
                          ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                          : std::malloc(size == 0 ? 1 : size);
  if (block != nullptr && counting) ++kept;
  return block;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  if (void* const block = allocate(size, alignment)) return block;
  threw = true;
  throw std::bad_alloc();
}

void release(void* block) noexcept {
  if (block != nullptr && counting) --kept;
  std::free(block);
}

}  // namespace

namespace penstock::fuzz {

void start_counting(long failing) {
  made = kept = 0;
  threw = false;
  to_fail = failing;
  counting = true;
}

Allocations stop_counting() {
  counting = false;
  return {made, kept, threw};
}

}  // namespace penstock::fuzz

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
