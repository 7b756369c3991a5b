// Reads the steps of tokenizer.json. Those that are not supported are refused.
#include "train/text/tokenizer_steps.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <functional>
#include <utility>

namespace penstock::train {
namespace {

// Calls `use` with the type of each step of an object, which is one step or a list of them.
void for_each_step(const JsonValue& object, const char* list, const std::string& where,
                   const std::function<void(const std::string& type, const JsonValue& step)>& use) {
  const std::string type = text_of(object, "type", where);
  if (type != "Sequence") return use(type, object);
  for (const JsonValue& step : array_at(field(object, list, where), where))
    for_each_step(step, list, where, use);
}

// The fixed text for which a step looks.
std::string literal_of(const JsonValue& step, const std::string& where) {
  const JsonValue* const text = optional_field(field(step, "pattern", where), "String", where);
  if (text == nullptr)
    refuse_feature(where, "a regular expression in " + quote(text_of(step, "type", where)));
  if (string_at(*text, where).empty()) refuse_feature(where, "an empty pattern");
  return string_at(*text, where);
}

Replace replacement_of(const JsonValue& step, const std::string& where) {
  return {literal_of(step, where), string_at(field(step, "content", where), where)};
}

std::string character_of(const JsonValue& step, const char* name, const std::string& where) {
  std::string text = string_at(field(step, name, where), where);
  if (text.empty() || code_point(text, 0).length != text.size())
    fail_at(where, str_cat(name, " must be one character, not ", quote(text)));
  return text;
}

std::size_t count_of(const JsonValue& step, const char* name, const std::string& where) {
  const std::int64_t count = integer_at(field(step, name, where), where);
  if (count < 0) fail_at(where, str_cat(name, " must not be negative"));
  return static_cast<std::size_t>(count);
}

SplitStep read_split(const JsonValue& step, const std::string& where) {
  const std::string behavior = text_of(step, "behavior", where);
  if (flag_of(step, "invert", where)) refuse_feature(where, "an inverted split");
  const JsonValue* const expression = optional_field(field(step, "pattern", where), "Regex", where);
  if (expression == nullptr) {
    if (behavior != "MergedWithPrevious" && behavior != "MergedWithNext")
      refuse_feature(where, "a split at a fixed text with the behavior " + quote(behavior));
    return LiteralSplit{literal_of(step, where), behavior == "MergedWithNext"};
  }
  if (behavior != "Isolated")
    refuse_feature(where, "a split at a pattern with the behavior " + quote(behavior));
  const std::string& text = string_at(*expression, where);
  const std::optional<SplitPattern> known = split_pattern(text);
  if (!known) refuse_feature(where, "the split pattern " + quote(text, 120));
  return PatternSplit{*known};
}

// Files without a scheme say whether spaces are prepended at all.
MarkSpaces::Prefix prefix_of(const JsonValue& step, const std::string& where) {
  const JsonValue* const add = optional_field(step, "add_prefix_space", where);
  const bool never = add != nullptr && !bool_at(*add, where);
  const std::string scheme = text_of(step, "prepend_scheme", where);
  if (scheme == "never" || (scheme.empty() && never)) return MarkSpaces::Prefix::Never;
  if (never) fail_at(where, "add_prefix_space does not agree with the prepend_scheme " + quote(scheme));
  if (scheme == "first") return MarkSpaces::Prefix::First;
  if (!scheme.empty() && scheme != "always") refuse_feature(where, "the prepend_scheme " + quote(scheme));
  return MarkSpaces::Prefix::Always;
}

MarkSpaces read_marks(const JsonValue& step, const std::string& where) {
  const JsonValue* const split = optional_field(step, "split", where);
  return {character_of(step, "replacement", where), prefix_of(step, where),
          split == nullptr || bool_at(*split, where)};
}

ByteSplit read_bytes(const JsonValue& step, const std::string& where) {
  const JsonValue* const words = optional_field(step, "use_regex", where);
  return {flag_of(step, "add_prefix_space", where), words == nullptr || bool_at(*words, where)};
}

}  // namespace

void refuse_feature(const std::string& where, const std::string& what) {
  throw UsageError(where + ": " + what + " is not supported", {},
                   "use a BPE tokenizer, such as that of GPT-2, Llama 2 or Llama 3, or write the tokens to a "
                   "file with Python");
}

bool flag_of(const JsonValue& object, std::string_view name, const std::string& where) {
  const JsonValue* const value = optional_field(object, name, where);
  return value != nullptr && bool_at(*value, where + "." + std::string(name));
}

std::string text_of(const JsonValue& object, std::string_view name, const std::string& where) {
  const JsonValue* const value = optional_field(object, name, where);
  return value == nullptr ? "" : string_at(*value, where + "." + std::string(name));
}

std::vector<NormalizerStep> read_normalizer(const JsonValue& normalizer, const std::string& where) {
  std::vector<NormalizerStep> steps;
  for_each_step(normalizer, "normalizers", where, [&](const std::string& type, const JsonValue& step) {
    if (type == "NFC")
      steps.emplace_back(Compose{});
    else if (type == "Prepend")
      steps.emplace_back(Prepend{string_at(field(step, "prepend", where), where)});
    else if (type == "Replace")
      steps.emplace_back(replacement_of(step, where));
    else
      refuse_feature(where, "the normalizer " + quote(type));
  });
  return steps;
}

std::vector<SplitStep> read_pre_tokenizer(const JsonValue& pre_tokenizer, const std::string& where) {
  std::vector<SplitStep> steps;
  bool marks = false;
  for_each_step(pre_tokenizer, "pretokenizers", where, [&](const std::string& type, const JsonValue& step) {
    if (!steps.empty() && std::holds_alternative<ByteSplit>(steps.back()))
      refuse_feature(where, quote(type) + " after ByteLevel");
    if (type == "Split") {
      steps.push_back(read_split(step, where));
    } else if (type == "Digits") {
      steps.emplace_back(DigitSplit{flag_of(step, "individual_digits", where)});
    } else if (type == "Metaspace") {
      if (std::exchange(marks, true)) refuse_feature(where, "a second Metaspace");
      steps.emplace_back(read_marks(step, where));
    } else if (type == "ByteLevel") {
      steps.emplace_back(read_bytes(step, where));
    } else {
      refuse_feature(where, "the pre-tokenizer " + quote(type));
    }
  });
  return steps;
}

std::vector<DecoderStep> read_decoder(const JsonValue& decoder, const std::string& where) {
  std::vector<DecoderStep> steps;
  for_each_step(decoder, "decoders", where, [&](const std::string& type, const JsonValue& step) {
    if (type == "ByteLevel") {
      steps.emplace_back(DecodeBytes{});
    } else if (type == "ByteFallback") {
      steps.emplace_back(DecodeByteTokens{});
    } else if (type == "Metaspace") {
      const MarkSpaces marks = read_marks(step, where);
      steps.emplace_back(DecodeMarks{marks.mark, marks.prefix != MarkSpaces::Prefix::Never});
    } else if (type == "Fuse") {
      steps.emplace_back(Join{});
    } else if (type == "Replace") {
      steps.emplace_back(replacement_of(step, where));
    } else if (type == "Strip") {
      steps.emplace_back(Strip{character_of(step, "content", where), count_of(step, "start", where),
                               count_of(step, "stop", where)});
    } else {
      refuse_feature(where, "the decoder " + quote(type));
    }
  });
  return steps;
}

}  // namespace penstock::train
