// What travels between two stages for one microbatch, and its form: all that a receiver must know to make
// room for it.
#pragma once

#include "runtime/spread.h"

#include <penstock/value/tensor_meta.h>
#include <penstock/value/tree.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

//! Forward along an edge: the leaves of (output, skip values…). Backward: the gradient of each of those
//! leaves that is a tensor that requires one, None where there is none. Of distributed tensors, this rank's
//! parts.
struct Message {
  std::vector<c10::IValue> leaves;
  std::shared_ptr<const Structure> structure;       //!< of a forward message
  std::vector<std::optional<SpreadForm>> spread{};  //!< by leaf, of a forward message; empty if all are plain
};

enum class Way : std::uint8_t { Forward, Backward };

//! A message without its elements. Leaves that are no tensors are part of it as they are.
struct MessageForm {
  std::shared_ptr<const Structure> structure;
  std::vector<std::optional<TensorMeta>> tensors;
  std::vector<c10::IValue> others;                  //!< one for each leaf; None for tensors
  std::vector<std::optional<SpreadForm>> spread{};  //!< as in the message

  static MessageForm of(const Message& message);
  std::vector<std::uint8_t> serialize() const;
  static MessageForm deserialize(std::span<const std::uint8_t> bytes);

  //! Of its tensors' elements.
  std::size_t nbytes() const;
  //! What is different about `message`, in words; empty if it has this form. (Strides may differ.)
  std::string difference(const Message& message) const;
  //! The same as a question: cheap, for every message.
  bool fits(const Message& message) const;
};

//! The forms that both ends of every edge know, by the signature of the microbatch that they belong to.
class FormBook {
 public:
  std::shared_ptr<const MessageForm> find(int edge, Way way, std::uint64_t signature) const;
  //! Keeps the first form of a key; whether there was none.
  bool add(int edge, Way way, std::uint64_t signature, std::shared_ptr<const MessageForm> form);
  bool knows(std::uint64_t signature) const { return signatures_.contains(signature); }
  void merge(FormBook&& other, const std::vector<std::uint64_t>& signatures);
  bool empty() const { return signatures_.empty(); }

 private:
  struct Key {
    std::uint64_t signature;
    int edge;
    Way way;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, std::shared_ptr<const MessageForm>> forms_;
  std::map<std::uint64_t, bool> signatures_;
};

}  // namespace penstock
