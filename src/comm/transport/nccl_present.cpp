// Groups over NCCL, compiled if libtorch was built with it. Untested: no test machine has NCCL
// (docs/backends.md).
#include "comm/transport/optional_backends.h"
#include "comm/transport/store_transport.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace penstock::comm {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::chrono::milliseconds join_timeout) {
  // NCCL runs the transfers of a pair of ranks on one stream, in the order in which they are issued.
  return std::make_shared<StoreTransport<c10d::ProcessGroupNCCL>>(std::move(store), std::move(prefix),
                                                                  join_timeout, schedule::SendMode::Ordered);
}
bool nccl_present() {
  return true;
}

}  // namespace penstock::comm
