// Opens the store.
#include "comm/rendezvous/store_client.h"

#include "comm/failure/descriptor_limit.h"
#include "comm/failure/sockets.h"

#include <penstock/base/error.h>

#include <set>

namespace penstock::comm {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const StoreOptions& options) {
  // libtorch retries until its timeout if it cannot create a socket.
  require_descriptors(options.hosts ? 12 : 2, "the job's store");
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = options.hosts;
  tcp.waitWorkers = false;
  tcp.multiTenant = options.shared;
  tcp.timeout = options.timeout;
  tcp.useLibUV = true;  // the other server reads one client at a time, so any foreign connection can block it
  if (options.hosts && options.only_here) {
    try {
      auto [listener, endpoint] = listen_on(options.host, options.port);
      tcp.port = endpoint.port;
      tcp.masterListenFd = listener.release();  // the store closes it, even if it fails to start
    } catch (const CommError&) {
      if (!options.shared) throw;  // otherwise this process may already host it
    }
  }
  const auto before = options.port == 0 ? std::set<int>{} : connections_to({options.host, options.port});
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
  // The store does not expose its socket: it is the new connection to that address.
  std::set<int> opened = connections_to({options.host, store->getPort()});
  std::erase_if(opened, [&](int fd) { return before.contains(fd); });
  set_ack_timeout(opened, kAckTimeout);
  return store;
}

}  // namespace penstock::comm
