// `penstock checkpoint inspect|verify|convert`: lists the contents of a checkpoint, verifies its checksums,
// and converts between checkpoints and other formats (convert.cpp).
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/convert.h"
#include "report/text_table.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/safetensors.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace penstock::tool {
namespace {

// Notes may span several lines (a configuration). File content is always quoted before it is printed.
std::string note_text(const std::string& name, const std::string& note) {
  if (note.find('\n') == std::string::npos) return "note " + name + ": " + quote(note, 200) + "\n";
  std::string text = "note " + name + ":\n";
  std::istringstream lines(note);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::string shown = quote(line, 200);
    text += "  " + shown.substr(1, shown.size() - 2) + "\n";
  }
  return text;
}

namespace fs = std::filesystem;

std::string summary_of(const checkpoint::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const checkpoint::StoredFile& file : checkpoint.files()) bytes += file.bytes;
  std::string text = str_cat(checkpoint.path().string(), ": step ", checkpoint.step(), ", ",
                             counted(static_cast<std::int64_t>(checkpoint.files().size()), "file"), ", ",
                             format_bytes(bytes), "\n");
  for (const checkpoint::PieceKind kind : {checkpoint::PieceKind::Parameter, checkpoint::PieceKind::Buffer,
                                           checkpoint::PieceKind::Optimizer, checkpoint::PieceKind::Extra}) {
    std::size_t count = 0;
    std::uint64_t size = 0;
    for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
      if (tensor.kind != kind) continue;
      ++count;
      size += tensor.nbytes();
    }
    if (count > 0) {
      text += "  " + std::string(to_string(kind)) + ": " +
              counted(static_cast<std::int64_t>(count), "tensor") + ", " + format_bytes(size) + "\n";
    }
  }
  std::size_t width = 0;
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    width = std::max(width, checkpoint::tensor_title(tensor.name, tensor.state).size());
  }
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    const std::string title = checkpoint::tensor_title(tensor.name, tensor.state);
    text += title + std::string(width + 2 - title.size(), ' ') +
            std::string(checkpoint::safetensors_dtype_name(tensor.dtype)) + " " + format_shape(tensor.shape);
    if (tensor.pieces.size() > 1)
      text += "  in " + counted(static_cast<std::int64_t>(tensor.pieces.size()), "piece");
    if (!tensor.aliases.empty()) text += "  = " + join(tensor.aliases, " = ");
    text += "\n";
  }
  for (const auto& [name, note] : checkpoint.notes()) text += note_text(name, note);
  return text;
}

std::string json_of(const checkpoint::Checkpoint& checkpoint) {
  JsonWriter json;
  json.begin_object()
      .field("path", checkpoint.path().string())
      .field("step", checkpoint.step())
      .key("files")
      .begin_array();
  for (const checkpoint::StoredFile& file : checkpoint.files()) {
    json.begin_object().field("name", file.name).field("bytes", file.bytes).end_object();
  }
  json.end_array().key("notes").begin_object();
  for (const auto& [name, note] : checkpoint.notes()) json.field(name, note);
  json.end_object().key("tensors").begin_array();
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    json.begin_object().field("name", tensor.name).field("kind", to_string(tensor.kind));
    json.field("state", tensor.state)
        .field("dtype", checkpoint::safetensors_dtype_name(tensor.dtype))
        .key("shape")
        .begin_array();
    for (const std::int64_t size : tensor.shape) json.value(size);
    json.end_array().key("aliases").begin_array();
    for (const std::string& alias : tensor.aliases) json.value(alias);
    json.end_array().field("pieces", static_cast<std::uint64_t>(tensor.pieces.size())).end_object();
  }
  json.end_array().end_object();
  return json.text() + "\n";
}

//! The result of verifying one checkpoint.
struct Verdict {
  checkpoint::CheckpointLocation location;
  Diagnostics found;

  bool good() const { return !has_errors(found); }
};

Verdict verify_location(const checkpoint::CheckpointLocation& location) {
  Verdict verdict{location, {}};
  if (!location.complete) {
    verdict.found.push_back(
        {Severity::Warning, location.path.filename().string(), "its write did not complete"});
    return verdict;
  }
  try {
    const checkpoint::Checkpoint checkpoint(location.path);
    verdict.location.step = checkpoint.step();
    verdict.found = checkpoint.verify();
  } catch (const Error& error) {
    verdict.found.push_back({Severity::Error, "manifest.json", error.message()});
  }
  return verdict;
}

int inspect(const std::string& path, bool as_json) {
  const checkpoint::Checkpoint checkpoint = checkpoint::open_checkpoint(path);
  print(as_json ? json_of(checkpoint) : summary_of(checkpoint));
  return 0;
}

int verify(const std::string& path, bool as_json) {
  // `path` is one checkpoint or a directory of checkpoints. A step directory without a manifest counts as a
  // damaged checkpoint.
  std::vector<checkpoint::CheckpointLocation> locations;
  if (!fs::exists(path + "/manifest.json")) locations = checkpoint::list_checkpoints(path);
  if (locations.empty()) locations.push_back({0, path, true});
  bool good = true;
  std::string text;
  JsonWriter json;
  json.begin_object().key("checkpoints").begin_array();
  for (const checkpoint::CheckpointLocation& location : locations) {
    const Verdict verdict = verify_location(location);
    good = good && verdict.good();
    text += location.path.string() + ": " +
            (!location.complete ? "incomplete"
             : verdict.good()   ? "intact"
                                : "DAMAGED") +
            "\n";
    json.begin_object()
        .field("path", location.path.string())
        .field("complete", location.complete)
        .field("ok", verdict.good());
    json.key("findings").begin_array();
    for (const Diagnostic& finding : verdict.found) {
      text += "  " + to_string(finding) + "\n";
      json.begin_object().field("severity", to_string(finding.severity)).field("where", finding.where);
      json.field("message", finding.message).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().field("ok", good).end_object();
  print(as_json ? json.text() + "\n" : text);
  return good ? 0 : 1;
}

}  // namespace

int checkpoint_command(Arguments& arguments) {
  enum class Action { Inspect, Verify, Convert };
  Action action = Action::Inspect;
  std::string path;
  Conversion request;
  arguments.choice<Action>(
      "ACTION", action,
      {{"inspect", Action::Inspect}, {"verify", Action::Verify}, {"convert", Action::Convert}},
      "inspect, verify or convert", Arguments::Need::Required);
  arguments.positional(
      "PATH", path,
      "a checkpoint, or a directory of checkpoints (inspect and convert use the newest); convert: also "
      "a FILE.safetensors or Hugging Face directory");
  arguments.positional("TARGET", request.to, "convert: the FILE.safetensors, FILE.pt2 or directory to write",
                       Arguments::Need::Optional);
  arguments.option("--max-shard-size", request.max_shard_size,
                   "convert: write a Hugging Face directory with files of at most this size, such as 5GB");
  arguments.option("--model", request.model,
                   "convert: the exported model that was trained; the target is a copy with the new weights");
  arguments.flag("--merged", request.merged,
                 "convert: merge the adapters of a LoRA run into their base (for a FILE.safetensors, or with "
                 "--max-shard-size)");
  arguments.option("--rename", request.renames,
                   "convert: map names of tensors and modules, in order, as with train --init-rename: "
                   "blocks.*=transformer.h.*");
  arguments.choice<WeightDtype>("--dtype", request.dtype,
                                {{"stored", WeightDtype::Stored},
                                 {"bf16", WeightDtype::Bfloat16},
                                 {"fp16", WeightDtype::Float16},
                                 {"float32", WeightDtype::Float32}},
                                "convert: dtype of floating-point tensors in safetensors files");
  arguments.flag("--everything", request.everything,
                 "convert: include optimizer state and notes, not only the model");
  arguments.flag("--force", request.force, "convert: overwrite an existing file or checkpoint");
  arguments.parse();
  if (action != Action::Convert && !request.to.empty())
    throw UsageError("checkpoint inspect and verify take one path, not also " + quote(request.to, 200), {},
                     "use checkpoint convert to write a file");
  switch (action) {
    case Action::Inspect:
      return inspect(path, arguments.json());
    case Action::Verify:
      return verify(path, arguments.json());
    case Action::Convert:
      break;
  }
  request.from = path;
  return convert_checkpoint(request, arguments.json());
}

}  // namespace penstock::tool
