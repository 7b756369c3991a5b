// The built-in GPT of a checkpoint.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/graph/capture.h>
#include <penstock/models/gpt.h>
#include <penstock/train/data.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! The GPT that a checkpoint contains, of which any part can be loaded.
struct TrainedGpt {
  std::shared_ptr<const checkpoint::Checkpoint> weights;
  models::GptOptions options{};
  std::uint64_t seed = 0;  // of the initial values
  // Unset if the model was trained on tokens without a tokenizer.
  std::function<std::vector<std::int64_t>(const std::string&)> encode{};
  std::function<std::string(const std::vector<std::int64_t>&)> decode{};
  bool by_character = false;                // if a token is a character, and `encode` drops the others
  std::optional<std::int64_t> separator{};  // the token that ended a document in training

  //! Loads the complete model, or a part of it. Adapters are merged.
  models::Gpt load(const std::optional<models::GptPart>& part = std::nullopt) const;
};

//! Opens the GPT that `penstock train` has stored at `path`: a checkpoint, or a directory of checkpoints.
//! Throws UsageError if it is not a checkpoint of the GPT.
TrainedGpt open_trained_gpt(const std::string& path);

//! Records the graph of this GPT for any number of rows of `tokens`, which have the length of those in the
//! safetensors file `input`, or that of the context if it is empty.
graph::Captured capture_trained_gpt(const std::string& path, const std::string& input);

//! The note in which a checkpoint of the GPT has its vocabulary: the bytes in hexadecimal digits.
inline constexpr const char* kVocabularyNote = "vocabulary";
std::string vocabulary_note(const train::Vocabulary& vocabulary);

}  // namespace penstock::tool
