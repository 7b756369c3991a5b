// Restores the options of the GPT from the configuration in its checkpoint.
#include "commands/trained_gpt.h"

#include "base/text.h"
#include "cli/paths.h"
#include "config/settings.h"
#include "train/preflight/document_inputs.h"
#include "train/preflight/token_data.h"
#include "train/preflight/training_data.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/train/adapters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <map>
#include <memory>

namespace penstock::tool {
namespace {

using StoredSettings = std::map<std::string, SettingValue>;

[[noreturn]] void fail_not_gpt(const std::string& path, const std::string& reason, const std::string& hint) {
  throw UsageError(quote(path, 200) + " is not a checkpoint of the built-in GPT: " + reason, {}, hint);
}

StoredSettings stored_settings(const checkpoint::Checkpoint& checkpoint, const std::string& path) {
  const std::optional<std::string> config = checkpoint.note("config");
  if (!config) fail_not_gpt(path, "it has no configuration", "give a checkpoint of penstock train");
  StoredSettings settings;
  for (ConfigValue& item : read_config_text(*config, path))
    settings.emplace(std::move(item.key), std::move(item.value));
  return settings;
}

template <class T>
T setting(const StoredSettings& settings, const std::string& name, const std::string& path) {
  const auto it = settings.find(name);
  const T* const value = it == settings.end() ? nullptr : std::get_if<T>(&it->second);
  if (value == nullptr)
    fail_not_gpt(path, "its configuration has no " + name, "give a checkpoint of penstock train");
  return *value;
}

// Checkpoints of adapters do not contain the token embedding.
std::int64_t vocabulary_size(const StoredSettings& settings, const checkpoint::Checkpoint& checkpoint,
                             const std::string& path) {
  const checkpoint::StoredTensor* const token = checkpoint.find("token.weight");
  if (token != nullptr && token->shape.size() == 2) return token->shape[0];
  const auto stored = settings.find("vocab");
  const auto* const size = stored == settings.end() ? nullptr : std::get_if<std::int64_t>(&stored->second);
  if (size != nullptr && *size > 0) return *size;
  if (const std::optional<std::string> note = checkpoint.note(kVocabularyNote))
    return static_cast<std::int64_t>(note->size() / 2);
  fail_not_gpt(path, "it has no token embedding", "give a checkpoint of penstock train");
}

models::GptOptions gpt_options(const StoredSettings& settings, const checkpoint::Checkpoint& checkpoint,
                               const std::string& path) {
  if (const auto model = settings.find("model");
      model != settings.end() && !std::get<std::string>(model->second).empty())
    fail_not_gpt(path, "it was written for " + std::get<std::string>(model->second),
                 "give that exported model, too: penstock generate MODEL.pt2 --checkpoint DIR, or "
                 "penstock checkpoint convert DIR FILE --merged --model MODEL.pt2");
  models::GptOptions options;
  options.vocabulary = vocabulary_size(settings, checkpoint, path);
  options.context = setting<std::int64_t>(settings, "seq", path);
  options.layers = setting<std::int64_t>(settings, "layers", path);
  options.heads = setting<std::int64_t>(settings, "heads", path);
  options.width = setting<std::int64_t>(settings, "width", path);
  options.tied = !setting<bool>(settings, "untied", path);
  if (setting<std::string>(settings, "feed-forward", path) == "swiglu")
    options.feed_forward = models::FeedForwardKind::SwiGlu;
  if (setting<std::string>(settings, "positions", path) == "learned")
    options.positions = models::PositionKind::Learned;
  return options;
}

std::string characters_of(const std::string& note) {
  std::string characters;
  for (std::size_t i = 0; i + 2 <= note.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(note.data() + i, note.data() + i + 2, byte, 16);
    characters += static_cast<char>(byte);
  }
  return characters;
}

// Checkpoints of earlier versions have no vocabulary, but name the text that it came from.
train::Vocabulary vocabulary_of(const checkpoint::Checkpoint& checkpoint, const StoredSettings& settings,
                                std::int64_t size, const std::string& path) {
  const std::optional<std::string> note = checkpoint.note(kVocabularyNote);
  train::Vocabulary vocabulary(note ? characters_of(*note)
                                    : training_text(setting<std::string>(settings, "data", path)).content);
  if (vocabulary.size() > size)
    throw UsageError(str_cat("the vocabulary has ", vocabulary.size(), " characters, but the model at ",
                             quote(path, 200), " has ", size, " tokens"),
                     {}, "restore the text that the model was trained on");
  return vocabulary;
}

std::string text_setting(const StoredSettings& settings, const std::string& name, const std::string& usual) {
  const auto stored = settings.find(name);
  return stored == settings.end() ? usual : std::get<std::string>(stored->second);
}

// Sets how text becomes tokens.
void set_codec(TrainedGpt& trained, const StoredSettings& settings, const std::string& path) {
  const std::string name = text_setting(settings, "tokenizer", TrainSettings::kCharacters);
  if (name != TrainSettings::kCharacters) {
    const train::Tokenizer tokenizer = open_tokenizer(name);
    trained.encode = [tokenizer](const std::string& text) {
      const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
      return std::vector<std::int64_t>(tokens.begin(), tokens.end());
    };
    trained.decode = [tokenizer](const std::vector<std::int64_t>& tokens) {
      return tokenizer.decode(tokens);
    };
    return;
  }
  if (are_token_files(setting<std::string>(settings, "data", path))) return;
  const train::Vocabulary vocabulary =
      vocabulary_of(*trained.weights, settings, trained.options.vocabulary, path);
  trained.by_character = true;
  trained.encode = [vocabulary](const std::string& text) { return vocabulary.encode(text); };
  trained.decode = [vocabulary](const std::vector<std::int64_t>& tokens) {
    return vocabulary.decode(tokens);
  };
}

// Adds the adapters of a checkpoint to the weights from which its run started: the initial values of the
// model, or those that the checkpoint names.
void merge_adapters(torch::nn::Module& model, const TrainedGpt& trained) {
  const at::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  std::vector<checkpoint::Piece> state;
  for (const auto& item : parameters)
    state.push_back(checkpoint::full_piece(item.key(), item.value().detach()));
  const auto initial = [&](const std::string& name, std::optional<std::uint64_t> seed) {
    const at::Tensor value = at::empty_like(parameters[name].detach());
    models::initialize_parameter(value, name, trained.options, seed.value_or(trained.seed));
    return value;
  };
  const train::MergedWeights merged(trained.weights, state, initial);
  for (auto& item : parameters) item.value().copy_(merged.read(item.key()));
}

std::int64_t length_of(const std::string& input, std::int64_t context) {
  if (input.empty()) return context;
  check_input_file(input, ".safetensors");
  const checkpoint::SafetensorsEntry entry = checkpoint::SafetensorsFile(input).entry("tokens");
  if (entry.shape.size() != 2 || entry.shape[1] < 1 || entry.shape[1] > context)
    throw UsageError(
        str_cat("the tokens in ", quote(input, 200), " have the shape ", format_shape(entry.shape),
                ", but the GPT needs rows of 1 to ", context, " tokens"),
        {}, "store tokens of shape [examples, time]");
  return entry.shape[1];
}

}  // namespace

graph::Captured capture_trained_gpt(const std::string& path, const std::string& input) {
  models::Gpt model = open_trained_gpt(path).load();
  model->eval();
  graph::ModelTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.parameters.push_back({item.key(), item.value()});
  for (const auto& item : model->named_buffers()) tensors.buffers.push_back({item.key(), item.value()});
  const auto forward = [&](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(model->forward(args.at(0).toTensor()));
  };
  const at::Tensor tokens =
      at::zeros({2, length_of(input, model->options().context)}, at::TensorOptions(at::kLong));
  graph::Captured captured = capture_dynamic(forward, tensors, {tokens});
  captured.graph.value(captured.graph.inputs.at(0).value).name = "tokens";
  return captured;
}

std::string vocabulary_note(const train::Vocabulary& vocabulary) {
  std::string note;
  for (const char character : vocabulary.characters())
    note += formatted("%02x", static_cast<unsigned>(static_cast<unsigned char>(character)));
  return note;
}

TrainedGpt open_trained_gpt(const std::string& path) {
  TrainedGpt trained{std::make_shared<const checkpoint::Checkpoint>(checkpoint::open_checkpoint(path))};
  const StoredSettings settings = stored_settings(*trained.weights, path);
  trained.options = gpt_options(settings, *trained.weights, path);
  trained.seed = static_cast<std::uint64_t>(setting<std::int64_t>(settings, "seed", path));
  set_codec(trained, settings, path);
  trained.separator = separator_token(text_setting(settings, "document-separator", ""), trained.encode);
  return trained;
}

models::Gpt TrainedGpt::load(const std::optional<models::GptPart>& part) const {
  models::Gpt model(options, part);
  if (!train::adapter_note(*weights)) {
    weights->load(checkpoint::module_pieces(*model), {.allow_extra = part.has_value()});
    return model;
  }
  if (!part) {
    merge_adapters(*model, *this);
    return model;
  }
  // The base of adapters is known as a whole.
  const at::NoGradGuard no_grad;
  const models::Gpt complete = load();
  const auto values = complete->named_parameters();
  for (auto& item : model->named_parameters()) item.value().copy_(values[item.key()]);
  return model;
}

}  // namespace penstock::tool
