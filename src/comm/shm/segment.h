// Shared memory of one rank, which the other ranks of the host map. It is a file in /dev/shm that never has a
// name: a peer opens it through the owner's entry in /proc, which the kernel allows only to the same user,
// and nothing is left behind however a process ends.
#pragma once

#include "comm/failure/sockets.h"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace penstock::comm::shm {

//! How a peer finds a segment.
struct SegmentName {
  pid_t pid = 0;
  int descriptor = -1;
  std::uint64_t nonce = 0;  //!< random; also in the first bytes of the segment
  std::size_t bytes = 0;

  //! The four numbers, separated by commas.
  std::string serialize() const;
  //! Throws CommError if `text` is not the result of `serialize`.
  static SegmentName parse(std::string_view text);
};

class Segment {
 public:
  //! Creates a segment of zeros and reserves its memory. Throws CommError if /dev/shm is too small.
  static std::shared_ptr<Segment> create(std::size_t bytes);
  //! Maps the segment of another rank. Throws CommError if it does not exist or belongs to another user.
  static std::shared_ptr<Segment> attach(const SegmentName& name);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentName& name() const { return name_; }
  //! Where its contents start, after the nonce; aligned to 64 bytes.
  std::byte* data() const { return memory_ + kPrefix; }
  //! Closes the descriptor, so that nobody can attach anymore.
  void seal() { file_.reset(); }

  //! Bytes that a segment needs in addition to its contents.
  static constexpr std::size_t kPrefix = 64;

 private:
  Segment(SegmentName name, Fd file);

  SegmentName name_;
  Fd file_;  // empty if it is sealed
  std::byte* memory_ = nullptr;
};

}  // namespace penstock::comm::shm
