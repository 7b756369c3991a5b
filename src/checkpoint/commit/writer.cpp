// The calling thread computes the plan, identically on all ranks, and copies the data that this rank writes.
// The background thread, with its own group, writes the file and, after all ranks have done so, the manifest,
// and renames the directory.
#include "base/io/bytes.h"
#include "base/log_line.h"
#include "base/text.h"
#include "checkpoint/commit/access.h"
#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/directory_lock.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/commit/host_copies.h"
#include "checkpoint/pieces/local_pieces.h"
#include "checkpoint/pieces/save_plan.h"
#include "comm/world/group_use.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/writer.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <optional>

namespace penstock::checkpoint {
namespace {

//! The outcome of a phase on one rank. Outcomes are gathered, so that all ranks see the same failures.
struct Outcome {
  std::string error;
  int code = 0;
  WrittenShard shard;

  std::string packed() const {
    ByteWriter writer;
    writer.text(error);
    writer.signed_int(code);
    writer.unsigned_int(shard.bytes);
    writer.unsigned_int(shard.crc32c);
    writer.unsigned_int(shard.pieces.size());
    for (const std::uint32_t crc : shard.pieces) writer.unsigned_int(crc);
    const auto bytes = writer.take();
    return {bytes.begin(), bytes.end()};
  }

  static Outcome unpacked(const std::string& text) {
    ByteReader reader({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    Outcome outcome;
    outcome.error = reader.text();
    outcome.code = static_cast<int>(reader.signed_int());
    outcome.shard.bytes = reader.unsigned_int();
    outcome.shard.crc32c = static_cast<std::uint32_t>(reader.unsigned_int());
    outcome.shard.pieces.resize(reader.count());
    for (std::uint32_t& crc : outcome.shard.pieces) crc = static_cast<std::uint32_t>(reader.unsigned_int());
    return outcome;
  }
};

//! Runs `work` and converts its exception to an outcome.
template <class Work>
Outcome outcome_of(const Work& work) {
  Outcome outcome;
  try {
    work(outcome);
  } catch (const StorageError& error) {
    outcome.error = error.message();
    outcome.code = error.code();
  } catch (const std::exception& error) {
    outcome.error = error.what();
    outcome.code = EIO;
  }
  return outcome;
}

std::vector<std::string> gather(const comm::Group& group, const std::string& text) {
  if (group.size() == 1) return {text};
  std::vector<std::string> all;
  for (const c10::IValue& other : group.all_gather_object(text)) all.push_back(other.toStringRef());
  return all;
}

//! The state of one save; owned by the background thread during the write.
struct Save {
  std::int64_t step = 0;
  Notes notes;
  std::shared_ptr<const SavePlan> plan;
  std::vector<at::Tensor> locals;  //!< tensors of the jobs of this rank
};

}  // namespace

struct CheckpointWriter::Impl {
  std::string directory;
  std::filesystem::path path;  //!< the same
  comm::Group group;           //!< used by the calling thread
  comm::Group background;      //!< used by the background thread
  WriterOptions options;
  FileSystem& files;
  std::vector<std::string> descriptions;  //!< input of the current plan
  std::shared_ptr<const SavePlan> plan;
  HostCopies copies;  //!< of the tensors of the last save; the memory serves the next one
  std::future<void> writing;
  std::atomic<std::int64_t> last{-1};
  DirectoryLock lock;  //!< held by the first rank

  bool is_first() const { return group.rank() == 0; }

  void update_plan(const std::vector<Piece>& pieces) {
    const std::string description = describe_pieces(pieces);
    const auto rank = static_cast<std::size_t>(group.rank());
    const bool same = !descriptions.empty() && descriptions[rank] == description;
    // Usually nothing has changed since the last save; an all-reduce of one flag shows this.
    const auto all_same = [&] {
      if (group.size() == 1) return same;
      const at::Tensor flag = at::full({1}, same ? 1 : 0, at::kLong);
      group.all_reduce(flag, comm::ReduceOp::Min);
      return flag.item<std::int64_t>() == 1;
    };
    if (all_same()) return;
    descriptions.clear();
    std::vector<std::string> gathered = gather(group, description);
    plan = std::make_shared<const SavePlan>(plan_save(gathered));
    descriptions = std::move(gathered);
  }

  //! Throws the first failure of any rank on every rank.
  std::vector<Outcome> agree(const Outcome& outcome, const CommitPaths& paths) {
    std::vector<Outcome> all;
    for (const std::string& text : gather(background, outcome.packed()))
      all.push_back(Outcome::unpacked(text));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].error.empty()) continue;
      if (is_first()) outcome_of([&](Outcome&) { files.remove(paths.incomplete); });
      throw StorageError(str_cat("the checkpoint ", quote(paths.complete, 200), " was not written (rank ",
                                 group.global_rank(static_cast<int>(rank)).value, "): ", all[rank].error),
                         all[rank].code);
    }
    return all;
  }

  // If the directory was removed, its checkpoints are lost. Report this once; the next save creates it again.
  void expect_directory() {
    if (last < 0 || std::filesystem::exists(directory)) return;
    last = -1;
    throw StorageError("the directory " + quote(directory, 200) + " was removed, with the checkpoints in it",
                       ENOENT);
  }

  void lock_directory() {
    make_root(files, directory);
    lock.hold();
  }

  //! Fails before training starts if nothing can be saved. An error on the first rank is thrown on every
  //! rank.
  void try_directory() {
    const Outcome outcome = outcome_of([&](Outcome&) {
      if (is_first()) lock_directory();
    });
    const Outcome first = Outcome::unpacked(gather(group, outcome.packed()).front());
    if (!first.error.empty()) throw StorageError(first.error, first.code);
  }

  void write(const Save& save) {
    const CommitPaths paths(directory, save.step);
    agree(outcome_of([&](Outcome&) {
            if (!is_first()) return;
            expect_directory();
            lock_directory();
            prepare(files, paths);
          }),
          paths);
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto& jobs = save.plan->jobs[rank];
    const std::vector<Outcome> written =
        agree(outcome_of([&](Outcome& outcome) {
                if (jobs.empty()) return;
                const auto& writers = save.plan->writers;
                const auto position = std::find(writers.begin(), writers.end(), group.rank());
                const auto& file = save.plan->files[static_cast<std::size_t>(position - writers.begin())];
                outcome.shard = write_shard(files, paths.incomplete + "/" + file.name, *save.plan, jobs,
                                            [&](std::size_t job) { return save.locals[job]; });
              }),
              paths);
    agree(outcome_of([&](Outcome&) {
            if (is_first()) commit(files, paths, manifest_of(save, written));
          }),
          paths);
    last = save.step;
    if (!is_first()) return;
    const Outcome pruned = outcome_of([&](Outcome&) { prune(files, directory, save.step, options.keep); });
    if (!pruned.error.empty()) Log(LogLevel::Warn) << "old checkpoints were not removed: " << pruned.error;
  }

  static Manifest manifest_of(const Save& save, const std::vector<Outcome>& written) {
    Manifest manifest{save.step, save.notes, save.plan->files, save.plan->tensors};
    for (std::size_t i = 0; i < manifest.files.size(); ++i) {
      const WrittenShard& shard = written[static_cast<std::size_t>(save.plan->writers[i])].shard;
      manifest.files[i].bytes = shard.bytes;
      manifest.files[i].crc32c = shard.crc32c;
    }
    for (std::size_t rank = 0; rank < written.size(); ++rank) {
      const auto& jobs = save.plan->jobs[rank];
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        manifest.tensors[jobs[i].tensor].pieces[jobs[i].stored_piece].crc32c =
            written[rank].shard.pieces.at(i);
      }
    }
    return manifest;
  }
};

CheckpointWriter::CheckpointWriter(const std::filesystem::path& directory, const comm::Group& group,
                                   WriterOptions options)
    : CheckpointWriter(Access::make_impl(directory, group, options, disk())) {}

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<CheckpointWriter::Impl> Access::make_impl(const std::filesystem::path& directory,
                                                          const comm::Group& group,
                                                          const WriterOptions& options, FileSystem& files) {
  std::unique_ptr<CheckpointWriter::Impl> impl(new CheckpointWriter::Impl{
      .directory = directory,
      .path = directory,
      .group = group,
      .background = group.size() == 1 ? group : duplicate(group, comm::GroupUse::Objects),
      .options = options,
      .files = files,
      .lock = DirectoryLock(directory)});
  if (directory.empty()) throw UsageError("a checkpoint needs a directory");
  if (options.keep.value_or(1) < 1)
    throw UsageError(str_cat("a checkpoint writer cannot keep ", *options.keep, " checkpoints"), {},
                     "set `keep` to at least 1, or to nullopt to keep all");
  impl->try_directory();
  return impl;
}

CheckpointWriter Access::writer(const std::filesystem::path& directory, const comm::Group& group,
                                const WriterOptions& options, FileSystem& files) {
  return CheckpointWriter(make_impl(directory, group, options, files));
}

void check_checkpoint_directory(const std::filesystem::path& directory) {
  make_root(disk(), directory);
  DirectoryLock(directory).hold();
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    Log(LogLevel::Error) << error.what();
  }
}

void CheckpointWriter::save(std::int64_t step, const std::vector<Piece>& given, const Notes& notes) {
  if (step < 0) throw UsageError(str_cat("a checkpoint cannot have step ", step));
  wait();
  const std::vector<Piece> pieces = local_pieces(given);
  Impl& impl = *impl_;
  impl.update_plan(pieces);
  auto save = std::make_shared<Save>(Save{step, notes, impl.plan, {}});
  std::uint64_t bytes = 0;
  for (const auto& job : impl.plan->jobs[static_cast<std::size_t>(impl.group.rank())]) {
    const Piece& piece = pieces[job.piece];
    at::Tensor local = piece.local.detach();
    // A stored piece has the shape of its region; a range that is not a box is stored as 1-D.
    const Region& part = impl.plan->tensors[job.tensor].pieces[job.stored_piece].region;
    const auto* box = std::get_if<Box>(&part);
    save->locals.push_back(box != nullptr ? local.reshape(box->lengths) : local.reshape({-1}));
    bytes += save->locals.back().nbytes();
  }
  if (impl.options.asynchronous && bytes <= impl.options.copy_limit) {
    impl.copies.start(save->locals);
    if (!impl.options.overlap_copies) wait_for_copies();
  } else {
    impl.copies.expect(save->locals);
  }
  auto rank = log_rank();
  const auto write = [&impl, save, rank] {
    set_log_rank(rank);
    impl.copies.wait();
    impl.write(*save);
  };
  impl.writing = std::async(std::launch::async, write);
  if (!impl.options.asynchronous || bytes > impl.options.copy_limit) wait();
}

void CheckpointWriter::wait_for_copies() {
  impl_->copies.block_streams();
}

void CheckpointWriter::wait() {
  if (impl_->writing.valid()) impl_->writing.get();
}

std::optional<std::int64_t> CheckpointWriter::last_complete() const {
  const std::int64_t step = impl_->last;
  return step < 0 ? std::nullopt : std::optional(step);
}

const std::filesystem::path& CheckpointWriter::directory() const {
  return impl_->path;
}

}  // namespace penstock::checkpoint
