// Stands in for MPI where the libtorch at hand was built without it.
#include "comm/other_backends.h"

#include <penstock/base/error.h>

namespace penstock {

std::shared_ptr<Transport> make_mpi_transport() {
  throw CommError("this libtorch was built without MPI", {},
                  "use --backend gloo, or a libtorch that has MPI");
}
bool mpi_present() {
  return false;
}

}  // namespace penstock
