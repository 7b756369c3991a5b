// Converts checkpoints to single safetensors files and back.
#include "base/text.h"
#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/directory_lock.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/pieces/save_plan.h"
#include "checkpoint/safetensors/write.h"

#include <penstock/checkpoint/convert.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <charconv>
#include <filesystem>
#include <map>

namespace penstock::checkpoint {
namespace {

constexpr const char* kStepKey = "penstock.step";
constexpr std::string_view kNoteKey = "penstock.note.", kOptimizerKey = "optimizer/", kExtraKey = "extra/";

std::string key_of(const StoredTensor& tensor, const std::string& name) {
  switch (tensor.kind) {
    case PieceKind::Parameter:
    case PieceKind::Buffer:
      return name;
    case PieceKind::Optimizer:
      return std::string(kOptimizerKey) + tensor.state + "/" + name;
    case PieceKind::Extra:
      return std::string(kExtraKey) + name;
  }
  return {};
}

//! Returns the piece that a key of the file denotes.
Piece piece_of(const std::string& key, const at::Tensor& tensor) {
  if (key.starts_with(kExtraKey)) return full_piece(key.substr(kExtraKey.size()), tensor, PieceKind::Extra);
  const std::size_t slash = key.find('/', kOptimizerKey.size());
  if (!key.starts_with(kOptimizerKey) || slash == std::string::npos) return full_piece(key, tensor);
  Piece piece = full_piece(key.substr(slash + 1), tensor, PieceKind::Optimizer);
  piece.state = key.substr(kOptimizerKey.size(), slash - kOptimizerKey.size());
  return piece;
}

}  // namespace

void export_safetensors(const Checkpoint& checkpoint, const std::filesystem::path& file,
                        ExportContent content) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const StoredTensor*> sources;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool model = tensor.kind == PieceKind::Parameter || tensor.kind == PieceKind::Buffer;
    if (!model && content == ExportContent::Model) continue;
    std::vector<std::string> names = {tensor.name};
    if (model) names.insert(names.end(), tensor.aliases.begin(), tensor.aliases.end());
    for (const std::string& name : names) {
      entries.push_back({.name = key_of(tensor, name), .dtype = tensor.dtype, .shape = tensor.shape});
      sources.emplace(entries.back().name, &tensor);
    }
  }
  // Hugging Face's readers require the name of the framework.
  SafetensorsMetadata metadata = {{"format", "pt"}, {kStepKey, std::to_string(checkpoint.step())}};
  if (content == ExportContent::Everything) {
    for (const auto& [name, text] : checkpoint.notes()) metadata.emplace(std::string(kNoteKey) + name, text);
  }
  const auto tensor_of = [&](const std::string& key) {
    const StoredTensor& tensor = *sources.at(key);
    return checkpoint.read(tensor.name, tensor.state);
  };
  replace_safetensors(file, std::move(entries), tensor_of, metadata);
}

std::filesystem::path import_safetensors(const std::filesystem::path& file,
                                         const std::filesystem::path& directory, bool overwrite) {
  const SafetensorsFile source(file);
  std::int64_t step = 0;
  Notes notes;
  for (const auto& [key, text] : source.metadata()) {
    if (key.starts_with(kNoteKey)) notes.emplace(key.substr(kNoteKey.size()), text);
    if (key != kStepKey) continue;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc{} || end != text.data() + text.size() || step < 0) {
      throw ParseError(quote(file.string(), 200) + ": " + kStepKey + " is " + quote(text) +
                       ", which is not a valid step");
    }
  }
  // The pieces have tensors without memory; the elements are read one tensor at a time.
  std::vector<Piece> pieces;
  for (const SafetensorsEntry& entry : source.entries()) {
    const auto options = at::TensorOptions(entry.dtype).device(at::kMeta);
    pieces.push_back(piece_of(entry.name, at::empty(entry.shape, options)));
  }
  const SavePlan plan = plan_save({describe_pieces(pieces)});
  const std::vector<SavePlan::Job>& jobs = plan.jobs[0];

  const CommitPaths paths(directory, step);
  make_root(disk(), paths.root);
  DirectoryLock lock(directory);
  lock.hold();
  if (!overwrite && std::filesystem::exists(paths.complete))
    throw UsageError(quote(paths.complete, 200) + " already exists", {},
                     "set overwrite, or use another directory");
  prepare(disk(), paths);
  Manifest manifest{step, notes, plan.files, plan.tensors};
  if (!jobs.empty()) {
    const WrittenShard written =
        write_shard(disk(), paths.incomplete + "/" + plan.files[0].name, plan, jobs,
                    [&](std::size_t job) { return source.load(source.entries()[jobs[job].piece].name); });
    manifest.files[0].bytes = written.bytes;
    manifest.files[0].crc32c = written.crc32c;
    for (std::size_t i = 0; i < jobs.size(); ++i)
      manifest.tensors[jobs[i].tensor].pieces[jobs[i].stored_piece].crc32c = written.pieces[i];
  }
  commit(disk(), paths, manifest);
  return paths.complete;
}

Checkpoint open_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / kManifestName)) return Checkpoint(path);
  std::vector<CheckpointLocation> locations = list_checkpoints(path);
  std::erase_if(locations, [](const CheckpointLocation& location) { return !location.complete; });
  if (locations.empty())
    throw CheckpointError(quote(path.string(), 200) +
                          " is not a checkpoint and contains no complete checkpoint");
  return Checkpoint(locations.back().path);
}

}  // namespace penstock::checkpoint
