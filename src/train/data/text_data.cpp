// Maps characters to tokens, and serves the sequences of a text as training data.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>
#include <penstock/train/tokens.h>

#include <array>

namespace penstock::train {

Vocabulary::Vocabulary(std::string_view text) {
  std::array<bool, 256> seen{};
  for (const char c : text) seen[static_cast<unsigned char>(c)] = true;
  for (std::size_t c = 0; c < seen.size(); ++c)
    if (seen[c]) characters_ += static_cast<char>(c);
  if (characters_.empty()) throw UsageError("the text is empty");
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  std::array<std::int64_t, 256> number{};
  number.fill(-1);
  for (std::size_t i = 0; i < characters_.size(); ++i)
    number[static_cast<unsigned char>(characters_[i])] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text)
    if (const auto n = number[static_cast<unsigned char>(c)]; n >= 0) tokens.push_back(n);
  return tokens;
}

std::string Vocabulary::decode(const std::vector<std::int64_t>& tokens) const {
  std::string text;
  for (const auto token : tokens) {
    const auto index = static_cast<std::size_t>(token);
    if (index < characters_.size())
      text += characters_[index];
    else
      text += "\xEF\xBF\xBD";  // U+FFFD
  }
  return text;
}

std::unique_ptr<DataSource> text_data(const std::string& text, const Vocabulary& vocabulary,
                                      const TextOptions& options) {
  const std::vector<std::int64_t> tokens = vocabulary.encode(text);
  if (static_cast<std::int64_t>(tokens.size()) <= options.length)
    throw UsageError(
        str_cat("a text of ", tokens.size(), " characters is too short for sequences of ", options.length),
        {}, "use a longer text, or shorter sequences");
  const SequenceOptions sequences{.length = options.length};
  return tensor_data(sequence_table(token_memory({tokens.begin(), tokens.end()}), sequences),
                     {.positional = {sequences.input},
                      .validation_fraction = options.validation_fraction,
                      .order = {.shuffle = true, .seed = options.seed},
                      .tokens_per_row = options.length});
}

}  // namespace penstock::train
