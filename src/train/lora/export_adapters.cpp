// Writes adapters in the format of the Python package PEFT.
#include "base/io/storage_error.h"
#include "base/json.h"
#include "base/text.h"
#include "train/loop/measure.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/train/adapters.h>

#include <algorithm>
#include <map>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

AdapterNote note_to_export(const checkpoint::Checkpoint& checkpoint) {
  std::optional<AdapterNote> note = adapter_note(checkpoint);
  if (!note)
    throw UsageError(quote(checkpoint.path().string(), 200) + " contains no adapters", {},
                     "give a checkpoint of a run with LoRA");
  return *std::move(note);
}

std::string config_text(const Lora& lora, const std::string& base) {
  // Of linear layers; PEFT knows how the tables of embeddings are stored.
  std::vector<AdaptedLayer> linear = lora.layers;
  std::erase_if(linear, [](const AdaptedLayer& layer) { return layer.embedding; });
  const bool transposed = !linear.empty() && std::all_of(linear.begin(), linear.end(),
                                                         [](const auto& layer) { return layer.transposed; });
  JsonWriter json;
  json.begin_object().field("peft_type", "LORA").key("base_model_name_or_path");
  base.empty() ? json.null() : json.value(base);
  json.key("task_type").null().field("inference_mode", true).field("r", lora.options.rank);
  json.field("lora_alpha", lora.options.alpha).field("lora_dropout", lora.options.dropout);
  json.field("bias", "none").field("init_lora_weights", true).field("use_rslora", false);
  json.field("fan_in_fan_out", transposed);
  json.key("target_modules").begin_array();
  for (const AdaptedLayer& layer : lora.layers) json.value(layer.module);
  return json.end_array().end_object().text() + "\n";
}

}  // namespace

void export_adapters(const checkpoint::Checkpoint& checkpoint, const fs::path& file) {
  std::map<std::string, at::Tensor> tensors;
  // The factors of an embedding are parameters of its module in PEFT, those of a linear layer are modules.
  for (const AdaptedLayer& layer : note_to_export(checkpoint).lora.layers) {
    const std::string suffix = layer.embedding ? "" : ".weight";
    tensors["base_model.model." + layer.a_module() + suffix] = checkpoint.read(layer.a());
    tensors["base_model.model." + layer.b_module() + suffix] = checkpoint.read(layer.b());
  }
  checkpoint::save_safetensors(file, tensors, {{"format", "pt"}});
}

void export_adapter_directory(const checkpoint::Checkpoint& checkpoint, const fs::path& directory,
                              const std::string& base) {
  const AdapterNote note = note_to_export(checkpoint);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw_storage_error("create", directory.string(), error.value());
  export_adapters(checkpoint, directory / "adapter_model.safetensors");
  write_file(directory / "adapter_config.json", config_text(note.lora, base));
}

}  // namespace penstock::train
