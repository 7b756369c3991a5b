// Merges adapters into their base.
#include "base/text.h"
#include "train/lora/base_weights.h"

#include <penstock/base/error.h>
#include <penstock/train/adapters.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include <map>
#include <utility>

namespace penstock::train {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Piece;

AdapterNote note_of(const Checkpoint& checkpoint) {
  std::optional<AdapterNote> note = adapter_note(checkpoint);
  if (!note)
    throw UsageError(quote(checkpoint.path().string(), 200) + " contains no adapters", {},
                     "give a checkpoint of a run with LoRA");
  return *std::move(note);
}

BaseWeights open_base(std::vector<Piece> state, ReadTensor own, const std::optional<InitialWeights>& init) {
  const auto read = [own = std::move(own)](const std::vector<std::string>& names) {
    std::vector<at::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back(own(name));
    return tensors;
  };
  try {
    return {std::move(state), read, init};
  } catch (const UsageError& error) {
    throw UsageError("the base of the adapters cannot be opened: " + error.message(), error.context(),
                     "restore the initial weights of the run that wrote the checkpoint");
  }
}

}  // namespace

struct MergedWeights::Impl {
  std::shared_ptr<const Checkpoint> adapters;
  AdapterNote note;
  BaseWeights base;
  std::map<std::string, const AdaptedLayer*> layers{};  // by weight

  void check() {
    for (const AdaptedLayer& layer : note.lora.layers) {
      const std::vector<std::int64_t>& shape = base.metadata(layer.weight).shape;
      const std::int64_t rank = note.lora.options.rank;
      const bool is_matrix = shape.size() == 2;
      const std::int64_t inputs = is_matrix ? shape[layer.transposed ? 0 : 1] : 0;
      const std::int64_t outputs = is_matrix ? shape[layer.transposed ? 1 : 0] : 0;
      check_shape(layer.a(), {rank, inputs});
      check_shape(layer.b(), {outputs, rank});
      layers[base.metadata(layer.weight).name] = &layer;
    }
    if (base.checksum() == note.base_checksum) return;
    throw UsageError(
        "the adapters in " + quote(adapters->path().string(), 200) + " were trained on other base weights",
        {}, "give the model that was trained, with its original weights");
  }

  void check_shape(const std::string& name, const std::vector<std::int64_t>& expected) const {
    const checkpoint::StoredTensor* const stored = adapters->find(name);
    if (stored != nullptr && stored->shape == expected) return;
    throw UsageError(
        str_cat("the adapter ", quote(name, 200), " does not fit the model: ",
                stored == nullptr ? "it is missing" : "its shape is " + format_shape(stored->shape),
                ", expected ", format_shape(expected)),
        {}, "give the model that was trained");
  }

  // In float32 at least, like the sum in a forward pass of that type.
  at::Tensor merged(const AdaptedLayer& layer, const at::Tensor& weight) const {
    const at::NoGradGuard no_grad;
    const at::ScalarType type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor a = adapters->read(layer.a()).to(type), b = adapters->read(layer.b()).to(type);
    at::Tensor change = at::matmul(b, a) * note.lora.options.scale();
    if (layer.transposed) change = change.t();
    return (weight.to(type) + change).to(weight.scalar_type()).contiguous();
  }
};

MergedWeights::MergedWeights(std::shared_ptr<const Checkpoint> adapters, std::vector<Piece> state,
                             ReadTensor own) {
  AdapterNote note = note_of(*adapters);
  BaseWeights base = open_base(std::move(state), std::move(own), note.init);
  impl_ = std::make_unique<Impl>(Impl{std::move(adapters), std::move(note), std::move(base)});
  impl_->check();
}

MergedWeights::~MergedWeights() = default;
MergedWeights::MergedWeights(MergedWeights&&) noexcept = default;
MergedWeights& MergedWeights::operator=(MergedWeights&&) noexcept = default;

at::Tensor MergedWeights::read(const std::string& name) const {
  const Piece& piece = impl_->base.metadata(name);
  // Buffers that the run has changed.
  if (impl_->adapters->find(piece.name) != nullptr) return impl_->adapters->read(piece.name);
  const auto layer = impl_->layers.find(piece.name);
  const at::Tensor base = impl_->base.read(piece);
  return layer == impl_->layers.end() ? base : impl_->merged(*layer->second, base);
}

at::Tensor MergedWeights::read_changed(const std::string& name) const {
  const Piece& piece = impl_->base.metadata(name);
  const bool changes = impl_->layers.contains(piece.name) || !impl_->base.is_own(piece) ||
                       impl_->adapters->find(piece.name) != nullptr;
  return changes ? read(name) : at::Tensor();
}

}  // namespace penstock::train
