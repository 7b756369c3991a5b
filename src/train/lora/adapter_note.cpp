// Writes, reads and compares the notes about adapters.
#include "train/lora/adapter_note.h"

#include "base/io/json_reader.h"
#include "base/json.h"
#include "base/number_text.h"
#include "base/text.h"
#include "train/lora/base_weights.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <filesystem>

namespace penstock::train {
namespace {

constexpr const char* kNotePlace = "the note about adapters";

void write_init(JsonWriter& json, const InitialWeights& init) {
  json.key("init").begin_object().field("path", std::filesystem::absolute(init.path).string());
  json.key("renames").begin_array();
  for (const checkpoint::RenameRule& rule : init.renames) json.value(rule.from + "=" + rule.to);
  json.end_array().field("partly", init.allow_partial).end_object();
}

InitialWeights read_init(const JsonValue& value) {
  InitialWeights init{.path = string_at(field(value, "path", kNotePlace), kNotePlace),
                      .renames = {},
                      .allow_partial = bool_at(field(value, "partly", kNotePlace), kNotePlace)};
  for (const JsonValue& rule : array_at(field(value, "renames", kNotePlace), kNotePlace))
    init.renames.push_back(checkpoint::parse_rename_rule(string_at(rule, kNotePlace)));
  return init;
}

std::string described(const Lora& lora) {
  return str_cat(to_string(lora), " (", join(lora.options.patterns, ", "), ") and alpha ",
                 decimal_text(lora.options.alpha));
}

bool same_adapters(const Lora& one, const Lora& other) {
  const auto same_layer = [](const AdaptedLayer& a, const AdaptedLayer& b) { return a.module == b.module; };
  return one.options.rank == other.options.rank && one.options.alpha == other.options.alpha &&
         std::equal(one.layers.begin(), one.layers.end(), other.layers.begin(), other.layers.end(),
                    same_layer);
}

}  // namespace

std::optional<AdapterNote> adapter_note_of(const Model& model, const std::optional<InitialWeights>& init) {
  if (model.lora() == nullptr) return std::nullopt;
  return AdapterNote{*model.lora(), init, base_of(model, init).checksum()};
}

std::string to_json(const AdapterNote& note) {
  const LoraOptions& options = note.lora.options;
  JsonWriter json;
  json.begin_object().field("rank", options.rank).field("alpha", options.alpha);
  json.field("dropout", options.dropout).field("seed", options.seed).key("patterns").begin_array();
  for (const std::string& pattern : options.patterns) json.value(pattern);
  json.end_array().key("layers").begin_array();
  for (const AdaptedLayer& layer : note.lora.layers)
    json.begin_object()
        .field("module", layer.module)
        .field("weight", layer.weight)
        .field("transposed", layer.transposed)
        .field("embedding", layer.embedding)
        .end_object();
  json.end_array().field("base_checksum", static_cast<std::uint64_t>(note.base_checksum));
  if (note.init) write_init(json, *note.init);
  return json.end_object().text();
}

AdapterNote parse_adapter_note(const std::string& text) {
  const JsonValue json = parse_json(text, kNotePlace);
  const auto at = [&](const char* name) -> const JsonValue& { return field(json, name, kNotePlace); };
  AdapterNote note;
  LoraOptions& options = note.lora.options;
  options.rank = integer_at(at("rank"), kNotePlace);
  options.alpha = real_at(at("alpha"), kNotePlace);
  options.dropout = real_at(at("dropout"), kNotePlace);
  options.seed = at("seed").unsigned_integer().value_or(1);
  if (options.rank < 1) fail_at(kNotePlace, "rank must be at least 1");
  for (const JsonValue& pattern : array_at(at("patterns"), kNotePlace))
    options.patterns.push_back(string_at(pattern, kNotePlace));
  for (const JsonValue& layer : array_at(at("layers"), kNotePlace)) {
    const auto name = [&](const char* key) { return string_at(field(layer, key, kNotePlace), kNotePlace); };
    const JsonValue* const embedding = optional_field(layer, "embedding", kNotePlace);  // missing at first
    note.lora.layers.push_back({name("module"), name("weight"),
                                bool_at(field(layer, "transposed", kNotePlace), kNotePlace),
                                embedding != nullptr && bool_at(*embedding, kNotePlace)});
  }
  note.base_checksum = static_cast<std::uint32_t>(at("base_checksum").unsigned_integer().value_or(0));
  if (const JsonValue* const init = optional_field(json, "init", kNotePlace)) note.init = read_init(*init);
  return note;
}

std::optional<AdapterNote> adapter_note(const checkpoint::Notes& notes) {
  const auto found = notes.find(kAdapterNote);
  return found == notes.end() ? std::nullopt : std::optional(parse_adapter_note(found->second));
}

std::optional<AdapterNote> adapter_note(const checkpoint::Checkpoint& checkpoint) {
  return adapter_note(checkpoint.notes());
}

void check_same_adapters(const std::optional<AdapterNote>& stored, const std::optional<AdapterNote>& now) {
  if (!stored && !now) return;
  if (!stored)
    throw UsageError("the checkpoint was written by a run without LoRA", {},
                     "start a new run with it as its initial weights, or resume without LoRA");
  if (!now)
    throw UsageError("the checkpoint contains only the adapters of a run with " + described(stored->lora), {},
                     "resume with the LoRA options of that run");
  if (!same_adapters(stored->lora, now->lora))
    throw UsageError("the checkpoint contains adapters of another kind: " + described(stored->lora) +
                         "; this run has " + described(now->lora),
                     {}, "resume with the LoRA options of the run that wrote it");
  if (stored->base_checksum != now->base_checksum)
    throw UsageError("the adapters in the checkpoint were trained on other base weights", {},
                     "resume with the model and the initial weights of the run that wrote them");
}

}  // namespace penstock::train
