// Writes files.
#include "checkpoint/safetensors/write.h"

#include "base/text.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <unistd.h>

#include <bit>

namespace penstock::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format's elements are little-endian");

void write_safetensors(OutputFile& file, std::vector<SafetensorsEntry> entries,
                       const std::function<at::Tensor(const std::string& name)>& tensor_of,
                       const SafetensorsMetadata& metadata, const AfterTensor& after) {
  file.write(layout_safetensors(entries, metadata));
  for (const SafetensorsEntry& entry : entries) {
    // One tensor at a time, to limit the memory for copies.
    const at::Tensor flat =
        tensor_of(entry.name).detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
    const std::span bytes(static_cast<const std::uint8_t*>(flat.const_data_ptr()), entry.nbytes());
    file.write(bytes);
    if (after) after(entry, bytes);
  }
}

void replace_safetensors(const std::string& path, std::vector<SafetensorsEntry> entries,
                         const std::function<at::Tensor(const std::string& name)>& tensor_of,
                         const SafetensorsMetadata& metadata) {
  const std::string temporary = str_cat(path, ".writing-", ::getpid());
  try {
    const auto file = disk().create(temporary);
    write_safetensors(*file, std::move(entries), tensor_of, metadata);
    file->finish();
    disk().rename(temporary, path);
    disk().sync_directory(parent_directory(path));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
      throw UsageError("tensor " + quote(name, 200) +
                       " is undefined, sparse or quantized and cannot be stored");
    }
    entries.push_back({.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  replace_safetensors(
      path, std::move(entries), [&](const std::string& name) { return tensors.at(name); }, metadata);
}

}  // namespace penstock::checkpoint
