// A communicator of the fake NCCL: ranks are processes that exchange messages over unix sockets. A transfer
// is a rendezvous: a send ends only after its receive has started. If a peer is gone, or issued another
// operation, the operation hangs until the communicator is aborted, as a kernel of NCCL does.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

struct ncclComm {
 public:
  ncclComm(std::string id, int size, int rank) : id_(std::move(id)), size_(size), rank_(rank) {}

  int size() const { return size_; }
  int rank() const { return rank_; }

  //! Connects to all other ranks. Blocks until they do the same; returns false after 60 s.
  bool connect();

  //! Both return false if the communicator was aborted. `operation` must be the same on both sides.
  bool send(int to, const void* data, std::size_t size, std::uint64_t operation);
  bool receive(int from, void* data, std::size_t size, std::uint64_t operation);

  void abort();
  bool is_aborted() const { return aborted_; }
  //! What the watchdog of libtorch polls. FAKE_NCCL_SILENT keeps a lost peer secret.
  ncclResult_t error() const { return error_; }

 private:
  struct Header {
    std::uint64_t operation = 0, size = 0;
  };
  bool transfer(int socket, void* data, std::size_t size, bool writes);
  bool hang(ncclResult_t error);
  bool accept_peer(int listener);
  bool try_to_reach(int peer);

  const std::string id_;
  const int size_, rank_;
  std::vector<int> out_, in_;  // a socket per direction
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> error_{ncclSuccess};
  // A transfer to the own rank, inside a group of transfers.
  const void* own_data_ = nullptr;
  std::size_t own_size_ = 0;
};
