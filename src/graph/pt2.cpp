// The archive: its index is read at once, its weights record by record.
#include "graph/pt2_import.h"
#include "graph/zip.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/graph/pt2.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>

namespace penstock {

struct Pt2Archive::Content {
  explicit Content(const std::string& file) : zip(file) {}

  ZipFile zip;
  WeightPlaces places;
  Graph graph;
};

Pt2Archive::Pt2Archive(const std::string& file) : content_(std::make_unique<Content>(file)) {
  const ZipFile& zip = content_->zip;
  if (zip.has("byteorder")) {
    const auto order = zip.read("byteorder");
    if (std::string_view(reinterpret_cast<const char*>(order.data()), order.size()) != "little") {
      throw UsageError(file + " was written on a machine of another byte order", {},
                       "export it on this kind of machine");
    }
  }
  if (!zip.has("models/model.json")) {
    throw ParseError(file + " holds no models/model.json", {},
                     "write it with torch.export.save of torch 2.13");
  }
  for (const std::string folder : {"data/weights/", "data/constants/"}) {
    const std::string index =
        folder + (folder == "data/weights/" ? "model_weights_config.json" : "model_constants_config.json");
    if (zip.has(index))
      read_weight_places(parse_json(zip.read(index), index), folder, index, content_->places);
  }
  content_->graph =
      import_program(parse_json(zip.read("models/model.json"), "models/model.json"), content_->places);
}

Pt2Archive::~Pt2Archive() = default;
Pt2Archive::Pt2Archive(Pt2Archive&&) noexcept = default;
Pt2Archive& Pt2Archive::operator=(Pt2Archive&&) noexcept = default;

const Graph& Pt2Archive::graph() const {
  return content_->graph;
}

at::Tensor Pt2Archive::load(const std::string& name) const {
  const auto it = content_->places.find(name);
  if (it == content_->places.end()) {
    std::vector<std::string> known;
    for (const auto& [other, place] : content_->places) known.push_back(other);
    const std::string near = nearest(name, known);
    throw UsageError("the archive holds no tensor " + quote(name, 200), {},
                     near.empty() ? "" : "did you mean " + near + "?");
  }
  const WeightPlace& place = it->second;
  if (place.pickled)
    throw UsageError("the tensor " + quote(name, 200) + " is pickled, which only Python can read");
  const auto bytes = content_->zip.read(place.record);
  const auto damaged = [&](const std::string& what) {
    return ParseError("the tensor " + quote(name, 200) + " in record " + place.record + " " + what);
  };
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : place.meta.sizes) {
    if (!dim.expression.empty() || dim.size < 0) throw damaged("has a size that is no number");
    sizes.push_back(dim.size);
  }
  if (place.strides.size() != sizes.size() || place.offset < 0)
    throw damaged("has strides that do not fit its sizes");
  // The number of elements from the first to the last.
  std::int64_t span = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t reach = 0;
    if (sizes[i] == 0) span = 0;
    if (place.strides[i] < 0 ||
        __builtin_mul_overflow(std::max<std::int64_t>(sizes[i] - 1, 0), place.strides[i], &reach) ||
        __builtin_add_overflow(span, span == 0 ? 0 : reach, &span)) {
      throw damaged("has strides that do not fit its sizes");
    }
    if (sizes[i] == 0) break;
  }
  const auto element = static_cast<std::int64_t>(c10::elementSize(place.meta.dtype));
  const auto held = static_cast<std::int64_t>(bytes.size()) / element;
  if (place.offset > held || span > held - place.offset) {
    throw damaged("needs " + std::to_string(span) + " elements after " + std::to_string(place.offset) +
                  ", but the record has " + std::to_string(held));
  }
  at::Tensor tensor = at::empty_strided(sizes, place.strides, at::TensorOptions().dtype(place.meta.dtype));
  if (span > 0)
    std::memcpy(tensor.data_ptr(), bytes.data() + place.offset * element,
                static_cast<std::size_t>(span * element));
  return tensor;
}

std::vector<at::Tensor> Pt2Archive::load(const std::vector<Slot>& slots) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots.size());
  for (const Slot& slot : slots) tensors.push_back(load(slot.names[0]).set_requires_grad(slot.requires_grad));
  return tensors;
}

}  // namespace penstock
