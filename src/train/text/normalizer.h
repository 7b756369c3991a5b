// What a tokenizer does with a text before anything else.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::train {

struct Compose {};  //!< normalization form C
struct Prepend {
  std::string text;
};
struct Replace {
  std::string from, to;
};
using NormalizerStep = std::variant<Compose, Prepend, Replace>;

//! Replaces each occurrence, from left to right. Requires that `from` is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

//! Applies the steps to a text, which must be valid UTF-8. The result is the text itself or in `storage`.
std::string_view normalized(std::string_view text, const std::vector<NormalizerStep>& steps,
                            std::string& storage);
std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps);

}  // namespace penstock::train
