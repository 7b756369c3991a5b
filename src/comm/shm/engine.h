// Moves messages between the ranks of one host: matches sends with receives and runs collectives. Not thread
// safe; Link adds the lock and the waiting.
//
// A small message is copied into the ring of its receiver. A large one is described there, and the receiver
// reads it from the memory of the sender (process_vm_readv), which takes one copy and no time of the sender;
// the receiver then acknowledges it. Where the kernel does not allow that, a large message goes through the
// ring in parts. There is no thread: messages move when a rank calls `progress`, which every wait does.
#pragma once

#include "comm/shm/ring.h"
#include "comm/shm/segment.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm::shm {

//! A send, a receive or a collective.
struct Request {
  enum class Status { Pending, Done, WrongSize, Failed };

  bool ended() const { return status.load(std::memory_order_acquire) != Status::Pending; }
  void end(Status with, std::string why = {});

  std::atomic<Status> status{Status::Pending};
  std::string error;                 //!< set before `status`
  std::shared_ptr<const void> keep;  //!< owns the memory of a message
};
using RequestPtr = std::shared_ptr<Request>;

//! Matches a send with a receive: the peer (its index on the host), the group and the tag.
struct Key {
  int peer = 0;
  std::uint64_t channel = 0;
  std::int64_t tag = 0;

  friend bool operator==(const Key&, const Key&) = default;
};

//! Where a received message goes.
struct Sink {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  //! Combines received bytes with those at `into`. If empty, they are copied.
  std::function<void(std::byte* into, const std::byte* from, std::size_t bytes)> reduce;
};

class Engine;

//! A collective: sends and receives in several phases.
class Operation {
 public:
  virtual ~Operation() = default;
  //! Continues as far as possible without waiting. Returns whether it has ended.
  virtual bool advance(Engine& engine) = 0;
};

//! The part of a segment that all ranks of the host use.
struct Mailbox {
  alignas(64) std::atomic<std::uint32_t> doorbell{0};  //!< a futex; changes when something happens
  alignas(64) std::atomic<std::uint32_t> sleepers{0};  //!< threads of the owner that wait for the doorbell
  alignas(64) std::atomic<std::uint32_t> closed{0};    //!< the owner has left; its memory may be gone
};

class Engine {
 public:
  struct Setup {
    int rank = 0;                                    //!< index of this rank on its host
    std::vector<std::shared_ptr<Segment>> segments;  //!< of all ranks of the host
    std::size_t ring_capacity = 0;
    bool direct = false;  //!< ranks can read each other's memory
  };

  //! The bytes of a segment.
  static std::size_t segment_bytes(std::size_t ranks, std::size_t ring_capacity);

  explicit Engine(Setup setup);

  // Messages of one key arrive in order. The memory must stay valid until the request has ended. If it has
  // not ended when the function returns, the request keeps what `owner` returned.
  using Owner = std::function<std::shared_ptr<const void>()>;
  RequestPtr send(const Key& to, const void* data, std::size_t bytes, const Owner& owner = {});
  RequestPtr receive(const Key& from, Sink sink, const Owner& owner = {});
  void start(std::unique_ptr<Operation> operation);

  //! Moves what can move without waiting. Returns whether a request ended.
  bool progress();
  //! Whether a message to a rank that has not left is not yet delivered.
  bool has_unsent() const;
  //! Tells the peers that the memory of this rank is no longer valid.
  void close();

  Mailbox& mailbox() { return *mailboxes_[static_cast<std::size_t>(setup_.rank)]; }
  int ranks() const { return static_cast<int>(setup_.segments.size()); }

 private:
  struct Outgoing {
    Record record;  // without a payload
    const std::byte* data = nullptr;
    RequestPtr request;
  };
  struct Receive {
    Key key;
    Sink sink;
    RequestPtr request;
  };
  // A message without a receive, or whose parts are still arriving.
  struct Arrived {
    Key key;
    Record record;
    std::vector<std::byte> data;     // empty for Direct
    std::size_t missing = 0;         // bytes that have not arrived
    std::optional<Receive> receive;  // waits for the missing bytes
  };
  struct Unacknowledged {
    std::uint64_t number = 0;
    RequestPtr request;
  };
  struct Peer {
    RingWriter writer;
    RingReader reader;
    std::deque<Outgoing> outbox;
    std::deque<Unacknowledged> unacknowledged;
    // The receive or the unexpected message that the next Data record continues.
    std::optional<Receive> receiving;
    std::list<Arrived>::iterator buffering;
    bool is_buffering = false;
    bool gone = false;
  };

  bool write(int peer, Outgoing& message);
  void drain_outbox(int peer);
  void read_ring(int peer);
  void take_data(int peer, const Record& record);
  void take_direct(int peer, const Record& record);
  void take_ack(int peer, const Record& record);
  void deliver(const Receive& receive, const std::byte* data, const Record& record);
  void read_directly(const Receive& receive, const Record& record);
  //! Returns what went wrong, or an empty string.
  std::string copy_from(int peer, std::uint64_t address, const Sink& sink);
  std::optional<Receive> matching(const Key& key);
  bool size_fits(const Receive& receive, std::size_t bytes);
  void end(Request& request, Request::Status status, std::string why = {});
  void lose(int peer);
  void signal(int peer);

  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  Setup setup_;
  std::vector<Mailbox*> mailboxes_;
  std::vector<Peer> peers_;
  std::vector<Receive> receives_;  // posted, in order
  std::list<Arrived> arrived_;     // in order
  std::list<std::unique_ptr<Operation>> operations_;
  std::vector<std::byte> staging_;  // for reductions of direct messages
  std::uint64_t next_number_ = 0;
  bool ended_any_ = false;
};

//! Reads memory of another process of the same user. Returns 0 or the error number.
int read_memory(pid_t pid, std::uint64_t address, std::byte* into, std::size_t bytes);

//! Wakes all threads that wait for a futex.
void wake_futex(std::atomic<std::uint32_t>& futex);

}  // namespace penstock::comm::shm
