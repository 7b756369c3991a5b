// The registered functions for distributed tensors.
#include "value/distributed_values.h"

#include <atomic>

namespace penstock::value {
namespace {

std::atomic<const DistributedValues*> registered{nullptr};

}  // namespace

void register_distributed_values(const DistributedValues& values) {
  static const DistributedValues kept = values;
  registered.store(&kept, std::memory_order_release);
}

const DistributedValues* distributed_values(const at::Tensor& tensor) {
  const DistributedValues* const values = registered.load(std::memory_order_acquire);
  return values != nullptr && tensor.defined() && values->is(tensor) ? values : nullptr;
}

}  // namespace penstock::value
