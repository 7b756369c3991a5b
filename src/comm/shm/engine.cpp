// Matches, moves and reduces messages in shared memory.
#include "comm/shm/engine.h"

#include "base/text.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

namespace penstock::comm::shm {
namespace {

// Parts of a large message through the ring, small enough to stay in the cache.
constexpr std::size_t kPartBytes = 64U << 10U;
// Parts in which a direct message is reduced.
constexpr std::size_t kStagingBytes = 128U << 10U;

void apply(const Sink& sink, std::size_t offset, const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (sink.reduce) {
    sink.reduce(sink.memory + offset, data, bytes);
  } else {
    std::memcpy(sink.memory + offset, data, bytes);
  }
}

}  // namespace

int read_memory(pid_t pid, std::uint64_t address, std::byte* into, std::size_t bytes) {
  while (bytes > 0) {
    iovec local{into, bytes};
    iovec remote{reinterpret_cast<void*>(address), bytes};
    const auto count = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EFAULT;
    into += count;
    address += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  return 0;
}

void wake_futex(std::atomic<std::uint32_t>& futex) {
  static_assert(sizeof futex == sizeof(std::uint32_t));
  syscall(SYS_futex, &futex, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Request::end(Status with, std::string why) {
  error = std::move(why);
  status.store(with, std::memory_order_release);
}

std::size_t Engine::segment_bytes(std::size_t ranks, std::size_t ring_capacity) {
  return sizeof(Mailbox) + ranks * ring_bytes(ring_capacity);
}

Engine::Engine(Setup setup) : setup_(std::move(setup)) {
  const std::size_t stride = ring_bytes(setup_.ring_capacity);
  const auto ring = [&](int owner, int from) {
    return setup_.segments[static_cast<std::size_t>(owner)]->data() + sizeof(Mailbox) +
           static_cast<std::size_t>(from) * stride;
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    std::byte* const start = setup_.segments[static_cast<std::size_t>(peer)]->data();
    mailboxes_.push_back(std::launder(reinterpret_cast<Mailbox*>(start)));
    peers_.push_back({.writer = RingWriter(ring(peer, setup_.rank), setup_.ring_capacity),
                      .reader = RingReader(ring(setup_.rank, peer), setup_.ring_capacity)});
  }
  staging_.resize(kStagingBytes);
}

void Engine::signal(int peer) {
  Mailbox& mailbox = *mailboxes_[static_cast<std::size_t>(peer)];
  if (mailbox.sleepers.load() == 0) return;
  mailbox.doorbell.fetch_add(1);
  wake_futex(mailbox.doorbell);
}

void Engine::end(Request& request, Request::Status status, std::string why) {
  request.keep.reset();
  request.end(status, std::move(why));
  ended_any_ = true;
}

RequestPtr Engine::send(const Key& to, const void* data, std::size_t bytes, const Owner& owner) {
  auto request = std::make_shared<Request>();
  Peer& peer = at(to.peer);
  // Copying is faster for a message that the ring holds as a whole (docs/runtime-speed.md).
  const bool direct = setup_.direct && bytes > setup_.ring_capacity / 4;
  Outgoing message{.record = {.kind = direct ? RecordKind::Direct : RecordKind::Data,
                              .channel = to.channel,
                              .tag = to.tag,
                              .bytes = bytes,
                              .address = reinterpret_cast<std::uint64_t>(data),
                              .number = next_number_++},
                   .data = static_cast<const std::byte*>(data),
                   .request = request};
  if (peer.gone) {
    end(*request, Request::Status::Failed, "the peer has left");
  } else if (!peer.outbox.empty() || !write(to.peer, message)) {
    peer.outbox.push_back(std::move(message));
  }
  if (owner && !request->ended()) request->keep = owner();
  return request;
}

// Writes as much as fits. Returns whether the message is written completely.
bool Engine::write(int to, Outgoing& message) {
  Peer& peer = at(to);
  const std::size_t part = std::min(kPartBytes, peer.writer.max_payload());
  for (;;) {
    const bool with_payload = message.record.kind == RecordKind::Data;
    const std::size_t payload =
        with_payload ? std::min(message.record.bytes - message.record.offset, part) : 0;
    Record* record = peer.writer.reserve(payload);
    if (record == nullptr) {
      if (peer.writer.await_room(payload)) return false;
      record = peer.writer.reserve(payload);
    }
    const std::uint32_t size = record->size;
    *record = message.record;
    record->size = size;
    record->payload = static_cast<std::uint32_t>(payload);
    if (payload > 0) std::memcpy(record + 1, message.data + message.record.offset, payload);
    peer.writer.publish(*record);
    signal(to);
    message.record.offset += payload;
    if (message.record.kind == RecordKind::Direct)
      peer.unacknowledged.push_back({message.record.number, message.request});
    if (!with_payload) return true;
    if (message.record.offset == message.record.bytes) {
      end(*message.request, Request::Status::Done);
      return true;
    }
  }
}

void Engine::drain_outbox(int to) {
  Peer& peer = at(to);
  while (!peer.outbox.empty() && write(to, peer.outbox.front())) peer.outbox.pop_front();
}

std::optional<Engine::Receive> Engine::matching(const Key& key) {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Receive& posted) { return posted.key == key; });
  if (found == receives_.end()) return std::nullopt;
  Receive receive = std::move(*found);
  receives_.erase(found);
  return receive;
}

RequestPtr Engine::receive(const Key& from, Sink sink, const Owner& owner) {
  Receive receive{.key = from, .sink = std::move(sink), .request = std::make_shared<Request>()};
  RequestPtr request = receive.request;
  const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& message) {
    return message.key == from && !message.receive;
  });
  if (found == arrived_.end()) {
    if (at(from.peer).gone) {
      end(*request, Request::Status::Failed, "the peer has left");
    } else {
      if (owner) request->keep = owner();
      receives_.push_back(std::move(receive));
    }
    return request;
  }
  if (found->missing > 0) {
    if (owner) request->keep = owner();
    found->receive = std::move(receive);
    return request;
  }
  if (found->record.kind == RecordKind::Direct) {
    read_directly(receive, found->record);
  } else if (size_fits(receive, found->record.bytes)) {
    apply(receive.sink, 0, found->data.data(), found->data.size());
    end(*request, Request::Status::Done);
  }
  arrived_.erase(found);
  return request;
}

bool Engine::size_fits(const Receive& receive, std::size_t bytes) {
  if (bytes == receive.sink.bytes) return true;
  end(*receive.request, Request::Status::WrongSize,
      str_cat("received ", format_bytes(bytes), ", expected ", format_bytes(receive.sink.bytes)));
  return false;
}

void Engine::take_data(int from, const Record& record) {
  Peer& peer = at(from);
  const auto* const data = reinterpret_cast<const std::byte*>(&record + 1);
  const bool last = record.offset + record.payload == record.bytes;
  if (record.offset == 0) {
    const Key key{from, record.channel, record.tag};
    peer.receiving = matching(key);
    if (!peer.receiving) {
      Arrived message{.key = key, .record = record, .data = {}, .missing = record.bytes, .receive = {}};
      message.data.resize(record.bytes);
      peer.buffering = arrived_.insert(arrived_.end(), std::move(message));
      peer.is_buffering = true;
    } else if (!size_fits(*peer.receiving, record.bytes)) {
      peer.receiving.reset();  // skips the message
    }
  }
  if (peer.receiving) {
    apply(peer.receiving->sink, record.offset, data, record.payload);
    if (!last) return;
    end(*peer.receiving->request, Request::Status::Done);
    peer.receiving.reset();
  } else if (peer.is_buffering) {
    Arrived& message = *peer.buffering;
    if (record.payload > 0) std::memcpy(message.data.data() + record.offset, data, record.payload);
    message.missing -= record.payload;
    if (!last) return;
    peer.is_buffering = false;
    if (!message.receive) return;
    if (size_fits(*message.receive, record.bytes)) {
      apply(message.receive->sink, 0, message.data.data(), message.data.size());
      end(*message.receive->request, Request::Status::Done);
    }
    arrived_.erase(peer.buffering);
  }
}

void Engine::take_direct(int from, const Record& record) {
  const Key key{from, record.channel, record.tag};
  if (const auto receive = matching(key)) {
    read_directly(*receive, record);
  } else {
    arrived_.push_back({.key = key, .record = record, .data = {}, .missing = 0, .receive = {}});
  }
}

void Engine::read_directly(const Receive& receive, const Record& record) {
  const int from = receive.key.peer;
  if (size_fits(receive, record.bytes)) {
    std::string problem = copy_from(from, record.address, receive.sink);
    const bool read = problem.empty();
    end(*receive.request, read ? Request::Status::Done : Request::Status::Failed, std::move(problem));
  }
  at(from).outbox.push_back(
      {.record = {.kind = RecordKind::Ack, .number = record.number}, .data = nullptr, .request = nullptr});
  drain_outbox(from);
}

std::string Engine::copy_from(int from, std::uint64_t address, const Sink& sink) {
  const pid_t pid = setup_.segments[static_cast<std::size_t>(from)]->name().pid;
  int error = 0;
  if (pid == getpid()) {
    apply(sink, 0, reinterpret_cast<const std::byte*>(address), sink.bytes);
  } else if (!sink.reduce) {
    error = read_memory(pid, address, sink.memory, sink.bytes);
  } else {
    for (std::size_t offset = 0; offset < sink.bytes && error == 0; offset += kStagingBytes) {
      const std::size_t part = std::min(kStagingBytes, sink.bytes - offset);
      error = read_memory(pid, address + offset, staging_.data(), part);
      if (error == 0) apply(sink, offset, staging_.data(), part);
    }
  }
  if (error != 0) return str_cat("cannot read the memory of process ", pid, ": ", std::strerror(error));
  // A rank closes its mailbox before it frees its memory.
  if (mailboxes_[static_cast<std::size_t>(from)]->closed.load() != 0)
    return "the sender left before the message was received";
  return {};
}

void Engine::take_ack(int from, const Record& record) {
  auto& pending = at(from).unacknowledged;
  const auto found = std::find_if(pending.begin(), pending.end(),
                                  [&](const auto& sent) { return sent.number == record.number; });
  if (found == pending.end()) return;
  end(*found->request, Request::Status::Done);
  pending.erase(found);
}

void Engine::read_ring(int from) {
  Peer& peer = at(from);
  // Before the ring: what a rank wrote before it left must be read.
  const bool closed = mailboxes_[static_cast<std::size_t>(from)]->closed.load() != 0;
  while (const Record* const record = peer.reader.front()) {
    switch (record->kind) {
      case RecordKind::Data:
        take_data(from, *record);
        break;
      case RecordKind::Direct:
        take_direct(from, *record);
        break;
      case RecordKind::Ack:
        take_ack(from, *record);
        break;
      case RecordKind::Skip:
        break;
    }
    if (peer.reader.pop()) signal(from);
  }
  if (closed) lose(from);
}

// Ends everything that waits for a peer that has left.
void Engine::lose(int peer_index) {
  Peer& peer = at(peer_index);
  if (peer.gone) return;
  peer.gone = true;
  const auto fail = [this](Request& request) { end(request, Request::Status::Failed, "the peer has left"); };
  for (Outgoing& message : peer.outbox)
    if (message.request) fail(*message.request);
  for (Unacknowledged& sent : peer.unacknowledged) fail(*sent.request);
  peer.outbox.clear();
  peer.unacknowledged.clear();
  std::erase_if(receives_, [&](const Receive& receive) {
    if (receive.key.peer != peer_index) return false;
    fail(*receive.request);
    return true;
  });
}

void Engine::start(std::unique_ptr<Operation> operation) {
  if (!operation->advance(*this)) operations_.push_back(std::move(operation));
}

bool Engine::progress() {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (!at(peer).gone) read_ring(peer);
    drain_outbox(peer);
  }
  std::erase_if(operations_, [this](const auto& operation) { return operation->advance(*this); });
  return std::exchange(ended_any_, false);
}

void Engine::close() {
  mailbox().closed.store(1);
  for (int peer = 0; peer < ranks(); ++peer) signal(peer);
}

bool Engine::has_unsent() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return !peer.outbox.empty() || !peer.unacknowledged.empty(); });
}

}  // namespace penstock::comm::shm
