// Opening the store.
#include "comm/store_client.h"

#include "comm/descriptors.h"
#include "comm/sockets.h"

#include <penstock/base/error.h>

#include <set>

namespace penstock {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const StoreOptions& options) {
  // libtorch tries for the whole of its time-out where a socket cannot be made.
  require_descriptors(options.hosts ? 12 : 2, "the job's store");
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = options.hosts;
  tcp.waitWorkers = false;
  tcp.multiTenant = options.shared;
  tcp.timeout = options.timeout;
  tcp.useLibUV = true;  // the other kind of server reads one client at a time: any stranger can hold it up
  if (options.hosts && options.only_here) {
    try {
      auto [listener, endpoint] = listen_on(options.host, options.port);
      tcp.port = endpoint.port;
      tcp.masterListenFd = listener.release();  // the store closes it, also if it cannot start
    } catch (const CommError&) {
      if (!options.shared) throw;  // else this process may be its host already
    }
  }
  const auto before = options.port == 0 ? std::set<int>{} : connections_to({options.host, options.port});
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
  // The store does not tell which socket is its own: it is the one to that address which was not there
  // before.
  std::set<int> mine = connections_to({options.host, store->getPort()});
  std::erase_if(mine, [&](int fd) { return before.contains(fd); });
  break_when_cut(mine, kCutLimit);
  return store;
}

}  // namespace penstock
