// Reads checkpoints from disk. DIR/step-00000120 contains safetensors files and a manifest that lists every
// tensor of the model and the location of its pieces. DIR/step-….incomplete is a checkpoint whose write did
// not complete. docs/checkpoint.md describes the format.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/checkpoint/error.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::checkpoint {

//! Strings stored with the tensors, by name: the configuration, the position in the data, seeds.
using Notes = std::map<std::string, std::string>;

//! A tensor in a checkpoint.
struct StoredTensor {
  std::string name;   //!< in the model
  std::string state;  //!< of optimizer states: `exp_avg`, `step`, …; else empty
  PieceKind kind = PieceKind::Parameter;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::vector<std::string> aliases;  //!< other names of the same tensor (tied weights)

  struct StoredPiece {
    std::size_t file = 0;  //!< index in `files()`
    std::string key;       //!< name of the piece in that file
    Region region;         //!< never FullTensor
    std::uint32_t crc32c = 0;
  };
  std::vector<StoredPiece> pieces;

  std::uint64_t nbytes() const;
};

//! A file of a checkpoint with its size and checksum.
struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

//! Which differences between the checkpoint and the requested pieces a load accepts.
struct LoadOptions {
  bool allow_missing = false;   //!< do not modify tensors that are missing in the checkpoint
  bool allow_extra = false;     //!< ignore parameters, buffers and states that no rank requests
  bool allow_reshaped = false;  //!< do not modify tensors whose stored shape differs
  bool convert_dtypes = false;  //!< cast elements to the dtype of `local`
};

//! What a load read, and the differences that it accepted.
struct LoadReport {
  std::uint64_t bytes_used = 0;  //!< bytes copied into the pieces of this rank
  std::uint64_t bytes_read = 0;  //!< bytes read from files; more than used if short rows are read together
  //! Titles of the differences that the options allowed, over all ranks.
  std::vector<std::string> missing, extra, reshaped;
};

//! A complete checkpoint. The constructor reads only the manifest.
class Checkpoint {
 public:
  //! Opens the directory of one step. Throws CheckpointError if its manifest is missing or damaged.
  explicit Checkpoint(const std::filesystem::path& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::filesystem::path& path() const;
  std::int64_t step() const;
  const Notes& notes() const;
  //! Returns the note with this name; nullopt if there is none.
  std::optional<std::string> note(const std::string& name) const;
  //! Sorted by name, then state.
  const std::vector<StoredTensor>& tensors() const;
  //! The shard files.
  const std::vector<StoredFile>& files() const;
  //! Finds a tensor by name or alias; null if there is none.
  const StoredTensor* find(const std::string& name, const std::string& state = {}) const;

  //! Reads a full tensor. Throws CheckpointError if it is missing or damaged.
  at::Tensor read(const std::string& name, const std::string& state = {}) const;

  //! Fills the `local` tensors of the pieces. Reads only the files and bytes that contain their elements.
  //! Compares everything before it modifies any tensor: throws one CheckpointError that lists all missing and
  //! extra tensors and all differences in shape or dtype.
  LoadReport load(const std::vector<Piece>& pieces, const LoadOptions& options = {}) const;
  //! Collective version for a model distributed over a group. A stored tensor is extra only if no rank
  //! requests it; a tensor missing on one rank is an error on all ranks.
  LoadReport load(const std::vector<Piece>& pieces, const comm::Group& group,
                  const LoadOptions& options = {}) const;
  //! Runs only the comparison of `load`: reads no elements and modifies nothing.
  LoadReport compare(const std::vector<Piece>& pieces, const LoadOptions& options = {}) const;

  //! Reads every byte and returns every problem found; empty if the checkpoint is intact.
  Diagnostics verify() const;
  //! Verifies one file of `files()`, so that ranks can share the work.
  Diagnostics verify_file(std::size_t file) const;

  struct Impl;

 private:
  friend struct Access;
  explicit Checkpoint(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

//! Returns the directory name of a step, such as `step-00000120`.
std::string checkpoint_name(std::int64_t step);

//! A checkpoint in a directory of checkpoints.
struct CheckpointLocation {
  std::int64_t step = 0;
  std::filesystem::path path;
  bool complete = true;  //!< according to its name; the contents are not checked
};

//! Lists the checkpoints in a directory, oldest first.
std::vector<CheckpointLocation> list_checkpoints(const std::filesystem::path& directory);

//! The checkpoint from which a run resumes.
struct ResumePoint {
  Checkpoint checkpoint;
  //! Newer checkpoints that are incomplete or damaged, each with the reason.
  std::vector<std::string> skipped;
};

//! Finds the newest complete and intact checkpoint in a directory; reads every byte. If there is none, throws
//! CheckpointError with the reason for each checkpoint that was skipped.
ResumePoint find_resume_point(const std::filesystem::path& directory);
//! Collective version: each rank reads a share of the files, and all ranks return the same result.
ResumePoint find_resume_point(const std::filesystem::path& directory, const comm::Group& group);

}  // namespace penstock::checkpoint
