// The tokens that a model with a key-value cache reads to predict the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::models {

//! The part of a growing text that a model sees. It slides if the text becomes longer than the context, and
//! starts again after a separator of documents.
class ContextWindow {
 public:
  ContextWindow(std::int64_t context, std::optional<std::int64_t> separator)
      : context_(static_cast<std::size_t>(context)), separator_(separator) {}

  struct Tokens {
    std::vector<std::int64_t> fresh;  //!< those that the model has not read yet
    bool restarts = false;            //!< the cache must be cleared first
  };
  //! Returns what the model reads to predict the token after `text`, which continues that of the last call.
  Tokens next(const std::vector<std::int64_t>& text);

 private:
  std::size_t document_start(const std::vector<std::int64_t>& text) const;

  std::size_t context_;
  std::optional<std::int64_t> separator_;
  std::size_t begin_ = 0, seen_ = 0;  // the tokens in the cache
};

}  // namespace penstock::models
