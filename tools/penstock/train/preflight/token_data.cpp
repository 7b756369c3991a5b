// Opens token files and texts as examples of language models.
#include "train/preflight/token_data.h"

#include "base/text.h"
#include "cli/arguments.h"
#include "cli/paths.h"
#include "train/preflight/document_inputs.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/training_data.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

// The texts of the data; one is generated if it is empty.
std::vector<std::string> text_files(const std::string& data) {
  return data.empty() || fs::is_regular_file(data) ? std::vector<std::string>{data} : data_files(data);
}

// The characters of the training text. Read once per process.
const train::Vocabulary& letters_of(const TrainSettings& request) {
  static std::mutex mutex;
  static std::map<std::string, train::Vocabulary> all;
  const std::lock_guard lock(mutex);
  const auto known = all.find(request.data);
  if (known != all.end()) return known->second;
  std::string content;
  for (const std::string& file : text_files(request.data)) content += training_text(file).content;
  if (content.empty()) throw UsageError(quote(request.data, 200) + " is empty", {}, "give a text file");
  return all.emplace(request.data, train::Vocabulary(content)).first->second;
}

std::vector<std::uint32_t> encode_characters(const TrainSettings& request, const std::string& text) {
  const train::Vocabulary& letters = letters_of(request);
  const std::vector<std::int64_t> tokens = letters.encode(text);
  if (tokens.size() < text.size()) {
    const auto wrong = text.find_first_not_of(letters.characters());
    throw UsageError(str_cat("character ", wrong, " is ", quote(text.substr(wrong, 1)),
                             ", which is not in the training data"),
                     {}, "use --tokenizer bytes, which has all characters");
  }
  return {tokens.begin(), tokens.end()};
}

// Encodes the texts, one after the other.
std::shared_ptr<const train::TokenStream> encoded_text(const TrainSettings& request,
                                                       const std::string& data) {
  std::optional<train::Tokenizer> tokenizer;
  if (request.has_tokenizer()) tokenizer = open_tokenizer(request.tokenizer);
  std::vector<std::uint32_t> tokens;
  for (const std::string& file : text_files(data)) {
    try {
      const std::string text = training_text(file).content;
      std::vector<std::uint32_t> more =
          tokenizer ? tokenizer->encode(text) : encode_characters(request, text);
      if (tokens.empty())
        tokens = std::move(more);
      else
        tokens.insert(tokens.end(), more.begin(), more.end());
    } catch (const UsageError& wrong) {
      throw UsageError(quote(file, 200) + ": " + wrong.message(), {}, wrong.hint());
    }
  }
  return train::token_memory(std::move(tokens));
}

// A process opens its data several times; a text is encoded once.
std::shared_ptr<const train::TokenStream> encoded_once(const TrainSettings& request,
                                                       const std::string& data) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, std::shared_ptr<const train::TokenStream>> streams;
  const std::lock_guard lock(mutex);
  // The training data decides which tokens characters have.
  auto& stream = streams[{request.tokenizer, request.has_tokenizer() ? "" : request.data, data}];
  if (!stream) stream = encoded_text(request, data);
  return stream;
}

std::shared_ptr<const train::TokenStream> open_tokens(const TrainSettings& request, const std::string& data) {
  if (are_token_files(data) != are_token_files(request.data))
    throw UsageError(quote(data, 200) + " and " + quote(request.data, 200) + " must be of the same kind", {},
                     "use texts, or files of tokens that end in .bin, for both");
  if (!are_token_files(data)) return encoded_once(request, data);
  const std::vector<std::string> files = data_files(data);
  try {
    return train::token_files({files.begin(), files.end()}, request.token_dtype);
  } catch (const UsageError& error) {
    throw UsageError(error.message(), {}, "choose the type of the tokens with --token-dtype");
  }
}

// Reads all tokens of files. Files that take time are announced, on standard error.
std::int64_t largest_token(const TrainSettings& request, const std::string& files) {
  constexpr std::int64_t large = 100'000'000;
  const auto stream = open_tokens(request, files);
  if (stream->size() < large) return train::largest_token(*stream).value_or(0);
  std::fprintf(stderr, "reading the %lld tokens of %s, to find the largest one\n",
               static_cast<long long>(stream->size()), quote(files, 200).c_str());
  std::int64_t next = large;
  return train::largest_token(*stream,
                              [&](std::int64_t count) {
                                if (count < next) return;
                                std::fprintf(stderr, "%lld%% of the tokens are read\n",
                                             static_cast<long long>(100 * count / stream->size()));
                                next += std::max(large, stream->size() / 10);
                              })
      .value_or(0);
}

// The order and the validation rows of sequences are those of any table.
train::TensorDataOptions epoch_options(const TrainSettings& request) {
  train::TensorDataOptions options;
  options.validation_fraction = request.holds_out_rows() ? request.validation : 0;
  options.order = {.shuffle = !request.no_shuffle, .drop_last = request.drop_last, .seed = request.run.seed};
  return options;
}

// Sets what turns text into tokens and back.
void add_codec(GptData& data, const TrainSettings& request) {
  data.encode = text_encoder(request);
  if (!request.reads_tokens()) {
    const train::Vocabulary letters = letters_of(request);
    data.decode = [letters](const std::vector<std::int64_t>& tokens) { return letters.decode(tokens); };
    data.letters = letters;
  } else if (request.has_tokenizer()) {
    const train::Tokenizer tokenizer = open_tokenizer(request.tokenizer);
    data.decode = [tokenizer](const std::vector<std::int64_t>& tokens) { return tokenizer.decode(tokens); };
  }
}

// The size of the vocabulary of the GPT.
std::int64_t gpt_vocabulary(const TrainSettings& request) {
  if (request.reads_tokens()) return request.vocabulary.value();
  const std::int64_t letters = letters_of(request).size();
  if (request.vocabulary.value_or(letters) < letters)
    throw UsageError(str_cat("--vocab ", *request.vocabulary, " is less than the ", letters,
                             " different characters of the text"),
                     {}, "leave it out, or use a larger one");
  return request.vocabulary.value_or(letters);
}

}  // namespace

TextEncoder text_encoder(const TrainSettings& request) {
  if (!request.reads_tokens())
    return [letters = letters_of(request)](const std::string& text) { return letters.encode(text); };
  if (!request.has_tokenizer()) return nullptr;
  return [tokenizer = open_tokenizer(request.tokenizer)](const std::string& text) {
    const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
    return std::vector<std::int64_t>(tokens.begin(), tokens.end());
  };
}

train::Tokenizer open_tokenizer(const std::string& name) {
  if (name == "bytes") return train::Tokenizer::bytes();
  const fs::path file = name;
  std::error_code error;
  if (file.extension() != ".json" && !fs::exists(file, error))
    throw UsageError("--tokenizer " + quote(name, 200) + " is not a tokenizer", {},
                     "use characters, bytes, or a file tokenizer.json");
  check_input_file(name, ".json");
  return train::Tokenizer::load(file);
}

TrainingText training_text(const std::string& path) {
  if (!path.empty())
    return {read_input(path), path == fetched_text() ? "Shakespeare's plays, " + path : path};
  constexpr std::size_t bytes = 400'000;
  return {train::generated_text(bytes), "generated sentences (no text found; use --data FILE.txt)"};
}

GptData gpt_data(const TrainSettings& request) {
  GptData data{.vocabulary = gpt_vocabulary(request), .origin = request.data};
  if (request.data.empty() || request.data == fetched_text())
    data.origin = training_text(request.data).origin;
  const std::int64_t size = open_tokens(request, request.data)->size(), length = request.gpt.context;
  (request.reads_tokens() ? data.tokens : data.characters) = size;
  if (data.characters > 0 && size <= length)
    throw UsageError(str_cat("a text of ", size, " characters is too short for sequences of ", length), {},
                     "use a longer text, or shorter sequences");
  const char* const input = "tokens";
  std::optional<train::DocumentOptions> documents = document_options(request, data.vocabulary);
  if (documents) documents->tensors["positions"] = {train::DocumentTensor::Positions};
  const train::SequenceOptions sequences{length, input, {}, documents};
  train::TensorDataOptions options = epoch_options(request);
  options.positional = {input};
  if (documents) options.keywords = {"positions"};
  options.tokens_per_row = length;
  if (request.run.eval_every && !request.validation_data.empty())
    options.validation = open_sequences(request, request.validation_data, sequences);
  data.source = train::tensor_data(open_sequences(request, request.data, sequences), options);
  add_codec(data, request);
  return data;
}

std::shared_ptr<const train::TensorTable> open_sequences(const TrainSettings& request,
                                                         const std::string& data,
                                                         train::SequenceOptions options) {
  options.vocabulary = request.vocabulary;
  return train::sequence_table(open_tokens(request, data), options);
}

std::shared_ptr<const train::TensorTable> open_sequences(const TrainSettings& request,
                                                         const train::ArchiveModel& model,
                                                         const std::string& data) {
  std::optional<train::DocumentOptions> documents = document_options(request);
  if (model.computes_loss && !model.labels)
    throw UsageError(
        "the labels of a token are the next tokens, but the loss of the model is a mean over rows", {},
        "use --loss-mean auto, or store all inputs in a .safetensors file");
  const LanguageInputs all = language_inputs(model.archive->graph(), documents.has_value(),
                                             model.labels ? std::optional(model.labels->name) : std::nullopt);
  const std::vector<const graph::Value*>& inputs = all.others;
  std::vector<std::string> names;
  for (const graph::Value* const input : inputs) names.push_back(quote(input->name));
  if (!documents && !all.documents.empty()) documents.emplace();
  if (documents) documents->tensors = all.documents;
  if (!model.computes_loss && request.recipe.loss != train::LossKind::CrossEntropy)
    throw UsageError(
        str_cat("the target of a token is the next one, but --loss is ", to_string(request.recipe.loss)), {},
        "leave out --loss, or store inputs and targets in a .safetensors file");
  const bool one = inputs.size() == 1 && inputs[0]->meta && inputs[0]->meta->sizes.size() == 2 &&
                   is_integer(inputs[0]->meta->dtype);
  if (!one)
    throw UsageError(
        "token files are for models that take a batch of sequences as their only input besides "
        "position_ids, attention_mask and labels, but this one takes " +
            join(names, ", "),
        {},
        "export the model with one input of shape [batch, length], name the labels of a loss that it "
        "computes with --labels, or store all inputs in a .safetensors file");
  const graph::Dim& size = inputs[0]->meta->sizes[1];
  if (!request.sequence && !size.expression.empty())
    throw UsageError("the model takes sequences of any length", {},
                     str_cat("give the tokens per example, such as --seq ", size.size));
  if (request.sequence && size.expression.empty() && *request.sequence != size.size)
    throw UsageError(
        str_cat("the model takes sequences of ", size.size, " tokens, but --seq is ", *request.sequence), {},
        str_cat("leave it out, or use --seq ", size.size, ", or export the model with a dynamic length"));
  return open_sequences(request, data,
                        {request.sequence.value_or(size.size), inputs[0]->name, {}, documents, model.labels});
}

bool takes_labels(const std::string& model) {
  static std::mutex mutex;
  static std::map<std::string, bool> known;  // the file is read once per process
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(model); found != known.end()) return found->second;
  const auto is_labels = [](const graph::Graph& graph, const graph::GraphInput& input) {
    const graph::Value& value = graph.value(input.value);
    return value.name == kLabelInput && !input.constant && value.meta && value.meta->sizes.size() == 2 &&
           is_integer(value.meta->dtype);
  };
  bool result = false;
  try {
    const graph::Pt2Archive archive(model);
    const std::vector<graph::GraphInput>& inputs = archive.graph().inputs;
    result = std::any_of(inputs.begin(), inputs.end(),
                         [&](const graph::GraphInput& input) { return is_labels(archive.graph(), input); });
  } catch (const std::exception&) {
    result = false;
  }
  return known[model] = result;
}

void check_vocabulary(const TrainSettings& request, const std::string& data, std::int64_t vocabulary) {
  constexpr std::int64_t chunk = 1 << 16, most = std::int64_t{1} << 28;
  const auto stream = open_tokens(request, data);
  const std::int64_t end = std::min(stream->size(), most);
  std::vector<std::int64_t> tokens;
  for (std::int64_t begin = 0; begin < end; begin += chunk) {
    tokens.resize(static_cast<std::size_t>(std::min(chunk, end - begin)));
    stream->read(begin, tokens);
    const auto wrong =
        std::find_if(tokens.begin(), tokens.end(), [&](std::int64_t token) { return token >= vocabulary; });
    if (wrong == tokens.end()) continue;
    const bool in_file = are_token_files(data);
    throw UsageError(
        str_cat(stream->location(begin + (wrong - tokens.begin())), in_file ? "" : " of " + quote(data, 200),
                " is ", *wrong, ", but the vocabulary of the model has ", counted(vocabulary, "token"),
                " (0 to ", vocabulary - 1, ")"),
        {},
        str_cat(in_file ? "check --token-dtype" : "use the tokenizer of the model",
                ", or export the model with a larger vocabulary"));
  }
}

std::int64_t sequence_length(const train::TensorTable& table) {
  return table.columns().at("target").shape[1];
}

void resolve_vocabulary(TrainSettings& request) {
  if (!request.built_in() || !request.reads_tokens()) return;
  const bool given = request.vocabulary.has_value(), files_of_tokens = are_token_files(request.data);
  std::int64_t needed = request.has_tokenizer() ? open_tokenizer(request.tokenizer).size() : 1;
  if (given && *request.vocabulary < needed)
    throw UsageError(str_cat("the tokenizer has ", needed, " tokens, but --vocab is ", *request.vocabulary),
                     {}, str_cat("leave it out, or use --vocab ", needed, " or more"));
  for (const std::string& files : {request.data, request.validation_data})
    if (files_of_tokens && !files.empty()) needed = std::max(needed, largest_token(request, files) + 1);
  if (!given) request.vocabulary = needed;
  if (*request.vocabulary < needed)
    throw UsageError(
        str_cat("the data has a token ", needed - 1, ", but --vocab is ", *request.vocabulary), {},
        str_cat("use --vocab ", needed, " or more, or check --token-dtype ", to_string(request.token_dtype)));
}

}  // namespace penstock::tool
