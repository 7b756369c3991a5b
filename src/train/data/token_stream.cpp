// Tokens in memory-mapped files and in memory.
#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/tokens.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock::train {
namespace {

// A file that is mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    const RegularFile file = open_regular_file(path);
    if (file.descriptor < 0) throw_storage_error("open", path, file.error, file.problem);
    descriptor_ = file.descriptor;
    size_ = file.size;
    if (size_ == 0) return;
    memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (memory_ != MAP_FAILED) return;
    const int error = errno;
    ::close(descriptor_);
    throw_storage_error("map", path, error);
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        size_(std::exchange(other.size_, 0)),
        memory_(std::exchange(other.memory_, nullptr)) {}
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Access beyond the end of a file that was truncated would end the process.
  const std::uint8_t* bytes(std::uint64_t end) const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) throw_storage_error("read", path_, errno);
    if (static_cast<std::uint64_t>(status.st_size) < end)
      throw_storage_error("read", path_, EIO, "it has become shorter since it was opened");
    return static_cast<const std::uint8_t*>(memory_);
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  void* memory_ = nullptr;
};

template <class Token>
class TokenFiles : public TokenStream {
 public:
  explicit TokenFiles(std::vector<MappedFile> files) : files_(std::move(files)) {
    for (const MappedFile& file : files_) {
      if (file.size() % sizeof(Token) != 0)
        throw UsageError(
            str_cat(quote(file.path(), 200), " has ", file.size(), " bytes, which is not a multiple of ",
                    sizeof(Token), ", the size of a token"),
            {}, "choose the type of the tokens that the file was written with");
      ends_.push_back(size() + static_cast<std::int64_t>(file.size() / sizeof(Token)));
    }
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  void read(std::int64_t begin, std::span<std::int64_t> tokens) const override {
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t index = file_of(begin);
      const auto first = static_cast<std::size_t>(begin - start_of(index));
      const std::size_t count =
          std::min(tokens.size() - done, static_cast<std::size_t>(ends_[index] - begin));
      const std::uint8_t* const bytes = files_[index].bytes((first + count) * sizeof(Token));
      for (std::size_t i = 0; i < count; ++i) {
        Token token = 0;
        std::memcpy(&token, bytes + (first + i) * sizeof(Token), sizeof(Token));
        tokens[done + i] = static_cast<std::int64_t>(token);
      }
      done += count;
      begin += static_cast<std::int64_t>(count);
    }
  }

  std::string location(std::int64_t position) const override {
    const std::size_t index = file_of(position);
    return str_cat("token ", position - start_of(index), " of ", quote(files_[index].path(), 200));
  }

 private:
  std::size_t file_of(std::int64_t position) const {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
  }
  std::int64_t start_of(std::size_t index) const { return index == 0 ? 0 : ends_[index - 1]; }

  std::vector<MappedFile> files_;
  std::vector<std::int64_t> ends_;  // the position after the last token of each file
};

class TokensInMemory : public TokenStream {
 public:
  explicit TokensInMemory(std::vector<std::uint32_t> tokens) : tokens_(std::move(tokens)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  void read(std::int64_t begin, std::span<std::int64_t> tokens) const override {
    std::copy_n(tokens_.begin() + begin, tokens.size(), tokens.begin());
  }
  std::string location(std::int64_t position) const override { return str_cat("token ", position); }

 private:
  std::vector<std::uint32_t> tokens_;
};

}  // namespace

std::string_view to_string(TokenDtype dtype) {
  return dtype == TokenDtype::Uint32 ? "uint32" : "uint16";
}

std::shared_ptr<const TokenStream> token_files(const std::vector<std::filesystem::path>& files,
                                               TokenDtype dtype) {
  std::vector<MappedFile> mapped;
  mapped.reserve(files.size());
  for (const std::filesystem::path& file : files) mapped.emplace_back(file.string());
  if (dtype == TokenDtype::Uint32) return std::make_shared<TokenFiles<std::uint32_t>>(std::move(mapped));
  return std::make_shared<TokenFiles<std::uint16_t>>(std::move(mapped));
}

std::shared_ptr<const TokenStream> token_memory(std::vector<std::uint32_t> tokens) {
  return std::make_shared<TokensInMemory>(std::move(tokens));
}

std::optional<std::int64_t> largest_token(const TokenStream& stream,
                                          const std::function<void(std::int64_t)>& progress) {
  constexpr std::int64_t chunk = 1 << 16;
  std::vector<std::int64_t> tokens;
  std::optional<std::int64_t> largest;
  for (std::int64_t begin = 0; begin < stream.size(); begin += chunk) {
    tokens.resize(static_cast<std::size_t>(std::min(chunk, stream.size() - begin)));
    stream.read(begin, tokens);
    largest = std::max(largest.value_or(0), *std::max_element(tokens.begin(), tokens.end()));
    if (progress) progress(begin + static_cast<std::int64_t>(tokens.size()));
  }
  return largest;
}

}  // namespace penstock::train
