// Tokenizers: from text to tokens and back. Does not need libtorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::train {

//! Converts between text and token ids. Copies share their tables. Methods may be called by several threads.
class Tokenizer {
 public:
  //! One token per byte: 256 tokens, for any text.
  static Tokenizer bytes();
  //! A tokenizer in the format of Hugging Face's `tokenizer.json`: a BPE model on bytes, such as that of
  //! GPT-2 or Llama 3, or one in the style of SentencePiece, such as that of Llama 2 or Gemma. Errors name
  //! `where`. Throws ParseError if the text is not in this format, UsageError if it needs a feature that is
  //! not supported.
  static Tokenizer parse(std::string_view json, const std::string& where);
  //! Reads such a file. Also throws StorageError.
  static Tokenizer load(const std::filesystem::path& file);

  //! The number of token ids: the largest one plus one.
  std::int64_t size() const;
  //! Tokens that the format calls added, such as `<|endoftext|>`, are found in the text. No token is added at
  //! the start or end. Throws UsageError if the text is not valid UTF-8, unless the tokens are bytes.
  std::vector<std::uint32_t> encode(std::string_view text) const;
  //! The text of a complete list of tokens. It is the text that was encoded, except for what the tokenizer
  //! does not keep, such as unknown characters. An id without a token becomes U+FFFD. For part of a list, a
  //! byte-level text may start or end within a character of UTF-8; other tokenizers replace the bytes of such
  //! a character by U+FFFD and may remove spaces at the start, so that the texts of parts do not add up to
  //! that of the list.
  std::string decode(std::span<const std::int64_t> tokens) const;
  //! The id of a token by its text, such as `<|endoftext|>`.
  std::optional<std::uint32_t> id_of(std::string_view token) const;

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

}  // namespace penstock::train
