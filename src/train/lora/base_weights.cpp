// Reads the base of adapters and identifies it.
#include "train/lora/base_weights.h"

#include "base/io/crc32.h"
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/weights.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::train {
namespace {

using checkpoint::Piece;

constexpr std::uint64_t kChecksumBytes = std::uint64_t{64} << 20;

std::uint64_t piece_bytes(const Piece& piece) {
  return static_cast<std::uint64_t>(piece.local.numel()) * piece.local.element_size();
}

}  // namespace

BaseWeights::BaseWeights(std::vector<Piece> state, ReadTensors own, const std::optional<InitialWeights>& init)
    : state_(std::move(state)), own_(std::move(own)) {
  for (std::size_t i = 0; i < state_.size(); ++i) {
    by_name_[state_[i].name] = i;
    for (const std::string& alias : state_[i].aliases) by_name_[alias] = i;
  }
  if (init) init_ = checkpoint::open_weights(init->path, init->renames);
}

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
  return stored(piece) == nullptr;
}

at::Tensor BaseWeights::read(const Piece& piece) const {
  const checkpoint::StoredTensor* const found = stored(piece);
  const at::Tensor value = found == nullptr ? own_({piece.name}).at(0) : init_->read(found->name);
  return value.detach().to(piece.local.scalar_type());
}

std::vector<const Piece*> BaseWeights::smallest_parameters() const {
  std::vector<const Piece*> all, chosen;
  for (const Piece& piece : state_)
    if (piece.kind == checkpoint::PieceKind::Parameter && piece.local.numel() > 0) all.push_back(&piece);
  std::sort(all.begin(), all.end(), [](const Piece* a, const Piece* b) {
    return std::pair(piece_bytes(*a), a->name) < std::pair(piece_bytes(*b), b->name);
  });
  std::uint64_t bytes = 0;
  for (const Piece* const piece : all) {
    bytes += piece_bytes(*piece);
    if (!chosen.empty() && bytes > kChecksumBytes) break;
    chosen.push_back(piece);
  }
  return chosen;
}

std::uint32_t BaseWeights::checksum() const {
  std::vector<std::string> own;
  const std::vector<const Piece*> chosen = smallest_parameters();
  for (const Piece* const piece : chosen)
    if (is_own(*piece)) own.push_back(piece->name);
  const std::vector<at::Tensor> own_values = own.empty() ? std::vector<at::Tensor>{} : own_(own);
  auto next = own_values.begin();
  std::uint32_t sum = 0;
  for (const Piece* const piece : chosen) {
    const at::Tensor value =
        (is_own(*piece) ? (next++)->detach().to(piece->local.scalar_type()) : read(*piece)).contiguous();
    sum = crc32c({static_cast<const std::uint8_t*>(value.const_data_ptr()), value.nbytes()}, sum);
  }
  return sum;
}

BaseWeights base_of(const Model& model, const std::optional<InitialWeights>& init) {
  std::vector<Piece> state = model.state_metadata();
  std::set<std::string> adapters;
  for (const AdaptedLayer& layer : model.lora()->layers) adapters.insert({layer.a(), layer.b()});
  std::erase_if(state, [&](const Piece& piece) { return adapters.contains(piece.name); });
  const auto own = [&model](const std::vector<std::string>& names) { return model.read_base(names); };
  return {std::move(state), own, init};
}

}  // namespace penstock::train
