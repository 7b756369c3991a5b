// The memory of all devices, and the report of an access by the host.
#include "device_memory.h"

#include <c10/util/Exception.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

namespace penstock::test::simulated {
namespace {

const DeviceMemory* watched = nullptr;
struct sigaction previous_action;

// Calls only functions that are safe in a signal handler.
void write_text(const char* text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
}

void on_fault(int, siginfo_t* info, void*) {
  if (watched->contains(info->si_addr)) {
    const int device = watched->device_of(info->si_addr);
    const std::array<char, 4> digits{static_cast<char>('0' + device / 100),
                                     static_cast<char>('0' + device / 10 % 10),
                                     static_cast<char>('0' + device % 10), '\0'};
    const std::size_t leading = device >= 100 ? 0 : device >= 10 ? 1 : 2;
    write_text("\nsimulated device: host access to memory of cuda:");
    write_text(digits.data() + leading);
    write_text("\n");
    std::array<void*, 32> frames{};
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), frames.size()), STDERR_FILENO);
  }
  // The instruction runs again, and the previous handler ends the process.
  sigaction(SIGSEGV, &previous_action, nullptr);
}

char* map_file(int file, std::size_t size, int protection) {
  void* const at = mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(at != MAP_FAILED, "cannot map ", size, " bytes of simulated memory: ", std::strerror(errno));
  return static_cast<char*>(at);
}

}  // namespace

DeviceMemory::DeviceMemory(c10::DeviceIndex devices, std::size_t bytes_per_device)
    : file_(memfd_create("simulated_device", MFD_CLOEXEC)),
      bytes_per_device_(bytes_per_device),
      size_(bytes_per_device * static_cast<std::size_t>(devices)) {
  TORCH_CHECK(file_ >= 0 && ftruncate(file_, static_cast<off_t>(size_)) == 0,
              "cannot create simulated memory: ", std::strerror(errno));
  locked_ = map_file(file_, size_, PROT_NONE);
  writable_ = map_file(file_, size_, PROT_READ | PROT_WRITE);
}

bool DeviceMemory::contains(const void* device_pointer) const {
  const auto* at = static_cast<const char*>(device_pointer);
  return at >= locked_ && at < locked_ + size_;
}

c10::DeviceIndex DeviceMemory::device_of(const void* device_pointer) const {
  return static_cast<c10::DeviceIndex>(offset_of(device_pointer) / bytes_per_device_);
}

std::size_t DeviceMemory::offset_of(const void* device_pointer) const {
  return static_cast<std::size_t>(static_cast<const char*>(device_pointer) - locked_);
}

char* DeviceMemory::writable(const void* device_pointer) const {
  if (device_pointer == nullptr) return nullptr;
  TORCH_CHECK(contains(device_pointer), "simulated device: a tensor of cuda points to memory of the host");
  return writable_ + offset_of(device_pointer);
}

void DeviceMemory::discard(std::size_t offset, std::size_t size) const {
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(size));
}

void report_host_access(const DeviceMemory& memory) {
  watched = &memory;
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads the unwinder, which the handler could not
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace penstock::test::simulated
