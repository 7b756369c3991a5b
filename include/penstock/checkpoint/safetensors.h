// Files of tensors in the safetensors format: 8 bytes of header length, a JSON header with the name, dtype,
// shape and place of every tensor, then the elements. The reader believes nothing that the file says; the
// writer's bytes are those that Python's package writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! The format's name of a dtype (`F32`, `BF16`, `F8_E4M3`), or empty if it has none.
std::string_view safetensors_dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

//! One tensor of a file, without its elements.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  //!< in bytes, counted from the first element of the file
  std::uint64_t end = 0;

  std::uint64_t nbytes() const { return end - begin; }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

//! An open file. Only the header is read at first; tensors follow when they are asked for.
class SafetensorsFile {
 public:
  //! StorageError if it cannot be opened, ParseError if it is no whole and consistent file: a header that is
  //! too long or no JSON, unknown dtypes, names given twice, places that overlap, leave holes or reach beyond
  //! the end.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  //! In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const;
  const SafetensorsMetadata& metadata() const;

  bool has(const std::string& name) const;
  //! UsageError, with the nearest name, if there is none.
  const SafetensorsEntry& entry(const std::string& name) const;

  //! A tensor with its own memory.
  at::Tensor load(const std::string& name) const;

  //! Bytes of one tensor, from `offset` on, into `target`: reads these and no others.
  void read(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::uint8_t> target) const;

 private:
  struct Content;
  std::shared_ptr<Content> content_;
};

//! All tensors of a file, with their own memory.
std::map<std::string, at::Tensor> load_safetensors(const std::string& path);

//! Writes a file: aside first, flushed to disk, then renamed, so that `path` is never a part of a file.
//! Tensors may be on any device and of any strides. UsageError for dtypes that the format lacks and names
//! that it cannot hold.
void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata = {});

}  // namespace penstock
