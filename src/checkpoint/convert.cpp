// Converts checkpoints to safetensors files and back.
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/directory_lock.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/pieces/save_plan.h"
#include "checkpoint/safetensors/write.h"
#include "checkpoint/weights/hub_names.h"

#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/weights.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

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

//! The tensors of an exported file, and how their elements are read.
struct ExportedTensors {
  std::vector<SafetensorsEntry> entries;  // by name
  std::function<at::Tensor(const std::string& key)> read;
  SafetensorsMetadata metadata;
};

//! Hugging Face's readers require the name of the framework.
SafetensorsMetadata exported_metadata(std::int64_t step) {
  return {{"format", "pt"}, {kStepKey, std::to_string(step)}};
}

ExportedTensors exported_tensors(const Checkpoint& checkpoint, ExportContent content) {
  ExportedTensors exported;
  std::map<std::string, const StoredTensor*> sources;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool model = tensor.kind == PieceKind::Parameter || tensor.kind == PieceKind::Buffer;
    if (!model && content == ExportContent::Model) continue;
    std::vector<std::string> names = {tensor.name};
    if (model) names.insert(names.end(), tensor.aliases.begin(), tensor.aliases.end());
    for (const std::string& name : names) {
      exported.entries.push_back(
          {.name = key_of(tensor, name), .dtype = tensor.dtype, .shape = tensor.shape});
      sources.emplace(exported.entries.back().name, &tensor);
    }
  }
  exported.read = [&checkpoint, sources](const std::string& key) {
    const StoredTensor& tensor = *sources.at(key);
    return checkpoint.read(tensor.name, tensor.state);
  };
  exported.metadata = exported_metadata(checkpoint.step());
  if (content == ExportContent::Everything) {
    for (const auto& [name, text] : checkpoint.notes())
      exported.metadata.emplace(std::string(kNoteKey) + name, text);
  }
  return exported;
}

ExportedTensors exported_tensors(const ComputedWeights& weights) {
  ExportedTensors exported;
  std::map<std::string, std::string> pieces;  // by all names
  for (const Piece& piece : weights.state) {
    pieces.emplace(piece.name, piece.name);
    exported.entries.push_back(
        {.name = piece.name, .dtype = piece.local.scalar_type(), .shape = piece.shape});
    for (const std::string& alias : piece.aliases) {
      pieces.emplace(alias, piece.name);
      exported.entries.push_back({.name = alias, .dtype = piece.local.scalar_type(), .shape = piece.shape});
    }
  }
  std::sort(exported.entries.begin(), exported.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  exported.read = [&weights, pieces](const std::string& key) { return weights.read(pieces.at(key)); };
  exported.metadata = exported_metadata(weights.step);
  return exported;
}

std::uint64_t nbytes_of(const SafetensorsEntry& entry) {
  std::uint64_t bytes = c10::elementSize(entry.dtype);
  for (const std::int64_t size : entry.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

//! Fills one part after the other. Returns at least one part.
std::vector<std::vector<SafetensorsEntry>> split_by_bytes(const std::vector<SafetensorsEntry>& entries,
                                                          std::uint64_t max_bytes) {
  std::vector<std::vector<SafetensorsEntry>> parts(1);
  std::uint64_t filled = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::uint64_t bytes = nbytes_of(entry);
    if (!parts.back().empty() && filled + bytes > max_bytes) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back(entry);
    filled += bytes;
  }
  return parts;
}

void write_index(const std::filesystem::path& path, const std::map<std::string, std::string>& files,
                 std::uint64_t total) {
  JsonWriter json;
  json.begin_object().key("metadata").begin_object().field("total_size", total).end_object();
  json.key("weight_map").begin_object();
  for (const auto& [name, file] : files) json.field(name, file);
  json.end_object().end_object();
  const std::string temporary = path.string() + ".writing";
  const auto file = disk().create(temporary);
  file->write(json.text() + "\n");
  file->finish();
  disk().rename(temporary, path.string());
  disk().sync_directory(parent_directory(path.string()));
}

//! Removes files of an earlier export: readers would find two models.
void remove_stale(const std::filesystem::path& directory, const std::set<std::string>& written) {
  for (const std::string& name : list_directory(directory.string())) {
    const bool part = name.starts_with("model-") && name.find("-of-") != std::string::npos &&
                      name.ends_with(".safetensors");
    if ((part || name == kHubFileName || name == kHubIndexName) && !written.contains(name))
      disk().remove((directory / name).string());
  }
}

//! The step and the notes that an export has recorded in its files.
std::pair<std::int64_t, Notes> recorded_run(const Checkpoint& weights, const std::filesystem::path& source) {
  std::int64_t step = 0;
  Notes notes;
  for (const auto& [key, text] : file_metadata(weights)) {
    if (key.starts_with(kNoteKey)) notes.emplace(key.substr(kNoteKey.size()), text);
    if (key != kStepKey) continue;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc{} || end != text.data() + text.size() || step < 0) {
      throw ParseError(quote(source.string(), 200) + ": " + kStepKey + " is " + quote(text) +
                       ", which is not a valid step");
    }
  }
  return {step, notes};
}

void write_file(ExportedTensors exported, const std::filesystem::path& file) {
  replace_safetensors(file, std::move(exported.entries), exported.read, exported.metadata);
}

std::filesystem::path write_shards(const ExportedTensors& exported, const std::filesystem::path& directory,
                                   std::uint64_t max_bytes) {
  if (max_bytes == 0) throw UsageError("the maximum size of a file must be at least 1 byte");
  const std::vector<std::vector<SafetensorsEntry>> parts = split_by_bytes(exported.entries, max_bytes);
  disk().make_directory(directory.string());
  std::map<std::string, std::string> files;  // by the name of the tensor
  std::set<std::string> written;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name =
        parts.size() == 1 ? kHubFileName : formatted("model-%05zu-of-%05zu.safetensors", i + 1, parts.size());
    for (const SafetensorsEntry& entry : parts[i]) {
      files.emplace(entry.name, name);
      total += nbytes_of(entry);
    }
    replace_safetensors((directory / name).string(), parts[i], exported.read, exported.metadata);
    written.insert(name);
  }
  if (parts.size() > 1) {
    write_index(directory / kHubIndexName, files, total);
    written.insert(kHubIndexName);
  }
  remove_stale(directory, written);
  return directory / (parts.size() > 1 ? kHubIndexName : kHubFileName);
}

}  // namespace

void export_safetensors(const Checkpoint& checkpoint, const std::filesystem::path& file,
                        ExportContent content) {
  write_file(exported_tensors(checkpoint, content), file);
}

void export_safetensors(const ComputedWeights& weights, const std::filesystem::path& file) {
  write_file(exported_tensors(weights), file);
}

std::filesystem::path export_sharded_safetensors(const Checkpoint& checkpoint,
                                                 const std::filesystem::path& directory,
                                                 std::uint64_t max_bytes, ExportContent content) {
  return write_shards(exported_tensors(checkpoint, content), directory, max_bytes);
}

std::filesystem::path export_sharded_safetensors(const ComputedWeights& weights,
                                                 const std::filesystem::path& directory,
                                                 std::uint64_t max_bytes) {
  return write_shards(exported_tensors(weights), directory, max_bytes);
}

std::filesystem::path import_safetensors(const std::filesystem::path& source,
                                         const std::filesystem::path& directory, bool overwrite,
                                         const std::vector<RenameRule>& renames) {
  const bool is_file = !std::filesystem::is_directory(source) && source.extension() != ".json";
  const Checkpoint weights =
      is_file && renames.empty() ? open_safetensors(source) : open_weights(source, renames);
  // The pieces have tensors without memory; the elements are read one tensor at a time.
  std::vector<Piece> pieces;
  for (const StoredTensor& tensor : weights.tensors()) {
    const auto options = at::TensorOptions(tensor.dtype).device(at::kMeta);
    pieces.push_back(piece_of(tensor.name, at::empty(tensor.shape, options)));
    if (!renames.empty() && pieces.back().kind != PieceKind::Parameter)
      throw UsageError(
          quote(source.string(), 200) + " has optimizer states, which rename rules do not change", {},
          "leave out the rules, or export the model without its optimizer states");
  }
  const auto [step, notes] = recorded_run(weights, source);
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
                    [&](std::size_t job) { return weights.read(weights.tensors()[jobs[job].piece].name); });
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
