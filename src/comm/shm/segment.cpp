// Creates and maps segments of shared memory.
#include "comm/shm/segment.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace penstock::comm::shm {
namespace {

constexpr const char* kDirectory = "/dev/shm";

std::string free_space() {
  struct statvfs found {};
  if (statvfs(kDirectory, &found) != 0) return "an unknown amount";
  return format_bytes(static_cast<std::size_t>(found.f_bavail) * found.f_frsize);
}

[[noreturn]] void fail_to_create(int error, std::size_t bytes) {
  const bool full = error == ENOSPC || error == ENOMEM;
  throw CommError(
      full ? str_cat(kDirectory, " is too small: this rank needs ", format_bytes(bytes), ", and ",
                     free_space(), " is free")
           : str_cat("cannot create a file in ", kDirectory, ": ", std::strerror(error)),
      {},
      "enlarge /dev/shm (in a container: its option shm-size), set PENSTOCK_SHM_BYTES to a smaller size, or "
      "choose the backend gloo");
}

// The segments that this process created. Thread ranks attach by sharing the mapping, so that the thread
// sanitizer sees their accesses.
struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<Segment>> segments;
};

Registry& registry() {
  static auto* const instance = new Registry;  // never destroyed: a segment may be destroyed during exit
  return *instance;
}

}  // namespace

std::string SegmentName::serialize() const {
  return str_cat(pid, ",", descriptor, ",", nonce, ",", bytes);
}

SegmentName SegmentName::parse(std::string_view text) {
  SegmentName name;
  const auto bad = [&] { return CommError("not the name of a shared segment: " + quote(text)); };
  auto read = [&, rest = text](auto& value, bool last) mutable {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || (end == rest.data() + rest.size()) != last) throw bad();
    if (last) return;
    if (*end != ',') throw bad();
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  };
  read(name.pid, false);
  read(name.descriptor, false);
  read(name.nonce, false);
  read(name.bytes, true);
  return name;
}

Segment::Segment(SegmentName name, Fd file) : name_(name), file_(std::move(file)) {
  void* const memory = mmap(nullptr, name_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED)
    throw CommError(
        str_cat("cannot map ", format_bytes(name_.bytes), " of shared memory: ", std::strerror(errno)));
  memory_ = static_cast<std::byte*>(memory);
}

Segment::~Segment() {
  munmap(memory_, name_.bytes);
}

std::shared_ptr<Segment> Segment::create(std::size_t bytes) {
  bytes += kPrefix;
  Fd file(open(kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) fail_to_create(errno, bytes);
  // Without reserved memory, a full /dev/shm would be a SIGBUS later.
  if (const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
    fail_to_create(error, bytes);
  SegmentName name{.pid = getpid(), .descriptor = file.get(), .nonce = 0, .bytes = bytes};
  if (getrandom(&name.nonce, sizeof name.nonce, 0) != sizeof name.nonce)
    throw CommError(str_cat("the system provides no random numbers: ", std::strerror(errno)));
  std::shared_ptr<Segment> segment(new Segment(name, std::move(file)));
  std::memcpy(segment->memory_, &name.nonce, sizeof name.nonce);
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().segments, [](const auto& entry) { return entry.second.expired(); });
  registry().segments[name.nonce] = segment;
  return segment;
}

std::shared_ptr<Segment> Segment::attach(const SegmentName& name) {
  if (name.pid == getpid()) {
    const std::lock_guard lock(registry().mutex);
    if (const auto found = registry().segments.find(name.nonce); found != registry().segments.end())
      if (auto segment = found->second.lock()) return segment;
    throw CommError("the shared segment of a rank in this process is gone");
  }
  const std::string path = str_cat("/proc/", name.pid, "/fd/", name.descriptor);
  Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file)
    throw CommError(
        str_cat("cannot open the shared memory of process ", name.pid, ": ", std::strerror(errno)));
  struct stat found {};
  const bool ours = fstat(file.get(), &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
                    (found.st_mode & (S_IRWXG | S_IRWXO)) == 0 &&
                    found.st_size == static_cast<off_t>(name.bytes) && name.bytes > kPrefix;
  std::shared_ptr<Segment> segment;
  if (ours) {
    segment.reset(new Segment(name, std::move(file)));
    segment->seal();
  }
  if (!segment || std::memcmp(segment->memory_, &name.nonce, sizeof name.nonce) != 0)
    throw CommError(str_cat("the shared memory of process ", name.pid, " is not that of a rank of this job"));
  return segment;
}

}  // namespace penstock::comm::shm
