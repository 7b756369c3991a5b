// The public handle of merged adapters.
#include "train/lora/adapter_merge.h"

#include <penstock/train/adapters.h>

#include <utility>

namespace penstock::train {

struct MergedWeights::Impl {
  AdapterMerge merge;
};

MergedWeights::MergedWeights(std::shared_ptr<const checkpoint::Checkpoint> adapters,
                             std::vector<checkpoint::Piece> state, ReadTensor own)
    : impl_(
          std::make_unique<Impl>(Impl{AdapterMerge(std::move(adapters), std::move(state), std::move(own))})) {
}

MergedWeights::~MergedWeights() = default;
MergedWeights::MergedWeights(MergedWeights&&) noexcept = default;
MergedWeights& MergedWeights::operator=(MergedWeights&&) noexcept = default;

at::Tensor MergedWeights::read(const std::string& name) const {
  return impl_->merge.read(name);
}

at::Tensor MergedWeights::read_changed(const std::string& name) const {
  return impl_->merge.read_changed(name);
}

}  // namespace penstock::train
