// Parses TOML from untrusted files.
#include "cli/toml_text.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>

namespace penstock::tool {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

//! Rejects input that toml++ cannot handle: keys with many parts, and non-ASCII characters where TOML does
//! not allow them (undefined behavior in toml++). Multi-line strings are scanned as well, so they must be
//! ASCII.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void check() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (skip_part()) {
        check_key();
      } else if (!is_ascii(text_[at_])) {
        fail("non-ASCII characters are allowed only in comments and single-line strings");
      } else {
        ++at_;
      }
    }
  }

 private:
  //! Skips a bare word or a quoted word on one line.
  bool skip_part() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_bare(text_[at_])) ++at_;
    if (at_ > begin || at_ == text_.size()) return at_ > begin;
    const char mark = text_[at_];
    if (mark != '"' && mark != '\'') return false;
    for (std::size_t i = at_ + 1; i < text_.size() && text_[i] != '\n'; ++i) {
      if (text_[i] == mark) {
        at_ = i + 1;
        return true;
      }
      if (text_[i] == '\\' && mark == '"') ++i;
    }
    return false;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  //! Checks the rest of a key after its first part: `. part . part …`
  void check_key() {
    for (int parts = 1;; ++parts) {
      if (parts > kMaxKeyParts) fail(str_cat("a key has more than ", kMaxKeyParts, " parts"));
      skip_blanks();
      if (at_ == text_.size() || text_[at_] != '.') return;
      ++at_;
      skip_blanks();
      if (!skip_part()) return;
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string_view before = text_.substr(0, at_);
    throw ParseError(str_cat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ": ", what));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

//! The text with `?` for each non-ASCII character, so that positions stay the same.
std::string ascii_only(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::string result;
  for (const char c : text) {
    if (is_ascii(c)) result += c;
    if ((static_cast<unsigned char>(c) & 0xC0U) == 0xC0U) result += '?';  // the first byte of a character
  }
  return result;
}

}  // namespace

toml::table parse_toml(const std::string& text) {
  Scanner(text).check();
  // If a value is invalid, toml++ searches for its end also inside strings, and non-ASCII characters are then
  // undefined behavior. So reject an invalid document before toml++ sees them.
  if (!std::all_of(text.begin(), text.end(), is_ascii)) (void)toml::parse(ascii_only(text));
  return toml::parse(text);
}

std::string position_text(const toml::source_position& at) {
  return str_cat("line ", at.line, ", column ", at.column);
}

}  // namespace penstock::tool
