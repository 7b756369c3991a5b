// Reads files: the header when opened, elements by position on request.
#include "base/text.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/checkpoint/error.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace penstock::checkpoint {

struct SafetensorsFile::Impl {
  explicit Impl(const std::filesystem::path& given) : path(given), file(given) {}

  std::filesystem::path path;
  InputFile file;
  std::uint64_t data = 0;  //!< file offset of the elements
  SafetensorsHeader header;
  std::map<std::string, std::size_t> indices;  //!< index in `header.entries`, by name
};

namespace {

std::span<std::uint8_t> bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

void check_bools(at::ScalarType dtype, std::span<const std::uint8_t> bytes, const std::string& where) {
  if (dtype != at::kBool) return;
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte > 1; });
  if (bad == bytes.end()) return;
  throw ParseError(str_cat(where, " has dtype bool, but its element ", bad - bytes.begin(), " is ", *bad));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : impl_(std::make_shared<Impl>(path)) {
  Impl& impl = *impl_;
  const std::string where = quote(path.string(), 200);
  std::string prefix(std::min(impl.file.size(), kSafetensorsPrefix), '\0');
  impl.file.read(0, bytes_of(prefix));
  std::string text(safetensors_header_length(bytes_of(prefix), impl.file.size(), where), '\0');
  impl.file.read(kSafetensorsPrefix, bytes_of(text));
  impl.data = kSafetensorsPrefix + text.size();
  impl.header = parse_safetensors_header(text, impl.file.size() - impl.data, where);
  for (std::size_t i = 0; i < impl.header.entries.size(); ++i) {
    impl.indices.emplace(impl.header.entries[i].name, i);
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return impl_->path;
}
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const {
  return impl_->header.entries;
}
const SafetensorsMetadata& SafetensorsFile::metadata() const {
  return impl_->header.metadata;
}
bool SafetensorsFile::has(const std::string& name) const {
  return impl_->indices.contains(name);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto it = impl_->indices.find(name);
  if (it != impl_->indices.end()) return impl_->header.entries[it->second];
  std::vector<std::string> names;
  for (const auto& [known, index] : impl_->indices) names.push_back(known);
  throw UsageError(quote(path().string(), 200) + " has no tensor " + quote(name, 200), {},
                   did_you_mean(name, names));
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t offset,
                           std::span<std::uint8_t> target) const {
  if (offset > entry.nbytes() || target.size() > entry.nbytes() - offset) {
    throw UsageError(str_cat("tensor ", quote(entry.name, 200), " of ", quote(path().string(), 200), " has ",
                             entry.nbytes(), " bytes; cannot read ", target.size(), " bytes at offset ",
                             offset));
  }
  impl_->file.read(impl_->data + entry.begin + offset, target);
}

at::Tensor SafetensorsFile::load(const std::string& name) const {
  const SafetensorsEntry& entry = this->entry(name);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
  read(entry, 0, {bytes, entry.nbytes()});
  check_bools(entry.dtype, {bytes, entry.nbytes()},
              quote(path().string(), 200) + ": tensor " + quote(entry.name, 200));
  return tensor;
}

std::map<std::string, at::Tensor> load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) tensors.emplace(entry.name, file.load(entry.name));
  return tensors;
}

}  // namespace penstock::checkpoint
