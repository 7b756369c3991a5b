// Decodes lists of tokens, step by step.
#include "train/text/token_decoder.h"

#include "train/text/bpe_model.h"
#include "train/text/split_pattern.h"

#include <penstock/base/error.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

namespace penstock::train {
namespace {

using TokenTexts = std::vector<std::string>;

std::string joined(const TokenTexts& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

bool is_utf8(std::string_view text) {
  try {
    check_utf8(text);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// The byte of a token such as `<0xE2>`.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  std::uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(byte);
}

TokenTexts decode_step(const DecodeBytes&, TokenTexts tokens) {
  for (std::string& token : tokens)
    if (std::optional<std::string> bytes = bytes_of_token(token)) token = std::move(*bytes);
  return {joined(tokens)};
}

TokenTexts decode_step(const DecodeByteTokens&, const TokenTexts& tokens) {
  TokenTexts result;
  std::string bytes;
  const auto end_run = [&] {
    if (is_utf8(bytes))
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    const std::optional<char> byte = byte_of(token);
    if (byte) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) end_run();
    result.push_back(token);
  }
  if (!bytes.empty()) end_run();
  return result;
}

TokenTexts decode_step(const DecodeMarks& step, TokenTexts tokens) {
  bool drops = step.drops_first;
  for (std::string& token : tokens) {
    token = replaced(token, step.mark, drops ? "" : " ");
    drops = false;
  }
  return tokens;
}

TokenTexts decode_step(const Join&, const TokenTexts& tokens) {
  return {joined(tokens)};
}

TokenTexts decode_step(const Replace& step, TokenTexts tokens) {
  for (std::string& token : tokens) token = replaced(token, step.from, step.to);
  return tokens;
}

TokenTexts decode_step(const Strip& step, TokenTexts tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < step.left && rest.starts_with(step.character); ++i)
      rest.remove_prefix(step.character.size());
    for (std::size_t i = 0; i < step.right && rest.ends_with(step.character); ++i)
      rest.remove_suffix(step.character.size());
    token = std::string(rest);
  }
  return tokens;
}

}  // namespace

std::string decoded(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps) {
  for (const DecoderStep& step : steps)
    tokens = std::visit([&](const auto& one) { return decode_step(one, std::move(tokens)); }, step);
  return joined(tokens);
}

}  // namespace penstock::train
