// Reads the index of the archive at once and its weights record by record.
#include "base/io/zip.h"
#include "base/text.h"
#include "graph/pt2/import.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>

namespace penstock::graph {

namespace {

//! Converts errors that libtorch throws on bad data into ParseError.
template <class Read>
auto guarded(const std::string& what, const Read& read) {
  try {
    return read();
  } catch (const c10::Error& error) {
    throw ParseError(what + ": " + error.what_without_backtrace(), {}, "the archive is damaged");
  }
}

void read_index(const ZipFile& zip, WeightLocations& locations) {
  for (const std::string folder : {"data/weights/", "data/constants/"}) {
    const std::string index =
        folder + (folder == "data/weights/" ? "model_weights_config.json" : "model_constants_config.json");
    if (zip.has(index)) read_weight_locations(parse_json(zip.read(index), index), folder, index, locations);
  }
}

}  // namespace

struct Pt2Archive::Impl {
  explicit Impl(const std::string& file) : zip(file) {}

  ZipFile zip;
  WeightLocations locations;
  Graph graph;
};

Pt2Archive::Pt2Archive(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  const std::string file = quote(path.string(), 200);
  const ZipFile& zip = impl_->zip;
  if (zip.has("byteorder")) {
    const auto order = zip.read("byteorder");
    if (std::string_view(reinterpret_cast<const char*>(order.data()), order.size()) != "little") {
      throw UsageError(file + " was written on a machine with a different byte order", {},
                       "export it on a little-endian machine");
    }
  }
  if (zip.has("constants.pkl")) {
    throw ParseError(file + " is a TorchScript archive, not an exported program", {},
                     "export the Python model with torch.export.export and torch.export.save");
  }
  if (!zip.has("models/model.json")) {
    throw ParseError(file + " does not contain models/model.json", {},
                     "write it with torch.export.save from torch 2.13");
  }
  guarded(file, [&] {
    read_index(zip, impl_->locations);
    impl_->graph =
        import_program(parse_json(zip.read("models/model.json"), "models/model.json"), impl_->locations);
  });
}

Pt2Archive::~Pt2Archive() = default;
Pt2Archive::Pt2Archive(Pt2Archive&&) noexcept = default;
Pt2Archive& Pt2Archive::operator=(Pt2Archive&&) noexcept = default;

const Graph& Pt2Archive::graph() const {
  return impl_->graph;
}

at::Tensor Pt2Archive::load(const std::string& name) const {
  const auto it = impl_->locations.find(name);
  if (it == impl_->locations.end()) {
    std::vector<std::string> known;
    for (const auto& [other, location] : impl_->locations) known.push_back(other);
    throw UsageError("the archive does not contain the tensor " + quote(name, 200), {},
                     did_you_mean(name, known));
  }
  const WeightLocation& location = it->second;
  if (location.pickled)
    throw UsageError("the tensor " + quote(name, 200) + " is pickled, which only Python can read");
  const auto damaged = [&](const std::string& what) {
    return ParseError("the tensor " + quote(name, 200) + " in record " + location.record + " " + what);
  };
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : location.meta.sizes) {
    if (!dim.expression.empty() || dim.size < 0) throw damaged("has a size that is not a number");
    sizes.push_back(dim.size);
  }
  if (location.strides.size() != sizes.size() || location.offset < 0)
    throw damaged("has strides that do not match its sizes");
  const std::int64_t span = location.span();
  if (span < 0) throw damaged("has strides that do not match its sizes");
  const auto element = static_cast<std::int64_t>(c10::elementSize(location.meta.dtype));
  const std::uint64_t record_size = impl_->zip.size(location.record);
  const auto held = static_cast<std::int64_t>(record_size) / element;
  if (location.offset > held || span > held - location.offset) {
    throw damaged(
        str_cat("needs ", span, " elements at offset ", location.offset, ", but the record has ", held));
  }
  at::Tensor tensor = guarded("the tensor " + quote(name, 200), [&] {
    return at::empty_strided(sizes, location.strides, at::TensorOptions().dtype(location.meta.dtype));
  });
  const std::span<std::uint8_t> target(static_cast<std::uint8_t*>(tensor.data_ptr()),
                                       static_cast<std::size_t>(span * element));
  if (target.size() == record_size) {  // usually a record is one tensor, so it needs no copy
    impl_->zip.read(location.record, target);
  } else {
    const std::vector<std::uint8_t> bytes = impl_->zip.read(location.record);
    std::copy_n(bytes.begin() + location.offset * element, target.size(), target.begin());
  }
  if (location.meta.dtype == at::kBool &&
      std::any_of(target.begin(), target.end(), [](auto b) { return b > 1; }))
    throw damaged("contains bools that are neither 0 nor 1");
  return tensor;
}

std::vector<at::Tensor> Pt2Archive::load(const std::vector<Slot>& slots) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots.size());
  std::map<std::string, std::vector<std::size_t>> by_record;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    tensors.push_back(load(slots[i].names[0]));
    by_record[impl_->locations.at(slots[i].names[0]).record].push_back(i);
  }
  // Overlapping tensors share memory, as in Python.
  for (const auto& [record, indices] : by_record) {
    at::Tensor record_tensor;
    for (const std::size_t i : indices) {
      const WeightLocation& location = impl_->locations.at(slots[i].names[0]);
      const bool overlaps = std::any_of(indices.begin(), indices.end(), [&](std::size_t j) {
        return i != j && location.overlaps(impl_->locations.at(slots[j].names[0]));
      });
      if (!overlaps) continue;
      if (!record_tensor.defined()) {
        const std::vector<std::uint8_t> bytes = impl_->zip.read(record);
        const auto count = static_cast<std::int64_t>(bytes.size() / c10::elementSize(location.meta.dtype));
        record_tensor = at::empty({count}, at::TensorOptions().dtype(location.meta.dtype));
        if (count > 0) std::memcpy(record_tensor.data_ptr(), bytes.data(), record_tensor.nbytes());
      }
      if (record_tensor.scalar_type() == location.meta.dtype)
        tensors[i] = record_tensor.as_strided(tensors[i].sizes(), tensors[i].strides(), location.offset);
    }
  }
  for (std::size_t i = 0; i < slots.size(); ++i) tensors[i].set_requires_grad(slots[i].requires_grad);
  return tensors;
}

}  // namespace penstock::graph
