// Stub for a libtorch that was built without MPI.
#include "comm/transport/optional_backends.h"

#include <penstock/base/error.h>

namespace penstock::comm {

std::shared_ptr<Transport> make_mpi_transport() {
  throw CommError("this libtorch was built without MPI", {},
                  "set `backend` to gloo, or use a libtorch built with MPI");
}
bool mpi_present() {
  return false;
}

}  // namespace penstock::comm
