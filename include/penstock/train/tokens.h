// Streams of tokens, in files or in memory, and their sequences as examples of a language model.
#pragma once

#include <penstock/train/data.h>
#include <penstock/train/tensor_table.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! The type of the tokens in a file: little-endian, without a header.
enum class TokenDtype { Uint16, Uint32 };
std::string_view to_string(TokenDtype dtype);

//! A sequence of tokens of which any part can be read. Methods may be called by several threads.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::int64_t size() const = 0;
  //! Reads the tokens from position `begin` on. Requires that they are in the stream. Throws StorageError if
  //! a file has become shorter.
  virtual void read(std::int64_t begin, std::span<std::int64_t> tokens) const = 0;
  //! Names the location of a token, for messages: `token 17 of 'part.bin'`.
  virtual std::string location(std::int64_t position) const = 0;
};

//! The tokens of files, which follow each other in the order of the files. The files are mapped into memory,
//! so that only the tokens that are read take memory. Throws StorageError if a file cannot be opened,
//! UsageError if its size is not a multiple of that of a token.
std::shared_ptr<const TokenStream> token_files(const std::vector<std::filesystem::path>& files,
                                               TokenDtype dtype);
//! Tokens in memory.
std::shared_ptr<const TokenStream> token_memory(std::vector<std::uint32_t> tokens);

//! Reads all tokens. Returns the largest one; nullopt if there are none. Calls `progress`, if it is set, with
//! the number of tokens that were read, from time to time.
std::optional<std::int64_t> largest_token(const TokenStream& stream,
                                          const std::function<void(std::int64_t)>& progress = nullptr);

//! What a tensor of a table says about the documents in its rows.
enum class DocumentTensor {
  Positions,  //!< [rows, length]: the position of each token in its document, from 0
  Mask,       //!< [rows, length, length]: whether a token (dim 1) attends to another one (dim 2)
  Padding,    //!< [rows, length]: 1 for tokens of the stream, 0 for the padding of the last row
};

//! The content and the type of a tensor that describes documents.
struct DocumentColumn {
  DocumentTensor content = DocumentTensor::Positions;
  //! Of a mask: bool, or a floating-point type, in which 0 means true and -infinity false. Of Padding: any.
  at::ScalarType mask_dtype = at::kBool;
  bool has_head_dim = false;  //!< a mask has the shape [rows, 1, length, length]
};

//! How documents are told apart. A separator ends each of them and is part of it. A document that continues
//! in the next row starts there again: its positions start at 0. Without a separator, each row is a document.
struct DocumentOptions {
  std::optional<std::int64_t> separator{};
  bool boundary_targets = true;  //!< the target of a separator is the next token; else -100
  std::map<std::string, DocumentColumn> tensors{};  //!< further tensors of the table
};

//! How a stream is divided into examples.
struct SequenceOptions {
  std::int64_t length = 128;                 //!< tokens per example
  std::string input = "tokens";              //!< name of the tensor with the tokens
  std::optional<std::int64_t> vocabulary{};  //!< if set, larger tokens are refused when they are read
  std::optional<DocumentOptions> documents{};
  //! A further tensor, with the labels of a model that computes its own loss: the targets, or with `next` the
  //! tokens of the row themselves, of which the model compares each position with the next one.
  std::optional<LabelInput> labels{};
};

//! A table of consecutive examples: row i of the input holds the tokens from position i * length on, and row
//! i of `target` the tokens that follow each of them. The last row is padded with token 0 and with targets of
//! -100, which a loss ignores, so that every token except the first is a target exactly once (without
//! `boundary_targets`, every token except the first of each document). With `labels` of which the next one is
//! predicted, the first token of each row is no target, and the last row also holds the last token. Throws
//! UsageError if the stream has fewer than two tokens; `take` throws it if a token is outside the vocabulary.
std::shared_ptr<const TensorTable> sequence_table(std::shared_ptr<const TokenStream> stream,
                                                  const SequenceOptions& options);

}  // namespace penstock::train
