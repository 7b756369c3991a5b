// The examples of a language model: token files for either model, and texts for the built-in GPT.
#pragma once

#include "config/train_settings.h"

#include <penstock/train/data.h>
#include <penstock/train/model.h>
#include <penstock/train/tokenizer.h>
#include <penstock/train/tokens.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

struct TrainingText {
  std::string content, origin;
};
//! Reads a text file, or generates sentences if the path is empty.
TrainingText training_text(const std::string& path);

//! Turns a text into tokens. Unset if tokens have no text.
using TextEncoder = std::function<std::vector<std::int64_t>(const std::string&)>;

//! The data of the built-in GPT.
struct GptData {
  std::unique_ptr<train::DataSource> source;
  std::int64_t vocabulary = 0;
  std::string origin;                       //!< the file, or what is generated
  std::int64_t characters = 0, tokens = 0;  //!< of the data; only the number of its unit is set
  TextEncoder encode{};
  std::function<std::string(const std::vector<std::int64_t>&)> decode{};
  std::optional<train::Vocabulary> letters{};  //!< set if the tokens are characters of the text
};
//! Opens the data. Throws UsageError if it does not fit the options.
GptData gpt_data(const TrainSettings& request);

//! How the text of this run becomes tokens: by its tokenizer, or by the characters of the training text.
TextEncoder text_encoder(const TrainSettings& request);

//! Opens `bytes` or a file. Throws UsageError for anything else.
train::Tokenizer open_tokenizer(const std::string& name);

//! Opens the sequences of `data` as a table, with the vocabulary of the request. Requires
//! `request.reads_tokens()`.
std::shared_ptr<const train::TensorTable> open_sequences(const TrainSettings& request,
                                                         const std::string& data,
                                                         train::SequenceOptions options);
//! The same for an exported model, with tensors named after its inputs. Throws UsageError if the model takes
//! other inputs than a batch of sequences, positions and masks, and the labels of its own loss.
std::shared_ptr<const train::TensorTable> open_sequences(const TrainSettings& request,
                                                         const train::ArchiveModel& model,
                                                         const std::string& data);
//! Throws a UsageError that names file, position and vocabulary if a token of `data` is outside the
//! vocabulary of an exported model. Reads at most the first GiB.
void check_vocabulary(const TrainSettings& request, const std::string& data, std::int64_t vocabulary);

//! Whether the exported model in a file takes labels of sequences: integers of two dims. False if it cannot
//! be opened, which the checks report.
bool takes_labels(const std::string& model);

//! The number of tokens per example of a table of sequences.
std::int64_t sequence_length(const train::TensorTable& table);

//! Sets `vocabulary` from the tokenizer and the largest token if it was not given: reads all tokens of the
//! files. Throws UsageError if the tokens do not fit the vocabulary.
void resolve_vocabulary(TrainSettings& request);

}  // namespace penstock::tool
