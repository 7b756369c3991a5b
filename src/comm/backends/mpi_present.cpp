// Groups over MPI, compiled where the libtorch at hand has it. Never run: no machine of ours has it
// (docs/backends.md).
#include "comm/other_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroupMPI.hpp>

namespace penstock {
namespace {

// MPI finds its ranks itself; ours must be the same ones, which mpirun's environment gives.
class MpiTransport : public Transport {
 public:
  bool collectives_have_futures() const override { return false; }
  c10::intrusive_ptr<c10d::Backend> connect(Domain& /*domain*/, const std::string& /*name*/,
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

}  // namespace penstock
