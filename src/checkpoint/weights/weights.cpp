// Describes safetensors files by a manifest, so that they are loaded like checkpoints.
#include "base/io/json_reader.h"
#include "base/text.h"
#include "checkpoint/commit/access.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/commit/open_checkpoint.h"
#include "checkpoint/weights/hub_names.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/weights.h>

#include <algorithm>
#include <cerrno>

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;

using WeightsImpl = std::unique_ptr<Checkpoint::Impl>;

StoredTensor whole_tensor(const SafetensorsEntry& entry, std::size_t file) {
  StoredTensor tensor{.name = entry.name, .dtype = entry.dtype, .shape = entry.shape};
  Box box{std::vector<std::int64_t>(entry.shape.size(), 0), entry.shape};
  tensor.pieces.push_back({.file = file, .key = entry.name, .region = std::move(box)});
  return tensor;
}

//! Opens a file of the directory and returns its index.
std::size_t add_file(Checkpoint::Impl& impl, const std::string& name) {
  const std::size_t index = impl.manifest.files.size();
  impl.manifest.files.push_back({.name = name});
  impl.open.emplace(index, SafetensorsFile(impl.file_path(index)));
  return index;
}

WeightsImpl open_file(const fs::path& path) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->path = path;
  impl->directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
  impl->has_checksums = false;
  const std::size_t file = add_file(*impl, path.filename().string());
  for (const SafetensorsEntry& entry : impl->open.at(file).entries())
    impl->manifest.tensors.push_back(whole_tensor(entry, file));
  return impl;
}

//! Reads `{"weight_map": {"a.weight": "model-00001-of-00002.safetensors", …}}`, which is untrusted.
std::map<std::string, std::vector<std::string>> names_by_file(const fs::path& index) {
  const std::string where = quote(index.string(), 200);
  const JsonValue content = parse_json(read_all(index.string(), kMaxIndexBytes), where);
  std::map<std::string, std::vector<std::string>> names;
  for (const JsonMember& member : object_at(field(content, "weight_map", where), where + ", weight_map")) {
    const std::string& file = string_at(member.value, where + ", weight_map");
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos)
      throw ParseError(where + ": " + quote(file, 200) + " is not the name of a file in the same directory");
    names[file].push_back(member.name);
  }
  return names;
}

WeightsImpl open_index(const fs::path& path, const fs::path& index) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->path = path;
  impl->directory = index.has_parent_path() ? index.parent_path() : fs::path(".");
  impl->has_checksums = false;
  std::vector<std::string> problems;
  for (const auto& [name, tensors] : names_by_file(index)) {
    if (!fs::exists(impl->directory / name)) {
      problems.push_back("the file " + quote(name, 200) + " is missing");
      continue;
    }
    const std::size_t file = add_file(*impl, name);
    const SafetensorsFile& opened = impl->open.at(file);
    for (const std::string& tensor : tensors) {
      if (opened.has(tensor)) {
        impl->manifest.tensors.push_back(whole_tensor(opened.entry(tensor), file));
      } else {
        problems.push_back(quote(name, 200) + " does not contain " + quote(tensor, 200));
      }
    }
  }
  if (!problems.empty())
    throw CheckpointError(
        quote(index.string(), 200) + " does not match its files:\n  " + join(problems, "\n  "), {},
        "copy or download the directory again");
  return impl;
}

//! The parameters and buffers of a checkpoint.
WeightsImpl open_run(const fs::path& path) {
  WeightsImpl impl = Access::release(open_checkpoint(path));
  std::erase_if(impl->manifest.tensors, [](const StoredTensor& tensor) {
    return tensor.kind != PieceKind::Parameter && tensor.kind != PieceKind::Buffer;
  });
  return impl;
}

WeightsImpl open_any(const fs::path& path) {
  const std::string shown = quote(path.string(), 200);
  if (!fs::exists(path)) throw UsageError("there are no weights at " + shown, {}, "check the path");
  if (!fs::is_directory(path)) {
    if (path.string().ends_with(".index.json")) return open_index(path, path);
    if (path.extension() == ".safetensors") return open_file(path);
    throw UsageError(shown + " is not a .safetensors file", {},
                     "store the weights with save_file of the Python package safetensors");
  }
  if (fs::exists(path / kHubIndexName)) return open_index(path, path / kHubIndexName);
  if (fs::exists(path / kHubFileName)) return open_file(path / kHubFileName);
  try {
    return open_run(path);
  } catch (const CheckpointError& error) {
    if (fs::exists(path / kManifestName) || !list_checkpoints(path).empty()) throw;
    throw UsageError(shown + " contains no weights", {},
                     str_cat("give a directory with ", kHubFileName, " or ", kHubIndexName,
                             ", or a directory of checkpoints"));
  }
}

void rename_all(Checkpoint::Impl& impl, const std::vector<RenameRule>& rules) {
  std::vector<int> uses(rules.size(), 0);
  std::vector<std::string> names;
  std::map<std::string, std::string> origins;  // by the new name
  const auto rename = [&](std::string& name) {
    names.push_back(name);
    std::string changed = renamed(name, rules, uses);
    if (changed.empty())
      throw UsageError("a rename rule removes the complete name " + quote(name, 200), {},
                       "give it a new name");
    const auto [origin, fresh] = origins.emplace(changed, name);
    if (!fresh)
      throw UsageError("rename rules give " + quote(origin->second, 200) + " and " + quote(name, 200) +
                           " the same name " + quote(changed, 200),
                       {}, "make the rules more specific");
    name = std::move(changed);
  };
  for (StoredTensor& tensor : impl.manifest.tensors) {
    rename(tensor.name);
    for (std::string& alias : tensor.aliases) rename(alias);
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (uses[i] > 0) continue;
    throw UsageError("no tensor of " + quote(impl.path.string(), 200) + " matches the rename rule " +
                         quote(rules[i].from + "=" + rules[i].to, 200),
                     {},
                     did_you_mean(rules[i].from, names,
                                  "rules apply in order, each to the names that the previous ones made"));
  }
}

}  // namespace

Checkpoint open_safetensors(const fs::path& file) {
  return Access::checkpoint(open_file(file));
}

SafetensorsMetadata file_metadata(const Checkpoint& weights) {
  return Access::impl(weights).manifest.files.empty() ? SafetensorsMetadata{}
                                                      : Access::impl(weights).file(0).metadata();
}

Checkpoint open_weights(const fs::path& path, const std::vector<RenameRule>& rules) {
  WeightsImpl impl = open_any(path);
  if (!rules.empty()) rename_all(*impl, rules);
  std::sort(impl->manifest.tensors.begin(), impl->manifest.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  return Access::checkpoint(std::move(impl));
}

}  // namespace penstock::checkpoint
