// Writes files.
#include "checkpoint/safetensors/write.h"

#include "base/text.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <bit>
#include <optional>
#include <span>
#include <utility>

namespace penstock::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format's elements are little-endian");

namespace {

// A tensor in host memory, or on its way there from a device.
struct HostCopy {
  at::Tensor source;
  at::Tensor bytes;
  std::optional<c10::Event> end{};

  explicit HostCopy(const at::Tensor& tensor) : source(tensor.detach().resolve_conj().resolve_neg()) {
    if (source.is_cpu()) {
      bytes = source.contiguous();
      return;
    }
    bytes = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
    bytes.copy_(source, /*non_blocking=*/true);
    end.emplace(source.device().type());
    end->record(c10::impl::VirtualGuardImpl(source.device().type()).getStream(source.device()));
  }

  std::span<const std::uint8_t> wait() const {
    if (end) end->synchronize();
    return {static_cast<const std::uint8_t*>(bytes.const_data_ptr()), bytes.nbytes()};
  }
};

}  // namespace

void write_safetensors(OutputFile& file, std::vector<SafetensorsEntry> entries,
                       const std::function<at::Tensor(const std::string& name)>& tensor_of,
                       const SafetensorsMetadata& metadata, const AfterTensor& after) {
  file.write(layout_safetensors(entries, metadata));
  // One tensor at a time, to limit the memory for copies; from a device, the next one is copied meanwhile.
  std::optional<HostCopy> next;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const HostCopy current = next ? *std::move(next) : HostCopy(tensor_of(entries[i].name));
    next.reset();
    const std::span bytes = current.wait();
    if (current.end && i + 1 < entries.size()) next.emplace(tensor_of(entries[i + 1].name));
    file.write(bytes);
    if (after) after(entries[i], bytes);
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
