// Replaces the records of weights. A record may contain several tensors: tied weights and views.
#include "base/io/zip_copy.h"
#include "base/text.h"
#include "graph/pt2/import.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2_copy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>

#include <map>

namespace penstock::graph {
namespace {

std::vector<std::int64_t> sizes_of(const WeightLocation& location) {
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : location.meta.sizes) sizes.push_back(dim.size);
  return sizes;
}

//! Writes a tensor to its elements in the bytes of the record.
void copy_into(std::vector<std::uint8_t>& record, const std::string& name, const WeightLocation& location,
               const at::Tensor& value) {
  const std::vector<std::int64_t> sizes = sizes_of(location);
  if (value.sizes() != c10::IntArrayRef(sizes))
    throw UsageError(str_cat(quote(name, 200), " has shape ", format_shape(sizes),
                             " in the archive, but its new value has shape ", format_shape(value.sizes())));
  const auto element = static_cast<std::int64_t>(c10::elementSize(location.meta.dtype));
  const std::int64_t held = static_cast<std::int64_t>(record.size()) / element, span = location.span();
  if (location.strides.size() != sizes.size() || location.offset < 0 || span < 0 || location.offset > held ||
      span > held - location.offset)
    throw ParseError("the tensor " + quote(name, 200) + " exceeds its record " + location.record);
  if (span == 0) return;
  const at::Tensor all = at::from_blob(record.data(), {held}, at::TensorOptions(location.meta.dtype));
  all.as_strided(sizes, location.strides, location.offset).copy_(value);
}

}  // namespace

void copy_archive(const std::filesystem::path& archive, const std::filesystem::path& target,
                  const NewWeight& new_weight) {
  const at::NoGradGuard no_grad;
  ZipCopy copy(archive, target);
  const std::string folder = "data/weights/", index = folder + "model_weights_config.json";
  WeightLocations locations;
  if (copy.zip().has(index))
    read_weight_locations(parse_json(copy.zip().read(index), index), folder, index, locations);
  std::map<std::string, std::vector<std::string>> by_record;
  for (const auto& [name, location] : locations) by_record[location.record].push_back(name);
  for (const auto& [record, names] : by_record) {
    std::vector<std::uint8_t> bytes;
    for (const std::string& name : names) {
      const at::Tensor value = new_weight(name);
      if (!value.defined()) continue;
      if (locations.at(name).pickled)
        throw UsageError("the tensor " + quote(name, 200) + " is pickled, which only Python can write");
      if (bytes.empty()) bytes = copy.zip().read(record);
      copy_into(bytes, name, locations.at(name), value);
    }
    if (!bytes.empty()) copy.replace(record, bytes);
  }
  copy.finish();
}

}  // namespace penstock::graph
