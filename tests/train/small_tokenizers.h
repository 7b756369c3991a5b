// Tokenizers of a few tokens, as the content of a file.
#pragma once

#include "train/text/bpe_model.h"

#include <penstock/train/tokenizer.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Byte-level: bytes, and merges for the words "the" and " the". In the vocabulary, U+0120 stands for a
//! space.
inline nlohmann::json small_tokenizer() {
  using nlohmann::json;
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(static_cast<std::uint8_t>(byte))] = byte;
  const json more{{"th", 256}, {"he", 257}, {"the", 258}, {"\u0120the", 259}};
  vocabulary.update(more);
  return {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", json::array({json{{"id", 260}, {"content", "<|end|>"}},
                                        json{{"id", 261}, {"content", "<|end|>!"}}})},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", json::array({"t h", "h e", json::array({"th", "e"}), "\u0120 the"})}}}};
}

//! Like that of Llama 2: tokens 3 to 258 are bytes, then come some characters and merges. U+2581 stands for a
//! space.
inline nlohmann::json small_sentence_tokenizer() {
  using nlohmann::json;
  json vocabulary{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string digits = "0123456789ABCDEF";
    vocabulary[std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">"] = 3 + byte;
  }
  int next = 259;
  for (const char* const token :
       {"\u2581", "t", "h", "e", "n", "th", "the", "\u2581the", "\u2581\u2581", "en"})
    vocabulary[token] = next++;
  const auto replace = [](const char* from, const char* to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const json prepend{{"type", "Prepend"}, {"prepend", "\u2581"}},
      strip{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  return {
      {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array({prepend, replace(" ", "\u2581")})}}},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", json::array({replace("\u2581", " "), json{{"type", "ByteFallback"}},
                                  json{{"type", "Fuse"}}, strip})}}},
      {"added_tokens",
       json::array({json{{"id", 0}, {"content", "<unk>"}}, json{{"id", 1}, {"content", "<s>"}},
                    json{{"id", 2}, {"content", "</s>"}}})},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", json::array({"t h", "th e", "\u2581 the", "\u2581 \u2581", "e n"})}}}};
}

inline Tokenizer parsed(const nlohmann::json& content) {
  return Tokenizer::parse(content.dump(), "file");
}

inline std::string decoded(const Tokenizer& tokenizer, const std::vector<std::uint32_t>& tokens) {
  return tokenizer.decode(std::vector<std::int64_t>(tokens.begin(), tokens.end()));
}

}  // namespace penstock::train
