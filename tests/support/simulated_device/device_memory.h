// The memory of all devices: one file in memory that is mapped twice. Tensors point to a mapping without
// permissions, so an access by the host faults. Kernels use a second, writable mapping.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace penstock::test::simulated {

class DeviceMemory {
 public:
  DeviceMemory(c10::DeviceIndex devices, std::size_t bytes_per_device);

  bool contains(const void* device_pointer) const;
  c10::DeviceIndex device_of(const void* device_pointer) const;
  std::size_t bytes_per_device() const { return bytes_per_device_; }

  //! Offsets count from the start of device 0; device N starts at N * bytes_per_device().
  char* device_pointer(std::size_t offset) const { return locked_ + offset; }
  std::size_t offset_of(const void* device_pointer) const;

  //! The same byte in the writable mapping. Null stays null.
  char* writable(const void* device_pointer) const;

  //! Returns the pages of a free block to the system.
  void discard(std::size_t offset, std::size_t size) const;

 private:
  int file_ = -1;
  std::size_t bytes_per_device_ = 0, size_ = 0;
  char* locked_ = nullptr;
  char* writable_ = nullptr;
};

//! Reports an access of the host to `memory`, which must live until the process ends. The process then ends
//! with SIGSEGV, or as the previous handler decides.
void report_host_access(const DeviceMemory& memory);

}  // namespace penstock::test::simulated
