// Adds the product of the factors of adapters to their base.
#include "train/lora/adapter_merge.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/weights.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <charconv>
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

std::optional<std::uint64_t> seed_of(const Checkpoint& checkpoint) {
  const std::string text = checkpoint.note("seed").value_or("");
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(seed) : std::nullopt;
}

BaseWeights open_base(const Checkpoint& adapters, std::vector<Piece> state, ReadTensor own,
                      const std::optional<InitialWeights>& init, AdapterChain chain) {
  const std::string shown = quote(adapters.path().string(), 200);
  const std::filesystem::path path = std::filesystem::weakly_canonical(adapters.path());
  if (std::find(chain.begin(), chain.end(), path) != chain.end())
    throw UsageError("the adapters in " + shown + " are their own base: a run replaced its initial weights",
                     {}, "use weights that were merged before that");
  chain.push_back(path);
  try {
    return {std::move(state), std::move(own), init, seed_of(adapters), chain};
  } catch (const UsageError& error) {
    throw UsageError("the base of the adapters in " + shown + " cannot be opened: " + error.message(),
                     error.context(), "restore the initial weights of the run that wrote the checkpoint");
  }
}

}  // namespace

AdapterMerge::AdapterMerge(std::shared_ptr<const Checkpoint> adapters, std::vector<Piece> state,
                           ReadTensor own, const AdapterChain& chain)
    : adapters_(std::move(adapters)),
      note_(note_of(*adapters_)),
      base_(open_base(*adapters_, std::move(state), std::move(own), note_.init, chain)) {
  check();
}

void AdapterMerge::check() {
  for (const AdaptedLayer& layer : note_.lora.layers) {
    const std::vector<std::int64_t>& shape = base_.metadata(layer.weight).shape;
    const std::int64_t rank = note_.lora.options.rank;
    const bool is_matrix = shape.size() == 2;
    const std::int64_t inputs = is_matrix ? shape[layer.transposed ? 0 : 1] : 0;
    const std::int64_t outputs = is_matrix ? shape[layer.transposed ? 1 : 0] : 0;
    check_shape(layer.a(), {rank, inputs});
    check_shape(layer.b(), {outputs, rank});
    layers_[base_.metadata(layer.weight).name] = &layer;
  }
  if (base_.checksum() == note_.base_checksum) return;
  throw UsageError("the adapters in " + quote(path().string(), 200) + " were trained on other base weights",
                   {}, "give the model that was trained, with its original weights");
}

void AdapterMerge::check_shape(const std::string& name, const std::vector<std::int64_t>& expected) const {
  const checkpoint::StoredTensor* const stored = adapters_->find(name);
  if (stored != nullptr && stored->shape == expected) return;
  throw UsageError(
      str_cat("the adapter ", quote(name, 200), " does not fit the model: ",
              stored == nullptr ? "it is missing" : "its shape is " + format_shape(stored->shape),
              ", expected ", format_shape(expected)),
      {}, "give the model that was trained");
}

// In float32 at least, like the sum in a forward pass of that type.
at::Tensor AdapterMerge::merged(const AdaptedLayer& layer, const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor a = adapters_->read(layer.a()).to(type), b = adapters_->read(layer.b()).to(type);
  at::Tensor change = at::matmul(b, a) * note_.lora.options.scale();
  if (layer.transposed) change = change.t();
  return (weight.to(type) + change).to(weight.scalar_type()).contiguous();
}

at::Tensor AdapterMerge::read(const std::string& name) const {
  const Piece& piece = base_.metadata(name);
  // Buffers that the run has changed.
  if (adapters_->find(piece.name) != nullptr) return adapters_->read(piece.name);
  const auto layer = layers_.find(piece.name);
  const at::Tensor base = base_.read(piece);
  return layer == layers_.end() ? base : merged(*layer->second, base);
}

at::Tensor AdapterMerge::read_changed(const std::string& name) const {
  const Piece& piece = base_.metadata(name);
  const bool changes =
      layers_.contains(piece.name) || !base_.is_own(piece) || adapters_->find(piece.name) != nullptr;
  return changes ? read(name) : at::Tensor();
}

std::uint32_t AdapterMerge::checksum() const {
  std::vector<std::pair<std::uint64_t, std::string>> tensors;
  for (const checkpoint::StoredTensor& tensor : adapters_->tensors())
    if (tensor.state.empty() && tensor.nbytes() > 0) tensors.emplace_back(tensor.nbytes(), tensor.name);
  std::uint32_t sum = note_.base_checksum;
  for (const std::string& name : smallest_tensors(std::move(tensors)))
    sum = checksum_of(adapters_->read(name), sum);
  return sum;
}

std::unique_ptr<const AdapterMerge> open_adapters(const InitialWeights& weights,
                                                  const std::vector<Piece>& state, const ReadTensor& own,
                                                  const AdapterChain& chain) {
  auto opened = std::make_shared<const Checkpoint>(checkpoint::open_weights(weights.path));
  if (!adapter_note(*opened)) return nullptr;
  if (!weights.renames.empty())
    throw UsageError("rename rules do not apply to the adapters in " + quote(opened->path().string(), 200),
                     {}, "leave out the rules: the adapters are those of this model");
  return std::make_unique<const AdapterMerge>(std::move(opened), state, own, chain);
}

}  // namespace penstock::train
