// The steps of writing a checkpoint on disk, in the order that makes them safe.
#pragma once

#include "checkpoint/files.h"
#include "checkpoint/save_plan.h"

#include <functional>
#include <map>
#include <string>

namespace penstock {

//! Where one checkpoint is written and where it ends up.
struct CommitPaths {
  CommitPaths(const std::string& directory, std::int64_t step);
  std::string root;        //!< DIR
  std::string incomplete;  //!< DIR/step-N.incomplete
  std::string complete;    //!< DIR/step-N
};

//! The directory with its parents, such that a crash does not undo it.
void make_root(Files& files, const std::string& root);

//! First, on one rank: an empty place to write to.
void prepare(Files& files, const CommitPaths& paths);

//! What a rank has written.
struct WrittenShard {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::vector<std::uint32_t> pieces;  //!< checksums in the order of its jobs
};

//! Then, on every rank that has jobs: its file, flushed. `local_of` gives the tensor of a job, by its index;
//! one is asked for at a time.
WrittenShard write_shard(Files& files, const std::string& path, const SavePlan& plan,
                         const std::vector<SavePlan::Job>& jobs,
                         const std::function<at::Tensor(std::size_t job)>& local_of);

//! Last, on one rank, when all are done: the manifest, and the new name. Only now is there a checkpoint.
void commit(Files& files, const CommitPaths& paths, const Manifest& manifest);

//! Removes complete checkpoints that are older than `step`, but for the newest `keep - 1` of them, and what
//! writes that did not end have left. (What is newer than `step` was passed over when the run resumed; it may
//! only be replaced.)
void prune(Files& files, const std::string& directory, std::int64_t step, int keep);

}  // namespace penstock
