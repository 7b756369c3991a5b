// Reads tokenizer.json. Features that would change the tokens and are not supported are refused.
#include "train/text/tokenizer_file.h"

#include "base/io/json_reader.h"
#include "base/text.h"
#include "train/text/tokenizer_steps.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <utility>

namespace penstock::train {
namespace {

constexpr std::int64_t kMaxTokenId = std::int64_t{1} << 24;

std::uint32_t id_at(const JsonValue& value, const std::string& where) {
  const std::int64_t id = integer_at(value, where);
  if (id < 0 || id >= kMaxTokenId) fail_at(where, str_cat("the token id ", id, " is out of range"));
  return static_cast<std::uint32_t>(id);
}

// The token for a byte that a character of a vocabulary without this character consists of.
std::string byte_token(std::size_t byte) {
  return formatted("<0x%02zX>", byte);
}

class FileReader {
 public:
  explicit FileReader(std::string where) : where_(std::move(where)) {}

  TokenizerFile read(const JsonValue& json) {
    object_at(json, where_);
    if (const JsonValue* const normalizer = optional_field(json, "normalizer", where_))
      file_.normalizer = read_normalizer(*normalizer, where_ + ", normalizer");
    if (const JsonValue* const splits = optional_field(json, "pre_tokenizer", where_))
      read_splits(*splits, where_ + ", pre_tokenizer");
    if (const JsonValue* const decoder = optional_field(json, "decoder", where_))
      file_.decoder = read_decoder(*decoder, where_ + ", decoder");
    else if (file_.model.byte_level)
      file_.decoder = std::vector<DecoderStep>{DecodeBytes{}};
    read_model(field(json, "model", where_));
    if (const JsonValue* const added = optional_field(json, "added_tokens", where_)) read_added(*added);
    return std::move(file_);
  }

 private:
  void read_splits(const JsonValue& splits, const std::string& where) {
    file_.splits = read_pre_tokenizer(splits, where);
    file_.model.byte_level = !file_.splits.empty() && std::holds_alternative<ByteSplit>(file_.splits.back());
    // The Python package prepends a mark if the original text of a part starts at 0, as it sees it after
    // steps that insert and replace text.
    const auto is_first = [](const SplitStep& step) {
      const auto* const marks = std::get_if<MarkSpaces>(&step);
      return marks != nullptr && marks->prefix == MarkSpaces::Prefix::First;
    };
    if (!file_.normalizer.empty() && std::any_of(file_.splits.begin(), file_.splits.end(), is_first))
      refuse_feature(where, "the prepend_scheme 'first' together with a normalizer");
  }

  void read_model(const JsonValue& model) {
    const std::string where = where_ + ", model";
    if (text_of(model, "type", where) != "BPE")
      refuse_feature(where, "the type " + quote(text_of(model, "type", where)));
    for (const char* const name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(model, name, where).empty()) refuse_feature(where, name);
    const JsonValue* const dropout = optional_field(model, "dropout", where);
    if (dropout != nullptr && real_at(*dropout, where) != 0) refuse_feature(where, "dropout");
    file_.model.ignore_merges = flag_of(model, "ignore_merges", where);
    file_.model.fuses_unknown = flag_of(model, "fuse_unk", where);
    for (const JsonMember& member : object_at(field(model, "vocab", where), where))
      add_token(member.name, id_at(member.value, where + ".vocab"), where);
    read_symbols(model, where);
    std::vector<TokenPair> pairs;
    for (const JsonValue& merge : array_at(field(model, "merges", where), where))
      add_merge(merge, pairs, where);
    file_.model.set_merges(pairs);
  }

  // Finds the tokens of bytes, and of characters without a token. No text may be lost.
  void read_symbols(const JsonValue& model, const std::string& where) {
    BpeModel& own = file_.model;
    if (own.byte_level || flag_of(model, "byte_fallback", where))
      for (std::size_t byte = 0; byte < own.bytes.size(); ++byte)
        own.bytes[byte] =
            id_of(own.byte_level ? byte_character(static_cast<std::uint8_t>(byte)) : byte_token(byte));
    const auto missing = std::find(own.bytes.begin(), own.bytes.end(), std::nullopt);
    if (missing == own.bytes.end()) return;
    if (own.byte_level)
      refuse_feature(where, str_cat("a vocabulary without a token for each byte (",
                                    missing - own.bytes.begin(), " is missing)"));
    const std::string unknown = text_of(model, "unk_token", where);
    if (unknown.empty())
      refuse_feature(where,
                     "a vocabulary without tokens for all bytes and without unk_token, which loses "
                     "characters,");
    own.unknown = id_of(unknown);
    if (!own.unknown) fail_at(where, "the vocabulary has no token " + quote(unknown) + ", the unk_token");
  }

  // A merge is a list of two tokens or, in older files, a text with a space between them.
  void add_merge(const JsonValue& merge, std::vector<TokenPair>& pairs, const std::string& where) {
    const std::string here = str_cat(where, ", merge ", pairs.size());
    std::string left, right;
    if (const std::string* const text = merge.string()) {
      if (text->starts_with("#version")) return;
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
      const std::optional<std::uint32_t> found = id_of(token);
      if (!found) fail_at(here, "the vocabulary has no token " + quote(token));
      return *found;
    };
    pairs.push_back({id(left), id(right), id(left + right)});
  }

  std::optional<std::uint32_t> id_of(const std::string& token) const {
    const auto found = file_.model.vocabulary.find(token);
    return found == file_.model.vocabulary.end() ? std::nullopt : std::optional(found->second);
  }

  void add_token(const std::string& token, std::uint32_t id, const std::string& where) {
    check_utf8(token);
    if (!file_.model.vocabulary.emplace(token, id).second) return;
    if (!file_.tokens.emplace(id, token).second)
      fail_at(where, str_cat("the tokens ", quote(file_.tokens.at(id)), " and ", quote(token),
                             " have the same id ", id));
  }

  void read_added(const JsonValue& added) {
    const std::string where = where_ + ", added_tokens";
    std::size_t next = file_.model.vocabulary.size();
    for (const JsonValue& token : array_at(added, where)) {
      const std::string& content = string_at(field(token, "content", where), where);
      if (content.empty()) continue;
      check_utf8(content);
      const std::uint32_t id = id_at(field(token, "id", where), where);
      // The Python package ignores the ids of the file.
      const std::optional<std::uint32_t> known = id_of(content);
      const std::size_t expected = known ? *known : next++;
      if (id != expected)
        fail_at(where,
                str_cat("the added token ", quote(content), " has the id ", id, " instead of ", expected,
                        known ? ", as in the vocabulary" : ", which continues the vocabulary"));
      if (flag_of(token, "single_word", where)) refuse_feature(where, "single_word of " + quote(content));
      add_added({content, id, flag_of(token, "lstrip", where), flag_of(token, "rstrip", where)},
                flag_of(token, "normalized", where), where);
    }
  }

  // A token that is normalized is found, and decoded, in its normalized form.
  void add_added(AddedToken token, bool is_normalized, const std::string& where) {
    const std::string name = token.content;
    if (is_normalized) token.content = normalized(name, file_.normalizer);
    if (token.content.empty())
      refuse_feature(where, "the added token " + quote(name) + ", which the normalizer removes,");
    file_.tokens[token.id] = token.content;
    AddedTokens& all = is_normalized ? file_.normalized_added : file_.added;
    if (!file_.added_ids.emplace(name, token.id).second || !all.add(token))
      fail_at(where, "two added tokens are " + quote(name));
  }

  std::string where_;
  TokenizerFile file_;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where) {
  return FileReader(where).read(parse_json(json, where));
}

}  // namespace penstock::train
