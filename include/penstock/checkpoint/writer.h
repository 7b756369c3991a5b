// Writes checkpoints from all ranks of a group while training continues.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::checkpoint {

//! Options of a CheckpointWriter.
struct WriterOptions {
  std::optional<int> keep = 3;  //!< number of complete checkpoints to keep; nullopt: all
  bool asynchronous = true;     //!< write in a background thread
  //! A rank that must write more bytes than this makes no copy and writes before `save` returns. Copies of
  //! tensors on a device are in pinned host memory. The writer keeps their memory for the next save.
  std::uint64_t copy_limit = std::uint64_t{8} << 30;
  //! Copy tensors on devices while later work runs there. The tensors must not change between `save` and
  //! `wait_for_copies`.
  bool overlap_copies = false;
};

//! Writes to DIR/step-N.incomplete, flushes files and directories to disk, then renames the directory. A
//! failure at any time leaves earlier checkpoints intact. All ranks must see the same directory. The first
//! rank of the group holds a lock on DIR/run.lock for the lifetime of the writer; the kernel releases it if
//! the process dies.
class CheckpointWriter {
 public:
  struct Impl;

  //! Collective. Creates the directory and locks it. Throws StorageError on every rank if the directory is
  //! not writable or if another run still holds the lock after some seconds.
  CheckpointWriter(const std::filesystem::path& directory, const comm::Group& group,
                   WriterOptions options = {});
  //! Waits for a pending write. It cannot throw and only logs an error, and the log is off by default: call
  //! `wait` after the last save.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  //! Collective. Each rank passes its own pieces; a piece that several ranks hold is written once. The pieces
  //! must cover every tensor: otherwise a UsageError on every rank lists the problems. `notes` are taken from
  //! the first rank of the group. The caller may modify the tensors after it returns, unless
  //! `overlap_copies` is set. Waits for the previous write first and throws its error (StorageError).
  void save(std::int64_t step, const std::vector<Piece>& pieces, const Notes& notes = {});

  //! After it, the current streams of this thread may modify the tensors of the last save. The streams wait
  //! for its copies; the host does not.
  void wait_for_copies();

  //! Waits until the last save is complete on disk; throws its error.
  void wait();

  //! The newest step that this writer has completed.
  std::optional<std::int64_t> last_complete() const;
  const std::filesystem::path& directory() const;

 private:
  friend struct Access;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

//! Creates the directory and throws the errors that a CheckpointWriter would throw for it, so that a launcher
//! can check it before it starts ranks.
void check_checkpoint_directory(const std::filesystem::path& directory);

}  // namespace penstock::checkpoint
