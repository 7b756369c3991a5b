// Reads tokenizer.json. Features that would change the tokens and are not supported are refused.
#include "train/text/tokenizer_file.h"

#include "base/io/json_reader.h"
#include "base/text.h"
#include "train/text/normal_form.h"

#include <penstock/base/error.h>

namespace penstock::train {
namespace {

constexpr std::int64_t kMaxTokenId = std::int64_t{1} << 24;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw UsageError(
      where + ": " + what + " is not supported", {},
      "use a byte-level BPE tokenizer, such as that of GPT-2 or Llama 3, or write the tokens to a "
      "file with Python");
}

std::string utf8(char32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0U | code >> 6), static_cast<char>(0x80U | (code & 0x3fU))};
}

std::array<std::string, 256> make_byte_characters() {
  std::array<std::string, 256> characters;
  char32_t next = 0x100;
  for (std::size_t byte = 0; byte < characters.size(); ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    characters[byte] = utf8(printable ? static_cast<char32_t>(byte) : next++);
  }
  return characters;
}

bool is_set(const JsonValue& object, std::string_view name, const std::string& where) {
  const JsonValue* const value = optional_field(object, name, where);
  return value != nullptr && bool_at(*value, where + "." + std::string(name));
}

std::string text_of(const JsonValue& object, std::string_view name, const std::string& where) {
  const JsonValue* const value = optional_field(object, name, where);
  return value == nullptr ? "" : string_at(*value, where + "." + std::string(name));
}

std::uint32_t id_at(const JsonValue& value, const std::string& where) {
  const std::int64_t id = integer_at(value, where);
  if (id < 0 || id >= kMaxTokenId) fail_at(where, str_cat("the token id ", id, " is out of range"));
  return static_cast<std::uint32_t>(id);
}

class FileReader {
 public:
  explicit FileReader(std::string where) : where_(std::move(where)) {}

  TokenizerFile read(const JsonValue& json) {
    object_at(json, where_);
    if (const JsonValue* const normalizer = optional_field(json, "normalizer", where_))
      read_normalizer(*normalizer);
    const JsonValue* const splitter = optional_field(json, "pre_tokenizer", where_);
    if (splitter == nullptr) refuse(where_, "a tokenizer without a pre-tokenizer");
    read_splitter(*splitter);
    read_model(field(json, "model", where_));
    if (const JsonValue* const added = optional_field(json, "added_tokens", where_)) read_added(*added);
    return std::move(file_);
  }

 private:
  // NFC, alone or in a list; an empty list does nothing.
  void read_normalizer(const JsonValue& normalizer) {
    const std::string where = where_ + ", normalizer", type = text_of(normalizer, "type", where);
    if (type == "Sequence") {
      for (const JsonValue& one : array_at(field(normalizer, "normalizers", where), where))
        read_normalizer(one);
    } else if (type == "NFC") {
      file_.composes = true;
    } else {
      refuse(where, "a normalizer other than NFC (" + quote(type) + ")");
    }
  }

  // Either ByteLevel alone, with its own pattern, or a Split followed by ByteLevel without a pattern.
  void read_splitter(const JsonValue& splitter) {
    const std::string where = where_ + ", pre_tokenizer", type = text_of(splitter, "type", where);
    std::vector<const JsonValue*> parts{&splitter};
    if (type == "Sequence") {
      parts.clear();
      for (const JsonValue& part : array_at(field(splitter, "pretokenizers", where), where))
        parts.push_back(&part);
    }
    if (parts.empty() || parts.size() > 2 || text_of(*parts.back(), "type", where) != "ByteLevel")
      refuse(where, "a pre-tokenizer other than ByteLevel, or Split and ByteLevel, (" + quote(type) + ")");
    const JsonValue& bytes = *parts.back();
    const JsonValue* const use_regex = optional_field(bytes, "use_regex", where);
    const bool splits = use_regex == nullptr || bool_at(*use_regex, where);
    if (is_set(bytes, "add_prefix_space", where)) refuse(where, "add_prefix_space");
    if (splits != (parts.size() == 1)) refuse(where, "ByteLevel with this use_regex");
    file_.pattern = splits ? gpt2_pattern() : read_split(*parts.front(), where);
  }

  static SplitPattern read_split(const JsonValue& split, const std::string& where) {
    if (text_of(split, "type", where) != "Split" || text_of(split, "behavior", where) != "Isolated" ||
        is_set(split, "invert", where))
      refuse(where, "a split other than the isolated matches of a pattern");
    const JsonValue* const expression = optional_field(field(split, "pattern", where), "Regex", where);
    if (expression == nullptr) refuse(where, "a split at a fixed text");
    const std::string& text = string_at(*expression, where);
    const std::optional<SplitPattern> known = split_pattern(text);
    if (!known) refuse(where, "the split pattern " + quote(text, 120));
    return *known;
  }

  void read_model(const JsonValue& model) {
    const std::string where = where_ + ", model";
    if (text_of(model, "type", where) != "BPE")
      refuse(where, "the type " + quote(text_of(model, "type", where)));
    for (const char* const name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(model, name, where).empty()) refuse(where, name);
    const JsonValue* const dropout = optional_field(model, "dropout", where);
    if (dropout != nullptr && real_at(*dropout, where) != 0) refuse(where, "dropout");
    file_.ignore_merges = is_set(model, "ignore_merges", where);
    for (const JsonMember& member : object_at(field(model, "vocab", where), where))
      add_token(member.name, id_at(member.value, where + ".vocab"), where);
    for (std::size_t byte = 0; byte < file_.bytes.size(); ++byte) {
      const auto found = file_.vocabulary.find(byte_character(static_cast<std::uint8_t>(byte)));
      if (found == file_.vocabulary.end())
        refuse(where, str_cat("a vocabulary without a token for each byte (", byte, " is missing)"));
      file_.bytes[byte] = found->second;
    }
    std::uint32_t rank = 0;
    for (const JsonValue& merge : array_at(field(model, "merges", where), where))
      add_merge(merge, rank++, where);
  }

  // A merge is a list of two tokens or, in older files, a text with a space between them.
  void add_merge(const JsonValue& merge, std::uint32_t rank, const std::string& where) {
    const std::string here = str_cat(where, ", merge ", rank);
    std::string left, right;
    if (const std::string* const text = merge.string()) {
      const std::size_t space = text->find(' ');
      if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos)
        fail_at(here, "a merge has two tokens, separated by a space");
      left = text->substr(0, space), right = text->substr(space + 1);
    } else {
      const JsonArray& pair = array_at(merge, here);
      if (pair.size() != 2) fail_at(here, "a merge has two tokens");
      left = string_at(pair[0], here), right = string_at(pair[1], here);
    }
    const auto id = [&](const std::string& token) {
      const auto found = file_.vocabulary.find(token);
      if (found == file_.vocabulary.end()) fail_at(here, "the vocabulary has no token " + quote(token));
      return found->second;
    };
    file_.merges.add(id(left), id(right), {rank, id(left + right)});
  }

  void add_token(const std::string& token, std::uint32_t id, const std::string& where) {
    if (!file_.vocabulary.emplace(token, id).second) return;
    if (!tokens_.emplace(id, token).second)
      fail_at(where,
              str_cat("the tokens ", quote(tokens_.at(id)), " and ", quote(token), " have the same id ", id));
  }

  void read_added(const JsonValue& added) {
    const std::string where = where_ + ", added_tokens";
    for (const JsonValue& token : array_at(added, where)) {
      const std::string& content = string_at(field(token, "content", where), where);
      if (content.empty()) continue;
      for (const char* const option : {"single_word", "lstrip", "rstrip"})
        if (is_set(token, option, where)) refuse(where, str_cat(option, " of ", quote(content)));
      check_utf8(content);
      const std::uint32_t id = id_at(field(token, "id", where), where);
      const auto [same, is_new] = tokens_.emplace(id, content);
      if (same->second != content)
        fail_at(where, str_cat("the tokens ", quote(same->second), " and ", quote(content),
                               " have the same id ", id));
      // Else the same token would stand for two texts.
      if (!is_new && bytes_of_token(content).value_or(content) != content)
        refuse(where, "the added token " + quote(content) + ", which is also a token of the vocabulary,");
      const bool normalized = is_set(token, "normalized", where);
      if (normalized && file_.composes && composed_form(content) != content)
        refuse(where, "the added token " + quote(content) + ", which the normalizer changes,");
      file_.added.push_back({content, id, normalized});
    }
  }

  std::string where_;
  TokenizerFile file_;
  std::unordered_map<std::uint32_t, std::string> tokens_;  // of the vocabulary and added ones, by id
};

}  // namespace

const std::string& byte_character(std::uint8_t byte) {
  static const std::array<std::string, 256> characters = make_byte_characters();
  return characters[byte];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> map;
    for (std::size_t byte = 0; byte < 256; ++byte)
      map.emplace(byte_character(static_cast<std::uint8_t>(byte)), static_cast<char>(byte));
    return map;
  }();
  std::string result;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t length = static_cast<unsigned char>(token[at]) < 0x80 ? 1 : 2;
    const auto found = bytes.find(token.substr(at, length));
    if (found == bytes.end()) return std::nullopt;
    result += found->second;
    at += length;
  }
  return result;
}

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where) {
  return FileReader(where).read(parse_json(json, where));
}

}  // namespace penstock::train
