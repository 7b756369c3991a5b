// Groups over NCCL, compiled where the libtorch at hand has it. Never run: no machine of ours has it
// (docs/backends.md).
#include "comm/backends/store_transport.h"
#include "comm/other_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace penstock {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::chrono::milliseconds join_timeout) {
  return std::make_shared<StoreTransport<c10d::ProcessGroupNCCL>>(std::move(store), std::move(prefix),
                                                                  join_timeout);
}
bool nccl_present() {
  return true;
}

}  // namespace penstock
