// Checkpoints on disk, for reading. DIR/step-00000120 holds safetensors files and a manifest that names every
// tensor of the whole model and where its pieces lie; DIR/step-….incomplete is one whose writing did not end.
// docs/checkpoint.md has the format.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/checkpoint/error.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

//! What is stored beside the tensors, as text by name: the configuration, the place in the data, seeds.
using Notes = std::map<std::string, std::string>;

//! A tensor that a checkpoint holds.
struct StoredTensor {
  std::string name;
  std::string state;
  PieceKind kind = PieceKind::Parameter;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::vector<std::string> aliases;

  struct StoredPiece {
    std::size_t file = 0;  //!< in `files()`
    std::string key;       //!< its name in that file
    Part part;             //!< never Whole
    std::uint32_t crc32c = 0;
  };
  std::vector<StoredPiece> pieces;

  std::uint64_t nbytes() const;
};

struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

struct LoadOptions {
  bool allow_missing = false;  //!< leave tensors as they are that the checkpoint lacks
  bool allow_extra =
      false;  //!< parameters, buffers or optimizer states of the checkpoint that nobody asked for
  bool allow_reshaped = false;  //!< leave tensors as they are whose shape differs
  bool convert_dtypes = false;  //!< cast elements to the asked dtype
};

struct LoadReport {
  std::uint64_t bytes_used = 0;  //!< that were copied into pieces of this rank
  std::uint64_t bytes_read = 0;  //!< from files; more where rows are too short to read one by one
  //! What was allowed, by title, over all ranks.
  std::vector<std::string> missing, extra, reshaped;
};

//! A complete checkpoint. Only its manifest is read at first.
class Checkpoint {
 public:
  //! The directory of one step. CheckpointError if it has no manifest or a damaged one.
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::string& path() const;
  std::int64_t step() const;
  const Notes& notes() const;
  //! The note of this name; empty if there is none.
  std::string note(const std::string& name) const;
  //! Sorted by name, then state.
  const std::vector<StoredTensor>& tensors() const;
  const std::vector<StoredFile>& files() const;
  //! By name or alias; null if there is none.
  const StoredTensor* find(const std::string& name, const std::string& state = {}) const;

  //! A whole tensor. CheckpointError if there is none or it is damaged.
  at::Tensor read(const std::string& name, const std::string& state = {}) const;

  //! Fills the `local` tensors of the pieces from whatever files hold their elements, reading those bytes
  //! only. Nothing is changed before everything is found: else one CheckpointError lists all that is missing,
  //! too much or of another shape or dtype.
  LoadReport load(const std::vector<Piece>& pieces, const LoadOptions& options = {}) const;
  //! The same for a model that is spread over the ranks of a group; every rank calls it. What only others
  //! asked for is not too much, and what any rank misses is an error on all.
  LoadReport load(const std::vector<Piece>& pieces, const Group& group,
                  const LoadOptions& options = {}) const;
  //! Only the comparison that `load` begins with: reads no elements and changes nothing.
  LoadReport compare(const std::vector<Piece>& pieces, const LoadOptions& options = {}) const;

  //! Reads every byte and says everything that is wrong; none of it is a whole checkpoint's.
  Diagnostics verify() const;
  //! The same of one file of `files()`, for ranks that share the work.
  Diagnostics verify_file(std::size_t file) const;

  struct Content;

 private:
  std::unique_ptr<Content> content_;
};

//! `step-00000120`.
std::string checkpoint_name(std::int64_t step);

struct CheckpointPlace {
  std::int64_t step = 0;
  std::string path;
  bool complete = true;  //!< by its name; what is in it is another matter
};

//! Those in a directory, oldest first.
std::vector<CheckpointPlace> list_checkpoints(const std::string& directory);

//! Where to go on after an interruption.
struct ResumePoint {
  Checkpoint checkpoint;
  //! Newer ones that are incomplete or damaged, each with the reason.
  std::vector<std::string> passed_over;
};

//! The newest checkpoint of a directory that is complete and undamaged (every byte is read). CheckpointError,
//! with what was passed over, if there is none.
ResumePoint find_resume_point(const std::string& directory);
//! The same on every rank of a group; each reads a share of the files, and all come to the same answer.
ResumePoint find_resume_point(const std::string& directory, const Group& group);

}  // namespace penstock
