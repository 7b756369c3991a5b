// Reads files: the header when opened, elements by position on request.
#include "checkpoint/commit/files.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/base/text.h>
#include <penstock/checkpoint/error.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace penstock::checkpoint {

struct SafetensorsFile::Impl {
  explicit Impl(const std::string& path) : file(path) {}

  InputFile file;
  std::uint64_t data = 0;  //!< file offset of the elements
  SafetensorsHeader header;
  std::map<std::string, std::size_t> places;  //!< index in `header.entries`, by name
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
  throw ParseError(where + " has dtype bool, but its element " + std::to_string(bad - bytes.begin()) +
                   " is " + std::to_string(*bad));
}

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_shared<Impl>(path)) {
  Impl& content = *impl_;
  std::string prefix(std::min(content.file.size(), safetensors_prefix), '\0');
  content.file.read(0, bytes_of(prefix));
  std::string text(safetensors_header_length(bytes_of(prefix), content.file.size(), path), '\0');
  content.file.read(safetensors_prefix, bytes_of(text));
  content.data = safetensors_prefix + text.size();
  content.header = parse_safetensors_header(text, content.file.size() - content.data, path);
  for (std::size_t i = 0; i < content.header.entries.size(); ++i) {
    content.places.emplace(content.header.entries[i].name, i);
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const {
  return impl_->file.path();
}
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const {
  return impl_->header.entries;
}
const SafetensorsMetadata& SafetensorsFile::metadata() const {
  return impl_->header.metadata;
}
bool SafetensorsFile::has(const std::string& name) const {
  return impl_->places.contains(name);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto it = impl_->places.find(name);
  if (it != impl_->places.end()) return impl_->header.entries[it->second];
  std::vector<std::string> names;
  for (const auto& [known, place] : impl_->places) names.push_back(known);
  throw UsageError(path() + " has no tensor " + quote(name, 200), {}, did_you_mean(name, names));
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t offset,
                           std::span<std::uint8_t> target) const {
  if (offset > entry.nbytes() || target.size() > entry.nbytes() - offset) {
    throw UsageError("tensor " + quote(entry.name, 200) + " of " + path() + " has " +
                     std::to_string(entry.nbytes()) + " bytes; cannot read " + std::to_string(target.size()) +
                     " bytes from offset " + std::to_string(offset) + " on");
  }
  impl_->file.read(impl_->data + entry.begin + offset, target);
}

at::Tensor SafetensorsFile::load(const std::string& name) const {
  const SafetensorsEntry& entry = this->entry(name);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
  read(entry, 0, {bytes, entry.nbytes()});
  check_bools(entry.dtype, {bytes, entry.nbytes()}, path() + ": tensor " + quote(entry.name, 200));
  return tensor;
}

std::map<std::string, at::Tensor> load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) tensors.emplace(entry.name, file.load(entry.name));
  return tensors;
}

}  // namespace penstock::checkpoint
