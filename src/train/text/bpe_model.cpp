// Encodes pieces of text.
#include "train/text/bpe_model.h"

#include "train/text/split_pattern.h"

#include <algorithm>

namespace penstock::train {
namespace {

// Longer texts are not cached: they hardly repeat.
constexpr std::size_t kLongestCached = 64;
constexpr std::size_t kMostCached = 1 << 16;

// Part of a piece, by the positions of its bytes.
struct ByteRange {
  std::size_t begin = 0, end = 0;
};

std::optional<std::uint32_t> token_of(const BpeModel& model, char32_t code) {
  const auto found = model.characters.find(code);
  return found == model.characters.end() ? std::nullopt : std::optional(found->second);
}

// Calls `use` with each symbol of a text of characters and with the bytes that it stands for. An unknown
// token waits for the next character that has a token of its own, as in the Python package: tokens of bytes
// between the two come first.
template <class Use>
void for_each_character_symbol(const BpeModel& model, std::string_view piece, const Use& use) {
  std::optional<ByteRange> unknown;
  const auto use_unknown = [&] {
    if (unknown) use(*model.unknown, *unknown);
    unknown.reset();
  };
  const auto has_token = [&](char byte) { return model.bytes[static_cast<std::uint8_t>(byte)].has_value(); };
  for (std::size_t at = 0; at < piece.size();) {
    const CodePoint point = code_point(piece, at);
    const ByteRange range{at, at + point.length};
    at = range.end;
    const std::string_view bytes = piece.substr(range.begin, point.length);
    if (const std::optional<std::uint32_t> token = token_of(model, point.code)) {
      use_unknown();
      use(*token, range);
    } else if (std::all_of(bytes.begin(), bytes.end(), has_token)) {
      for (const char byte : bytes) use(*model.bytes[static_cast<std::uint8_t>(byte)], range);
    } else if (model.unknown) {
      if (!model.fuses_unknown) use_unknown();
      unknown = {unknown ? unknown->begin : range.begin, range.end};
    }
  }
  use_unknown();
}

template <class Use>
void for_each_symbol(const BpeModel& model, std::string_view piece, const Use& use) {
  if (!model.byte_level) return for_each_character_symbol(model, piece, use);
  for (std::size_t at = 0; at < piece.size(); ++at)
    use(*model.bytes[static_cast<std::uint8_t>(piece[at])], ByteRange{at, at + 1});
}

// The token that a piece is without any merge.
std::optional<std::uint32_t> complete_token(const BpeModel& model, std::string_view piece) {
  if (piece.size() > model.longest) return std::nullopt;
  std::string name;
  if (!model.byte_level)
    name = piece;
  else
    for (const char byte : piece) name += byte_character(static_cast<std::uint8_t>(byte));
  const auto found = model.vocabulary.find(name);
  return found == model.vocabulary.end() ? std::nullopt : std::optional(found->second);
}

std::array<std::string, 256> make_byte_characters() {
  std::array<std::string, 256> characters;
  char32_t next = 0x100;
  for (std::size_t byte = 0; byte < characters.size(); ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
    if (code >= 0x80) characters[byte] = static_cast<char>(0xc0U | code >> 6);
    characters[byte] += static_cast<char>(code < 0x80 ? code : 0x80U | (code & 0x3fU));
  }
  return characters;
}

// Adds the neighbors in the name of a token.
void add_joints(BpeModel& model, std::string_view name) {
  std::optional<std::uint32_t> previous;
  for (std::size_t at = 0; at < name.size();) {
    const CodePoint point = code_point(name, at);
    const std::optional<std::uint32_t> next = token_of(model, point.code);
    if (previous && next) model.joints.insert(neighbors_key(*previous, *next));
    previous = next;
    at += point.length;
  }
}

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

void BpeModel::set_merges(std::span<const TokenPair> pairs) {
  std::uint32_t rank = 0;
  std::unordered_set<std::uint32_t> parts, wholes;
  for (const TokenPair& pair : pairs) {
    merges.add(pair.left, pair.right, {rank++, pair.token});
    parts.insert({pair.left, pair.right});
    wholes.insert(pair.token);
  }
  for (const auto& [name, token] : vocabulary) {
    longest = std::max(longest, name.size());
    if (name.empty()) continue;
    if (const CodePoint point = code_point(name, 0); point.length == name.size())
      characters.emplace(point.code, token);
  }
  for (const auto& [name, token] : vocabulary)
    if (wholes.contains(token)) add_joints(*this, name);
  // Bytes and unknown characters have no joints, so they must not be merged.
  const auto merges_it = [&](const std::optional<std::uint32_t>& token) {
    return token && parts.contains(*token);
  };
  const auto is_unknown = [&](const auto& character) { return character.second == unknown; };
  divisible = byte_level || (!merges_it(unknown) && std::none_of(bytes.begin(), bytes.end(), merges_it) &&
                             std::none_of(characters.begin(), characters.end(), is_unknown));
}

void PieceEncoder::append(std::string_view piece, std::vector<std::uint32_t>& tokens) {
  if (piece.size() > kLongestCached) return append_divided(piece, tokens);
  if (pieces_.size() >= kMostCached) pieces_.clear();
  const auto [entry, is_new] = pieces_.try_emplace(std::string(piece));
  if (is_new) entry->second = encoded(piece);
  tokens.insert(tokens.end(), entry->second.begin(), entry->second.end());
}

std::vector<std::uint32_t> PieceEncoder::encoded(std::string_view piece) const {
  if (model_.ignore_merges)
    if (const std::optional<std::uint32_t> token = complete_token(model_, piece)) return {*token};
  std::vector<std::uint32_t> symbols;
  for_each_symbol(model_, piece, [&](std::uint32_t token, ByteRange) { symbols.push_back(token); });
  model_.merges.apply(symbols);
  return symbols;
}

// A part has the symbols between two gaps that no merge crosses: no token contains the characters at both
// sides next to each other.
void PieceEncoder::append_divided(std::string_view piece, std::vector<std::uint32_t>& tokens) {
  if (!model_.divisible || (model_.ignore_merges && complete_token(model_, piece))) {
    const std::vector<std::uint32_t> all = encoded(piece);
    tokens.insert(tokens.end(), all.begin(), all.end());
    return;
  }
  std::vector<std::uint32_t> symbols;
  ByteRange part;
  const auto end_part = [&] {
    append_part(piece.substr(part.begin, part.end - part.begin), symbols, tokens);
    symbols.clear();
  };
  for_each_symbol(model_, piece, [&](std::uint32_t token, ByteRange range) {
    if (!symbols.empty() && !model_.joints.contains(neighbors_key(symbols.back(), token))) end_part();
    if (symbols.empty()) part.begin = range.begin;
    part.end = range.end;
    symbols.push_back(token);
  });
  if (!symbols.empty()) end_part();
}

void PieceEncoder::append_part(std::string_view part, std::vector<std::uint32_t>& symbols,
                               std::vector<std::uint32_t>& tokens) {
  if (symbols.size() == 1) return tokens.push_back(symbols.front());
  if (part.size() > kLongestCached) {
    model_.merges.apply(symbols);
    tokens.insert(tokens.end(), symbols.begin(), symbols.end());
    return;
  }
  if (parts_.size() >= kMostCached) parts_.clear();
  const auto [entry, is_new] = parts_.try_emplace(std::string(part));
  if (is_new) {
    model_.merges.apply(symbols);
    entry->second = symbols;
  }
  tokens.insert(tokens.end(), entry->second.begin(), entry->second.end());
}

}  // namespace penstock::train
