// Opens checkpoints and provides access to their contents.
#include "base/io/crc32.h"
#include "base/text.h"
#include "checkpoint/commit/access.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/commit/open_checkpoint.h"
#include "checkpoint/pieces/read_region.h"
#include "checkpoint/pieces/regions.h"

#include <penstock/checkpoint/checkpoint.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cerrno>
#include <set>

namespace penstock::checkpoint {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

const char* const kDamagedHint = "use an older checkpoint; `penstock checkpoint verify` lists all damage";

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + kManifestName;
  try {
    return parse_manifest(read_all(file, kMaxManifestBytes), quote(file, 200));
  } catch (const ParseError& error) {
    throw CheckpointError(error.message(), {}, kDamagedHint);
  } catch (const StorageError& error) {
    if (error.code() != ENOENT && error.code() != ENOTDIR) throw;
    throw CheckpointError(quote(path, 200) + " is not a checkpoint: it has no " + kManifestName, {},
                          "give the directory of one step, such as step-00000100");
  }
}

}  // namespace

const SafetensorsFile& Checkpoint::Impl::file(std::size_t index) const {
  const auto it = open.find(index);
  if (it != open.end()) return it->second;
  const StoredFile& stored = manifest.files[index];
  try {
    SafetensorsFile opened(file_path(index));
    return open.emplace(index, std::move(opened)).first->second;
  } catch (const ParseError& error) {
    throw CheckpointError(error.message(), {}, kDamagedHint);
  } catch (const StorageError& error) {
    if (error.code() != ENOENT) throw;
    throw CheckpointError(quote(path.string(), 200) + " is missing the file " + quote(stored.name, 200), {},
                          kDamagedHint);
  }
}

const SafetensorsFile& Checkpoint::Impl::file_of(const StoredTensor& tensor,
                                                 const StoredTensor::StoredPiece& piece) const {
  const SafetensorsFile& found = file(piece.file);
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(numel_of(piece.region, tensor.shape)) * c10::elementSize(tensor.dtype);
  if (!found.has(piece.key) || found.entry(piece.key).dtype != tensor.dtype ||
      found.entry(piece.key).nbytes() != bytes) {
    throw CheckpointError(quote(found.path().string(), 200) + " does not contain " + quote(piece.key, 200) +
                              " as described in the manifest",
                          {}, kDamagedHint);
  }
  return found;
}

void Checkpoint::Impl::index_tensors() {
  locations.clear();
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    locations.emplace(std::pair(tensor.name, tensor.state), i);
    for (const std::string& alias : tensor.aliases) locations.emplace(std::pair(alias, tensor.state), i);
  }
}

Diagnostics Checkpoint::Impl::verify_file(std::size_t index) const {
  const StoredFile& stored = manifest.files[index];
  Diagnostics found;
  const auto wrong = [&](const std::string& message) {
    found.push_back({Severity::Error, stored.name, message});
  };
  try {
    const InputFile input(file_path(index));
    if (input.size() != stored.bytes) {
      wrong(str_cat("has ", input.size(), " bytes, expected ", stored.bytes));
      return found;
    }
    std::vector<std::uint8_t> block(std::min<std::uint64_t>(std::uint64_t{1} << 20, input.size()));
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < input.size(); at += block.size()) {
      const std::span part(block.data(), std::min<std::uint64_t>(block.size(), input.size() - at));
      input.read(at, part);
      crc = crc32c(part, crc);
    }
    if (crc != stored.crc32c) {
      wrong("is damaged: its checksum is " + crc_text(crc) + ", expected " + crc_text(stored.crc32c));
      return found;
    }
    for (const StoredTensor& tensor : manifest.tensors) {
      for (const auto& piece : tensor.pieces) {
        if (piece.file == index) file_of(tensor, piece);
      }
    }
  } catch (const Error& error) {
    wrong(error.message());
  }
  return found;
}

Checkpoint::Checkpoint(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = impl_->directory = path;
  impl_->manifest = read_manifest(path);
  impl_->index_tensors();
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Checkpoint Access::checkpoint(std::unique_ptr<Checkpoint::Impl> impl) {
  impl->index_tensors();
  return Checkpoint(std::move(impl));
}

const Checkpoint::Impl& Access::impl(const Checkpoint& checkpoint) {
  return *checkpoint.impl_;
}

std::unique_ptr<Checkpoint::Impl> Access::release(Checkpoint checkpoint) {
  return std::move(checkpoint.impl_);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const std::filesystem::path& Checkpoint::path() const {
  return impl_->path;
}
std::int64_t Checkpoint::step() const {
  return impl_->manifest.step;
}
const Notes& Checkpoint::notes() const {
  return impl_->manifest.notes;
}
std::optional<std::string> Checkpoint::note(const std::string& name) const {
  const auto it = notes().find(name);
  return it == notes().end() ? std::nullopt : std::optional(it->second);
}
const std::vector<StoredTensor>& Checkpoint::tensors() const {
  return impl_->manifest.tensors;
}
const std::vector<StoredFile>& Checkpoint::files() const {
  return impl_->manifest.files;
}
const StoredTensor* Checkpoint::find(const std::string& name, const std::string& state) const {
  const auto it = impl_->locations.find({name, state});
  return it == impl_->locations.end() ? nullptr : &tensors()[it->second];
}

at::Tensor Checkpoint::read(const std::string& name, const std::string& state) const {
  const StoredTensor* stored = find(name, state);
  if (stored == nullptr)
    throw CheckpointError(quote(path().string(), 200) + " has no " + tensor_title(name, state));
  at::Tensor tensor = at::empty(stored->shape, at::TensorOptions(stored->dtype));
  LoadReport report;
  const PieceFile file_of = [&](const auto& piece) -> const SafetensorsFile& {
    return impl_->file_of(*stored, piece);
  };
  read_part(*stored, {file_of, impl_->has_checksums}, FullTensor{}, tensor, report);
  return tensor;
}

Diagnostics Checkpoint::verify_file(std::size_t file) const {
  return impl_->verify_file(file);
}

Diagnostics Checkpoint::verify() const {
  Diagnostics found;
  for (std::size_t i = 0; i < files().size(); ++i) {
    const Diagnostics of_file = impl_->verify_file(i);
    found.insert(found.end(), of_file.begin(), of_file.end());
  }
  std::set<std::string> known = {kManifestName};
  for (const StoredFile& file : files()) known.insert(file.name);
  for (const std::string& name : list_directory(path())) {
    if (!known.contains(name))
      found.push_back({Severity::Warning, name, "does not belong to the checkpoint"});
  }
  return found;
}

}  // namespace penstock::checkpoint
