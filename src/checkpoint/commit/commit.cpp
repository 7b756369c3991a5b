// Implements the phases of writing a checkpoint.
#include "checkpoint/commit/commit.h"

#include "base/io/crc32.h"
#include "checkpoint/pieces/regions.h"
#include "checkpoint/safetensors/write.h"

#include <penstock/checkpoint/error.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <filesystem>

namespace penstock::checkpoint {
namespace {

constexpr const char* kIncompleteSuffix = ".incomplete";
//! The name of a checkpoint during its removal; not a valid checkpoint name.
constexpr const char* kRemovingSuffix = ".removing";

//! Counts and checksums the bytes written.
class SummedFile : public OutputFile {
 public:
  explicit SummedFile(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}

  using OutputFile::write;
  void write(std::span<const std::uint8_t> bytes) override {
    file_->write(bytes);
    crc_ = crc32c(bytes, crc_);
    size_ += bytes.size();
  }
  void finish() override { file_->finish(); }

  std::uint32_t crc() const { return crc_; }
  std::uint64_t size() const { return size_; }

 private:
  std::unique_ptr<OutputFile> file_;
  std::uint32_t crc_ = 0;
  std::uint64_t size_ = 0;
};

//! A stored piece has the shape of its region; a range that is not a box is stored as 1-D.
std::vector<std::int64_t> stored_shape(const Region& part, std::span<const std::int64_t> shape) {
  if (const auto* box = std::get_if<Box>(&part)) return box->lengths;
  return {numel_of(part, shape)};
}

}  // namespace

CommitPaths::CommitPaths(const std::string& directory, std::int64_t step)
    : root(directory), complete(directory + "/" + checkpoint_name(step)) {
  incomplete = complete + kIncompleteSuffix;
}

void make_root(FileSystem& files, const std::string& root) {
  // A new directory is durable only after its parent is flushed.
  std::vector<std::string> parents;
  for (std::filesystem::path at = std::filesystem::absolute(root).lexically_normal();
       !std::filesystem::exists(at) && at.has_relative_path(); at = at.parent_path()) {
    parents.push_back(at.parent_path().string());
  }
  files.make_directory(root);
  for (const std::string& parent : parents) files.sync_directory(parent);
}

void prepare(FileSystem& files, const CommitPaths& paths) {
  make_root(files, paths.root);
  files.remove(paths.incomplete);
  files.make_directory(paths.incomplete);
}

WrittenShard write_shard(FileSystem& files, const std::string& path, const SavePlan& plan,
                         const std::vector<SavePlan::Job>& jobs,
                         const std::function<at::Tensor(std::size_t job)>& local_of) {
  WrittenShard written;
  written.pieces.resize(jobs.size());
  std::map<std::string, std::size_t> indices;
  std::vector<SafetensorsEntry> entries;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const StoredTensor& tensor = plan.tensors[jobs[i].tensor];
    const StoredTensor::StoredPiece& piece = tensor.pieces[jobs[i].stored_piece];
    indices.emplace(piece.key, i);
    entries.push_back(
        {.name = piece.key, .dtype = tensor.dtype, .shape = stored_shape(piece.region, tensor.shape)});
  }
  SummedFile file(files.create(path));
  write_safetensors(
      file, std::move(entries), [&](const std::string& key) { return local_of(indices.at(key)); }, {},
      [&](const SafetensorsEntry& entry, std::span<const std::uint8_t> bytes) {
        written.pieces[indices.at(entry.name)] = crc32c(bytes);
      });
  file.finish();
  written.bytes = file.size();
  written.crc32c = file.crc();
  return written;
}

void commit(FileSystem& files, const CommitPaths& paths, const Manifest& manifest) {
  const auto file = files.create(paths.incomplete + "/" + kManifestName);
  file->write(manifest_text(manifest));
  file->finish();
  files.sync_directory(paths.incomplete);
  // If a checkpoint of this step exists (the run resumed from an earlier one), exchange the two atomically.
  if (std::filesystem::exists(paths.complete)) {
    files.exchange(paths.incomplete, paths.complete);
    files.sync_directory(paths.root);
    files.remove(paths.incomplete);
  } else {
    files.rename(paths.incomplete, paths.complete);
    files.sync_directory(paths.root);
  }
}

void prune(FileSystem& files, const std::string& directory, std::int64_t step, std::optional<int> keep) {
  for (const std::string& name : list_directory(directory)) {
    if (name.starts_with("step-") && (name.ends_with(kIncompleteSuffix) || name.ends_with(kRemovingSuffix))) {
      files.remove(directory + "/" + name);
    }
  }
  if (!keep) return;
  std::vector<CheckpointLocation> older;
  for (CheckpointLocation& location : list_checkpoints(directory)) {
    if (location.complete && location.step < step) older.push_back(std::move(location));
  }
  const auto kept = static_cast<std::size_t>(*keep - 1);
  for (std::size_t i = 0; i + kept < older.size(); ++i) {
    // Rename first, so that a crash cannot leave a partial checkpoint under a valid name.
    const std::string path = older[i].path, removing = path + kRemovingSuffix;
    files.rename(path, removing);
    files.remove(removing);
  }
}

}  // namespace penstock::checkpoint
