// Encodes and decodes text.
#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "base/text.h"
#include "train/text/tokenizer_file.h"

#include <penstock/train/tokenizer.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock::train {

//! Without a file, tokens are bytes.
struct Tokenizer::Impl {
  std::optional<TokenizerFile> file{};
  std::int64_t size = 256;
};

namespace {

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
  return Tokenizer(std::make_shared<Impl>());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  auto impl = std::make_shared<Impl>();
  impl->file = parse_tokenizer_file(json, where);
  impl->size = 0;
  for (const auto& [id, text] : impl->file->tokens) impl->size = std::max(impl->size, std::int64_t{id} + 1);
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
  check_utf8(text);
  const TokenizerFile& file = *impl_->file;
  PieceEncoder encoder(file.model);
  const auto encode_text = [&](std::string_view part, bool at_start) {
    for_each_piece(part, at_start, file.splits,
                   [&](std::string_view piece) { encoder.append(piece, tokens); });
  };
  bool at_start = true;
  file.added.for_each_part(text, [&](const TextPart& part) {
    if (part.token) tokens.push_back(*part.token);
    std::string storage;
    const std::string_view rest = normalized(part.text, file.normalizer, storage);
    file.normalized_added.for_each_part(rest, [&](const TextPart& inner) {
      inner.token ? tokens.push_back(*inner.token) : encode_text(inner.text, at_start);
      at_start = false;
    });
    at_start = false;
  });
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int64_t> tokens) const {
  const std::string unknown = "\xef\xbf\xbd";
  if (!impl_->file) {
    std::string text;
    for (const std::int64_t token : tokens)
      if (token < 0 || token >= size())
        text += unknown;
      else
        text += static_cast<char>(token);
    return text;
  }
  const TokenizerFile& file = *impl_->file;
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const std::int64_t token : tokens) {
    const auto found = token < 0 || token >= size() ? file.tokens.end()
                                                    : file.tokens.find(static_cast<std::uint32_t>(token));
    texts.push_back(found == file.tokens.end() ? unknown : found->second);
  }
  return file.decoder ? decoded(std::move(texts), *file.decoder) : join(texts, " ");
}

std::optional<std::uint32_t> Tokenizer::id_of(std::string_view token) const {
  if (!impl_->file) return std::nullopt;
  const auto& added = impl_->file->added_ids;
  if (const auto found = added.find(std::string(token)); found != added.end()) return found->second;
  const auto& vocabulary = impl_->file->model.vocabulary;
  const auto found = vocabulary.find(std::string(token));
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace penstock::train
