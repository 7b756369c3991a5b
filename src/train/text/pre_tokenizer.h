// How a tokenizer divides a text into the pieces to which the model applies.
#pragma once

#include "train/text/split_pattern.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace penstock::train {

//! Into the words of a pattern.
struct PatternSplit {
  SplitPattern pattern;
};

//! Before or after each occurrence of a text, which must not be empty.
struct LiteralSplit {
  std::string text;
  bool before = false;
};

//! Between numbers and other text, and perhaps between the digits.
struct DigitSplit {
  bool individual = false;
};

//! Replaces spaces by a mark, and may divide the text before each mark.
struct MarkSpaces {
  //! Where a mark is put before a text that does not start with one.
  enum class Prefix { Never, First, Always };

  std::string mark;
  Prefix prefix = Prefix::Always;  //!< `First`: only at the start of the complete text
  bool splits = true;
};

//! The last step of a byte-level tokenizer.
struct ByteSplit {
  bool prefix = false;  //!< a text that does not start with a space gets one
  bool words = true;    //!< into the words of GPT-2's pattern
};

using SplitStep = std::variant<PatternSplit, LiteralSplit, DigitSplit, MarkSpaces, ByteSplit>;

//! Applies the steps in order, each to all pieces of the one before it, and calls `use` with the pieces of
//! the last one. No piece is empty. The text must be valid UTF-8. `at_start` says whether it is the start of
//! the complete text.
void for_each_piece(std::string_view text, bool at_start, std::span<const SplitStep> steps,
                    const std::function<void(std::string_view)>& use);

}  // namespace penstock::train
