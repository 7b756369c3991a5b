// Converts between checkpoints, safetensors files, directories of Hugging Face and exported models.
#include "commands/convert.h"

#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/paths.h"
#include "cli/units.h"
#include "commands/trained_weights.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/output_paths.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/weights.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/pt2_copy.h>
#include <penstock/train/adapters.h>

#include <filesystem>
#include <memory>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForms =
    "use convert DIR FILE.safetensors, convert FILE.safetensors DIR, convert DIR DIR --max-shard-size 5GB, "
    "or "
    "convert DIR FILE.pt2 --model MODEL.pt2";

bool is_hub_directory(const fs::path& path) {
  return fs::exists(path / "model.safetensors") || fs::exists(path / "model.safetensors.index.json");
}

checkpoint::ExportContent content_of(const Conversion& request) {
  return request.everything ? checkpoint::ExportContent::Everything : checkpoint::ExportContent::Model;
}

void check_new(const Conversion& request, const fs::path& path) {
  if (fs::exists(path) && !request.force)
    throw UsageError(quote(path.string(), 200) + " already exists", {},
                     "use --force to overwrite it, or choose another name");
}

void refuse_checkpoint(const Conversion& request) {
  std::error_code error;  // of a target that does not exist yet
  if (fs::exists(fs::path(request.to) / "manifest.json") || fs::equivalent(request.from, request.to, error))
    throw UsageError(quote(request.to, 200) + " is a checkpoint", {}, "use another directory");
}

// The weights of a checkpoint, with its adapters merged, other names and another dtype as requested.
checkpoint::ComputedWeights computed_weights(const Conversion& request) {
  const auto stored = [&] {
    return weights_of(
        std::make_shared<const checkpoint::Checkpoint>(checkpoint::open_checkpoint(request.from)));
  };
  checkpoint::ComputedWeights weights =
      request.merged ? merged_weights(request.model, request.from) : stored();
  if (!request.renames.empty()) weights = with_names(weights, read_renames(request.renames));
  return with_dtype(weights, request.dtype);
}

std::string to_file(const Conversion& request) {
  if (fs::is_directory(request.to)) throw UsageError(quote(request.to, 200) + " is a directory", {}, kForms);
  check_safetensors_output(request.to, "TARGET");
  check_new(request, request.to);
  if (request.merged || request.changes_weights()) {
    export_safetensors(computed_weights(request), request.to);
    return request.to;
  }
  const checkpoint::Checkpoint checkpoint = checkpoint::open_checkpoint(request.from);
  if (train::adapter_note(checkpoint) && !request.everything) {
    train::export_adapters(checkpoint, request.to);
  } else {
    export_safetensors(checkpoint, request.to, content_of(request));
  }
  return request.to;
}

// Adapters to a directory in the format of PEFT.
std::string to_adapters(const Conversion& request) {
  if (!request.max_shard_size.empty())
    throw UsageError(
        "--max-shard-size is for complete models, but " + quote(request.from, 200) + " contains adapters", {},
        "merge them with --merged, or leave it out: adapters are written to one file");
  if (fs::exists(request.to) && !fs::is_directory(request.to))
    throw UsageError(quote(request.to, 200) + " is a file", {},
                     "adapters are written to a FILE.safetensors or to a directory");
  refuse_checkpoint(request);
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"})
    check_new(request, fs::path(request.to) / name);
  train::export_adapter_directory(checkpoint::open_checkpoint(request.from), request.to);
  return request.to;
}

bool has_adapters(const Conversion& request) {
  return !request.merged && train::adapter_note(checkpoint::open_checkpoint(request.from)).has_value();
}

bool writes_adapters(const Conversion& request) {
  return !request.everything && !request.to.ends_with(".safetensors") && has_adapters(request);
}

std::string to_shards(const Conversion& request) {
  const auto bytes = static_cast<std::uint64_t>(parse_bytes(request.max_shard_size));
  if (bytes == 0) throw UsageError("--max-shard-size must be at least 1 byte", {}, "for example 5GB");
  if (fs::exists(request.to) && !fs::is_directory(request.to))
    throw UsageError(quote(request.to, 200) + " is a file", {},
                     "with --max-shard-size, the target is a directory");
  if (request.to.ends_with(".safetensors"))
    throw UsageError("--max-shard-size writes several files, but " + quote(request.to, 200) + " is one", {},
                     "give a directory as the target");
  refuse_checkpoint(request);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    check_new(request, fs::path(request.to) / name);
  if (request.merged || request.changes_weights())
    return export_sharded_safetensors(computed_weights(request), request.to, bytes).string();
  return checkpoint::export_sharded_safetensors(checkpoint::open_checkpoint(request.from), request.to, bytes,
                                                content_of(request))
      .string();
}

std::string to_checkpoint(const Conversion& request) {
  if (fs::exists(request.to) && !fs::is_directory(request.to))
    throw UsageError(quote(request.to, 200) + " is a file", {},
                     "convert FILE.safetensors DIR needs a directory as its target");
  try {
    return checkpoint::import_safetensors(request.from, request.to, request.force,
                                          read_renames(request.renames));
  } catch (const UsageError& error) {
    if (!error.message().ends_with(" exists")) throw;
    throw UsageError(error.message(), error.context(),
                     "use --force to overwrite it, or choose another directory");
  }
}

std::string to_archive(const Conversion& request) {
  if (request.model.empty())
    throw UsageError("an exported model needs the archive that was trained", {},
                     "give it with --model MODEL.pt2, or choose a FILE.safetensors as the target");
  if (!to_lower(request.to).ends_with(".pt2"))
    throw UsageError("--model needs a target that ends in .pt2, not " + quote(request.to, 200), {}, kForms);
  if (request.everything)
    throw UsageError("an exported model contains no optimizer states", {}, "leave out --everything");
  check_output_file("TARGET", request.to, {request.model, request.from});
  check_new(request, request.to);
  const auto archive = std::make_shared<const graph::Pt2Archive>(open_archive(request.model));
  graph::copy_archive(request.model, request.to,
                      trained_values(archive, request.from, read_renames(request.renames)));
  return request.to;
}

void check_merged(const Conversion& request) {
  if (request.everything)
    throw UsageError("--merged writes a model, without optimizer states", {}, "leave out --everything");
  if (!fs::is_directory(request.from) || is_hub_directory(request.from))
    throw UsageError(
        "--merged merges the adapters of a checkpoint, but " + quote(request.from, 200) + " is none", {},
        "give a checkpoint of a run with LoRA");
}

void check_changes(const Conversion& request, bool to_weights) {
  if (request.dtype != WeightDtype::Stored && !to_weights)
    throw UsageError("--dtype is for weights that are written to safetensors files", {},
                     "leave it out: a checkpoint or an archive keeps the dtypes of its tensors");
  if (request.changes_weights() && request.everything)
    throw UsageError(
        "--rename and --dtype change the model, but --everything writes its optimizer states, too", {},
        "leave out --everything");
}

std::string converted(const Conversion& request) {
  if (request.merged) check_merged(request);
  const bool is_archive =
      (!request.model.empty() && !request.merged) || to_lower(request.to).ends_with(".pt2");
  const bool reads_weights = !fs::is_directory(request.from) || is_hub_directory(request.from);
  check_changes(request, !is_archive && !reads_weights);
  if (is_archive) return to_archive(request);
  if (reads_weights) {
    if (!request.max_shard_size.empty())
      throw UsageError("--max-shard-size converts a checkpoint, but " + quote(request.from, 200) + " is none",
                       {}, "convert it to a checkpoint first");
    return to_checkpoint(request);
  }
  if (request.changes_weights() && has_adapters(request))
    throw UsageError("--rename and --dtype do not apply to adapters, whose names are those of PEFT", {},
                     "merge them with --merged, or leave the options out");
  if (writes_adapters(request)) return to_adapters(request);
  return request.max_shard_size.empty() ? to_file(request) : to_shards(request);
}

}  // namespace

int convert_checkpoint(const Conversion& request, bool as_json) {
  if (request.to.empty()) throw UsageError("checkpoint convert needs a target", {}, kForms);
  const std::string created = converted(request);
  JsonWriter json;
  json.begin_object().field("made", created).end_object();
  print(as_json ? json.text() + "\n" : "made " + created + "\n");
  return 0;
}

}  // namespace penstock::tool
