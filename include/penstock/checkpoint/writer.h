// Writing of checkpoints by all ranks of a group, in the background of training.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

class Files;

struct WriterOptions {
  int keep = 3;              //!< complete checkpoints that stay; 0: all
  bool asynchronous = true;  //!< write while the caller goes on
  //! A rank whose share is larger than this does not copy it, but writes before `save` returns.
  std::uint64_t copy_limit = std::uint64_t{8} << 30;
  Files* files = nullptr;  //!< the operations on disk; tests put others in their place
};

//! Writes into DIR/step-N.incomplete, flushes files and directories to disk, and renames: whatever happens
//! meanwhile, the checkpoints that were complete before stay so. All ranks must see the same directory. The
//! group's first rank holds a lock on DIR/run.lock as long as the writer lives; the system releases it when
//! the process ends, however it ends.
class CheckpointWriter {
 public:
  //! Every rank of the group calls it. Makes the directory and locks it: a StorageError on every rank if
  //! nothing can be written there or, after some seconds, if another run has the lock.
  CheckpointWriter(const std::string& directory, const Group& group, WriterOptions options = {});
  //! Waits for a write that is under way; its error, if nobody asked for it, is logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  //! Every rank calls it with the pieces that it has; of pieces that several ranks have, one of them writes
  //! it. Together they must be whole tensors: a UsageError on every rank lists what does not fit. `notes` are
  //! taken from the group's first rank. When it returns, the tensors may be changed. Waits for the write
  //! before, and throws that one's error (StorageError) before it begins.
  void save(std::int64_t step, const std::vector<Piece>& pieces, const Notes& notes = {});

  //! Until the last save is complete on disk; throws what went wrong with it.
  void wait();

  //! The newest step that this writer has completed.
  std::optional<std::int64_t> last_complete() const;
  const std::string& directory() const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

//! Makes the directory, and throws what a CheckpointWriter for it would throw: for a launcher that wants to
//! know before it starts ranks.
void try_checkpoint_directory(const std::string& directory);

}  // namespace penstock
