// A message between two stages for one microbatch, and its metadata: everything a receiver needs to allocate
// its buffers.
#pragma once

#include "runtime/transfer/dtensor_message.h"

#include <penstock/value/tensor_meta.h>
#include <penstock/value/tree.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::runtime {

//! Forward: the leaves of (output, skip values…). Backward: the gradient of each of those leaves that
//! requires one, None if it has none. Distributed tensors are sent as local shards.
struct Message {
  std::vector<c10::IValue> leaves;
  std::shared_ptr<const value::Structure> structure;  //!< forward only
  std::vector<std::optional<DTensorMeta>>
      dtensors{};  //!< forward only, by leaf; empty if all tensors are plain
};

enum class Direction : std::uint8_t { Forward, Backward };

//! The metadata of a message. It includes the values of non-tensor leaves.
struct MessageMeta {
  std::shared_ptr<const value::Structure> structure;
  std::vector<std::optional<value::TensorMeta>> tensors;
  std::vector<c10::IValue> others;                     //!< one per leaf; None for tensors
  std::vector<std::optional<DTensorMeta>> dtensors{};  //!< by leaf; empty if all tensors are plain

  static MessageMeta of(const Message& message);
  std::vector<std::uint8_t> serialize() const;
  static MessageMeta deserialize(std::span<const std::uint8_t> bytes);

  //! The total size of the tensors, in bytes.
  std::size_t nbytes() const;
  //! Describes how `message` differs from this metadata; empty if it matches. Strides may differ.
  std::string difference(const Message& message) const;
  //! Whether `message` matches this metadata. Cheap; called for every message.
  bool fits(const Message& message) const;
};

//! The metadata that both ends of every edge know, by signature of the microbatch.
class MessageMetaCache {
 public:
  std::shared_ptr<const MessageMeta> find(int edge, Direction way, std::uint64_t signature) const;
  //! Adds metadata unless the key already has some; returns whether it was added.
  bool add(int edge, Direction way, std::uint64_t signature, std::shared_ptr<const MessageMeta> meta);
  bool knows(std::uint64_t signature) const { return signatures_.contains(signature); }
  void merge(MessageMetaCache&& other, const std::vector<std::uint64_t>& signatures);
  bool empty() const { return signatures_.empty(); }

 private:
  struct Key {
    std::uint64_t signature;
    int edge;
    Direction way;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, std::shared_ptr<const MessageMeta>> metas_;
  std::map<std::uint64_t, bool> signatures_;
};

}  // namespace penstock::runtime
