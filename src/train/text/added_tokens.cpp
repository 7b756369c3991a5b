// Finds added tokens.
#include "train/text/added_tokens.h"

#include "train/text/split_pattern.h"
#include "train/text/unicode_classes.h"

#include <algorithm>

namespace penstock::train {
namespace {

// Where the white space at the end of text[begin, end) starts.
std::size_t spaces_before(std::string_view text, std::size_t begin, std::size_t end) {
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80;
  };
  while (end > begin) {
    std::size_t last = end - 1;
    while (last > begin && continues(last)) --last;
    if (!is_space(code_point(text, last).code)) break;
    end = last;
  }
  return end;
}

// Where the white space at the start of text[begin, …) ends.
std::size_t spaces_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint point = code_point(text, begin);
    if (!is_space(point.code)) break;
    begin += point.length;
  }
  return begin;
}

}  // namespace

bool AddedTokens::add(const AddedToken& token) {
  if (!tokens_.emplace(token.content, token).second) return false;
  std::vector<std::size_t>& lengths = lengths_[static_cast<unsigned char>(token.content[0])];
  const std::size_t length = token.content.size();
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), length, std::greater<>());
  if (place == lengths.end() || *place != length) lengths.insert(place, length);
  return true;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    if (length > text.size() - at) continue;
    const auto found = tokens_.find(text.substr(at, length));
    if (found != tokens_.end()) return &found->second;
  }
  return nullptr;
}

void AddedTokens::for_each_part(std::string_view text,
                                const std::function<void(const TextPart&)>& use) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* const token = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;  // also a token in white space that this one strips is found
    if (token->strips_left) begin = std::max(done, spaces_before(text, std::min(done, begin), begin));
    if (token->strips_right) end = spaces_after(text, end);
    if (begin > done) use({text.substr(done, begin - done)});
    use({{}, token->id});
    done = end;
  }
  if (done < text.size()) use({text.substr(done)});
}

}  // namespace penstock::train
