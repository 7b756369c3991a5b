// Tokens that are found in a text before anything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::train {

struct AddedToken {
  std::string content;  //!< as it is found in the text; not empty
  std::uint32_t id = 0;
  bool strips_left = false, strips_right = false;  //!< takes the white space before or after it
};

//! Part of a text: an added token, or text between them.
struct TextPart {
  std::string_view text;  //!< empty for a token
  std::optional<std::uint32_t> token{};
};

class AddedTokens {
 public:
  //! Returns false if there is already a token with this content.
  bool add(const AddedToken& token);
  //! Calls `use` with the parts of a text, in order. The leftmost token is found first, and of those that
  //! start at the same position the longest one.
  void for_each_part(std::string_view text, const std::function<void(const TextPart&)>& use) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, AddedToken, TextHash, std::equal_to<>> tokens_;
  std::array<std::vector<std::size_t>, 256> lengths_;  //!< by the first byte, the longest first
};

}  // namespace penstock::train
