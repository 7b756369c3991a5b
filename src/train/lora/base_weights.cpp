// Reads the base of adapters and identifies it.
#include "train/lora/base_weights.h"

#include "base/io/crc32.h"
#include "base/text.h"
#include "train/lora/adapter_merge.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/weights.h>

#include <algorithm>
#include <set>

namespace penstock::train {
namespace {

using checkpoint::Piece;

constexpr std::uint64_t kChecksumBytes = std::uint64_t{64} << 20;

}  // namespace

BaseWeights::BaseWeights(std::vector<Piece> state, ReadTensor own, const std::optional<InitialWeights>& init,
                         std::optional<std::uint64_t> seed, const AdapterChain& chain)
    : state_(std::move(state)), own_(std::move(own)), seed_(seed) {
  for (std::size_t i = 0; i < state_.size(); ++i) {
    by_name_[state_[i].name] = i;
    for (const std::string& alias : state_[i].aliases) by_name_[alias] = i;
  }
  if (!init) return;
  merged_ = open_adapters(*init, state_, own_, chain);
  if (!merged_) init_ = checkpoint::open_weights(init->path, init->renames);
}

BaseWeights::~BaseWeights() = default;
BaseWeights::BaseWeights(BaseWeights&&) noexcept = default;
BaseWeights& BaseWeights::operator=(BaseWeights&&) noexcept = default;

const Piece& BaseWeights::metadata(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    throw UsageError("the model has no parameter or buffer " + quote(name, 200), {},
                     "give the model that was trained");
  return state_[found->second];
}

const checkpoint::StoredTensor* BaseWeights::stored(const Piece& piece) const {
  if (!init_) return nullptr;
  const checkpoint::StoredTensor* found = init_->find(piece.name);
  for (const std::string& alias : piece.aliases)
    if (found == nullptr) found = init_->find(alias);
  return found != nullptr && found->shape == piece.shape ? found : nullptr;
}

bool BaseWeights::is_own(const Piece& piece) const {
  return !merged_ && stored(piece) == nullptr;
}

at::Tensor BaseWeights::read(const Piece& piece) const {
  if (merged_) return merged_->read(piece.name);
  const checkpoint::StoredTensor* const found = stored(piece);
  const at::Tensor value = found == nullptr ? own_(piece.name, seed_) : init_->read(found->name);
  return value.detach().to(piece.local.scalar_type());
}

std::uint32_t BaseWeights::checksum() const {
  if (merged_) return merged_->checksum();
  std::vector<std::pair<std::uint64_t, std::string>> parameters;
  for (const Piece& piece : state_) {
    const auto elements = static_cast<std::uint64_t>(piece.local.numel());
    if (piece.kind == checkpoint::PieceKind::Parameter && elements > 0)
      parameters.emplace_back(elements * piece.local.element_size(), piece.name);
  }
  std::uint32_t sum = 0;
  for (const std::string& name : smallest_tensors(std::move(parameters)))
    sum = checksum_of(read(metadata(name)), sum);
  return sum;
}

std::vector<std::string> smallest_tensors(std::vector<std::pair<std::uint64_t, std::string>> tensors) {
  std::sort(tensors.begin(), tensors.end());
  std::vector<std::string> chosen;
  std::uint64_t total = 0;
  for (const auto& [bytes, name] : tensors) {
    total += bytes;
    if (!chosen.empty() && total > kChecksumBytes) break;
    chosen.push_back(name);
  }
  return chosen;
}

std::uint32_t checksum_of(const at::Tensor& tensor, std::uint32_t sum) {
  const at::Tensor value = tensor.contiguous();
  return crc32c({static_cast<const std::uint8_t*>(value.const_data_ptr()), value.nbytes()}, sum);
}

std::vector<Piece> base_state(const Model& model) {
  std::vector<Piece> state = model.state_metadata();
  if (model.lora() == nullptr) return state;
  std::set<std::string> adapters;
  for (const AdaptedLayer& layer : model.lora()->layers) adapters.insert({layer.a(), layer.b()});
  std::erase_if(state, [&](const Piece& piece) { return adapters.contains(piece.name); });
  return state;
}

ReadTensor own_weights(const Model& model) {
  return [&model](const std::string& name, std::optional<std::uint64_t> seed) {
    at::Tensor value = model.read_base(name, seed);
    if (!value.defined())
      throw UsageError("the model does not tell the initial value of " + quote(name, 200) +
                           ", which belongs to the base of adapters",
                       {},
                       "implement Model::read_base, or merge the adapters into a file of complete weights");
    return value;
  };
}

BaseWeights base_of(const Model& model, const std::optional<InitialWeights>& init) {
  return {base_state(model), own_weights(model), init, std::nullopt};
}

}  // namespace penstock::train
