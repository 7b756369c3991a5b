// Encodes and decodes text.
#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "train/text/normal_form.h"
#include "train/text/tokenizer_file.h"

#include <penstock/train/tokenizer.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace penstock::train {

//! Without a file, tokens are bytes.
struct Tokenizer::Impl {
  std::optional<TokenizerFile> file{};
  std::unordered_map<std::uint32_t, std::string> texts{};  //!< the bytes of each token
  std::int64_t size = 0;
};

namespace {

// Parts of a text: an added token, or text between them.
struct TextPart {
  std::string_view text;
  std::optional<std::uint32_t> token{};
};

// Finds the leftmost added token, the longest of those that start there.
std::vector<TextPart> split_at_added(std::string_view text, const std::vector<AddedToken>& added,
                                     bool normalized) {
  std::array<std::vector<const AddedToken*>, 256> by_first_byte;
  for (const AddedToken& token : added)
    if (token.normalized == normalized)
      by_first_byte[static_cast<unsigned char>(token.content[0])].push_back(&token);
  std::vector<TextPart> parts;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    for (const AddedToken* const token : by_first_byte[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(token->content) &&
          (longest == nullptr || token->content.size() > longest->content.size()))
        longest = token;
    if (longest == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) parts.push_back({text.substr(begin, at - begin)});
    parts.push_back({text.substr(at, longest->content.size()), longest->id});
    begin = at += longest->content.size();
  }
  if (begin < text.size()) parts.push_back({text.substr(begin)});
  return parts;
}

// Words repeat, so that most of them are encoded once.
class WordEncoder {
 public:
  explicit WordEncoder(const TokenizerFile& file) : file_(file) {}

  void append(std::string_view text, std::vector<std::uint32_t>& tokens) {
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = end_of_word(text, begin, file_.pattern);
      const std::string_view word = text.substr(begin, end - begin);
      constexpr std::size_t most = 1 << 16;
      if (words_.size() >= most) words_.clear();
      const auto [entry, is_new] = words_.try_emplace(std::string(word));
      if (is_new) entry->second = encoded(word);
      tokens.insert(tokens.end(), entry->second.begin(), entry->second.end());
    }
  }

 private:
  std::vector<std::uint32_t> encoded(std::string_view word) const {
    if (file_.ignore_merges) {
      std::string spelled;
      for (const char byte : word) spelled += byte_character(static_cast<std::uint8_t>(byte));
      if (const auto found = file_.vocabulary.find(spelled); found != file_.vocabulary.end())
        return {found->second};
    }
    std::vector<std::uint32_t> symbols;
    symbols.reserve(word.size());
    for (const char byte : word) symbols.push_back(file_.bytes[static_cast<std::uint8_t>(byte)]);
    file_.merges.apply(symbols);
    return symbols;
  }

  const TokenizerFile& file_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> words_;
};

// The bytes of each token, by id. The vocabulary spells bytes as characters; added tokens are plain text.
std::unordered_map<std::uint32_t, std::string> texts_of(const TokenizerFile& file) {
  std::unordered_map<std::uint32_t, std::string> texts;
  for (const auto& [token, id] : file.vocabulary) texts[id] = bytes_of_token(token).value_or(token);
  for (const AddedToken& token : file.added) texts[token.id] = token.content;
  return texts;
}

std::string read_tokenizer(const std::string& path) {
  const RegularFile file = open_regular_file(path);
  if (file.descriptor < 0) throw_storage_error("open", path, file.error, file.problem);
  const std::unique_ptr<const int, void (*)(const int*)> closer(&file.descriptor,
                                                                [](const int* open) { ::close(*open); });
  std::string content(file.size, '\0');
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t count = ::read(file.descriptor, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_storage_error("read", path, errno);
    if (count == 0) content.resize(done);  // it has become shorter
    done += static_cast<std::size_t>(count);
  }
  return content;
}

}  // namespace

Tokenizer Tokenizer::bytes() {
  auto impl = std::make_shared<Impl>();
  impl->size = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) impl->texts[byte] = static_cast<char>(byte);
  return Tokenizer(impl);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  auto impl = std::make_shared<Impl>();
  impl->file = parse_tokenizer_file(json, where);
  impl->texts = texts_of(*impl->file);
  for (const auto& [id, text] : impl->texts) impl->size = std::max(impl->size, std::int64_t{id} + 1);
  return Tokenizer(impl);
}

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  return parse(read_tokenizer(file.string()), file.string());
}

std::int64_t Tokenizer::size() const {
  return impl_->size;
}

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint32_t> tokens;
  if (!impl_->file) {
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<std::uint8_t>(byte));
    return tokens;
  }
  const TokenizerFile& file = *impl_->file;
  WordEncoder encoder(file);
  for (const TextPart& part : split_at_added(text, file.added, false)) {
    if (part.token) {
      tokens.push_back(*part.token);
      continue;
    }
    const bool composes = file.composes && !precedes_marks(part.text);
    const std::string composed = composes ? composed_form(part.text) : "";
    for (const TextPart& inner : split_at_added(composes ? composed : part.text, file.added, true))
      inner.token ? tokens.push_back(*inner.token) : encoder.append(inner.text, tokens);
  }
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) {
    const auto found = token < 0 || token >= size() ? impl_->texts.end()
                                                    : impl_->texts.find(static_cast<std::uint32_t>(token));
    text += found == impl_->texts.end() ? "\xef\xbf\xbd" : found->second;
  }
  return text;
}

std::optional<std::uint32_t> Tokenizer::id_of(std::string_view token) const {
  if (!impl_->file) return std::nullopt;
  for (const AddedToken& added : impl_->file->added)
    if (added.content == token) return added.id;
  const auto found = impl_->file->vocabulary.find(std::string(token));
  return found == impl_->file->vocabulary.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace penstock::train
