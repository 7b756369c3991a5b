// The phases of writing a checkpoint to disk, in the order in which they must run to be crash-safe.
#pragma once

#include "checkpoint/commit/files.h"
#include "checkpoint/pieces/save_plan.h"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace penstock::checkpoint {

//! The temporary and final directory of a checkpoint.
struct CommitPaths {
  CommitPaths(const std::string& directory, std::int64_t step);
  std::string root;        //!< DIR
  std::string incomplete;  //!< DIR/step-N.incomplete
  std::string complete;    //!< DIR/step-N
};

//! Creates the directory and its parents durably.
void make_root(FileSystem& files, const std::string& root);

//! Phase 1, on one rank: creates an empty directory to write to.
void prepare(FileSystem& files, const CommitPaths& paths);

//! The file that a rank has written.
struct WrittenShard {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::vector<std::uint32_t> pieces;  //!< checksums of the pieces, in the order of the jobs
};

//! Phase 2, on every rank with jobs: writes and flushes its file. `local_of` returns the tensor of a job by
//! index; it is called for one job at a time.
WrittenShard write_shard(FileSystem& files, const std::string& path, const SavePlan& plan,
                         const std::vector<SavePlan::Job>& jobs,
                         const std::function<at::Tensor(std::size_t job)>& local_of);

//! Phase 3, on one rank, after all ranks have completed phase 2: writes and flushes the manifest, then
//! renames the directory and flushes its parent. The checkpoint exists only after the rename.
void commit(FileSystem& files, const CommitPaths& paths, const Manifest& manifest);

//! Removes the remains of interrupted writes, and all complete checkpoints older than `step` except the
//! newest `keep - 1`: the checkpoint of `step` itself is one of the `keep`. If `keep` is nullopt, removes
//! none of them. Keeps checkpoints newer than `step`: the run skipped them when it resumed, and only a new
//! checkpoint of the same step may replace them.
void prune(FileSystem& files, const std::string& directory, std::int64_t step, std::optional<int> keep);

}  // namespace penstock::checkpoint
