// Reads and writes safetensors files: 8 bytes of header length, a JSON header with the name, dtype, shape and
// byte offsets of every tensor, then the elements. The reader validates the complete header. The writer
// produces the same bytes as the Python package.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

//! Returns the name of a dtype in the format (`F32`, `BF16`, `F8_E4M3`); empty if it is not supported.
std::string_view safetensors_dtype_name(at::ScalarType dtype);
//! The dtype with this name; nullopt if it is unknown.
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

//! The metadata of one tensor in a file.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  //!< byte offset from the end of the header
  std::uint64_t end = 0;

  std::uint64_t nbytes() const { return end - begin; }
};

//! Strings stored with the tensors, by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

//! An open file. The constructor reads only the header; tensors are read on request.
class SafetensorsFile {
 public:
  //! Throws StorageError if the file cannot be opened, ParseError if it is truncated or inconsistent: the
  //! header is too long or not valid JSON, has unknown dtypes or duplicate names, or its offsets overlap,
  //! leave gaps or exceed the file.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  //! Ordered by byte offset.
  const std::vector<SafetensorsEntry>& entries() const;
  //! The strings in the `__metadata__` entry of the header.
  const SafetensorsMetadata& metadata() const;

  bool has(const std::string& name) const;
  //! Throws UsageError, which suggests the closest name, if there is no such tensor.
  const SafetensorsEntry& entry(const std::string& name) const;

  //! Reads a tensor into newly allocated memory.
  at::Tensor load(const std::string& name) const;

  //! Fills `target` with bytes of the tensor, starting at byte `offset`.
  void read(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::uint8_t> target) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

//! Reads all tensors of a file into newly allocated memory.
std::map<std::string, at::Tensor> load_safetensors(const std::filesystem::path& path);

//! Writes a temporary file, flushes it to disk and renames it, so that `path` never contains a partial file.
//! Tensors may have any device and strides. Throws UsageError for dtypes and names that the format does not
//! support.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata = {});

}  // namespace penstock::checkpoint
