// Groups over MPI, compiled if libtorch was built with it. Untested: no test machine has MPI
// (docs/backends.md).
#include "comm/transport/optional_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroupMPI.hpp>

namespace penstock::comm {
namespace {

// MPI numbers its ranks itself. The ranks of the world must agree, as in the environment of mpirun.
class MpiTransport : public Transport {
 public:
  //! MPI_Isend does not block, and messages are matched by tag.
  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return false; }
  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& /*generation*/, const std::string& /*name*/,
                                            const std::vector<int>& members, int /*me*/) override {
    return c10d::ProcessGroupMPI::createProcessGroupMPI(members);
  }
};

}  // namespace

std::shared_ptr<Transport> make_mpi_transport() {
  return std::make_shared<MpiTransport>();
}
bool mpi_present() {
  return true;
}

}  // namespace penstock::comm
