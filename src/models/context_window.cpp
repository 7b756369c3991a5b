// Slides and restarts the window.
#include "models/context_window.h"

#include <algorithm>

namespace penstock::models {

ContextWindow::Tokens ContextWindow::next(const std::vector<std::int64_t>& text) {
  Tokens tokens;
  const auto restart_at = [&](std::size_t begin) {
    begin_ = seen_ = begin;
    tokens.restarts = true;
  };
  if (const std::size_t start = document_start(text); start > begin_) restart_at(start);
  // A full window restarts with its second half, at the first positions.
  if (text.size() - begin_ > context_) restart_at(text.size() - std::max<std::size_t>(context_ / 2, 1));
  tokens.fresh.assign(text.begin() + static_cast<std::ptrdiff_t>(seen_), text.end());
  seen_ = text.size();
  return tokens;
}

// The index of the first token of the last document, if it starts among the tokens that were not read yet. A
// separator is the end of a document.
std::size_t ContextWindow::document_start(const std::vector<std::int64_t>& text) const {
  if (!separator_) return 0;
  for (std::size_t i = text.size() - 1; i >= std::max<std::size_t>(seen_, 1); --i)
    if (text[i - 1] == *separator_) return i;
  return 0;
}

}  // namespace penstock::models
