// The transfers of one step. Every edge has one slot per microbatch and direction. The producing stage or a
// receive puts a message into the slot; the consuming stage or a send takes it out. Stages on the same rank
// pass messages through the slot without a copy.
#pragma once

#include "runtime/step/action_clock.h"
#include "runtime/transfer/buffer_pool.h"
#include "runtime/transfer/message.h"

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>
#include <penstock/schedule/wiring.h>

#include <memory>
#include <vector>

namespace penstock::runtime {

//! What a step knows about the shapes of its microbatches.
struct StepShapes {
  std::vector<std::uint64_t> signatures;  //!< per microbatch; equal on all ranks
  std::vector<bool> sends_meta;           //!< per microbatch: whether metadata is sent ahead of messages
  bool may_vary = false;                  //!< dynamic shapes: equal signatures do not imply equal metadata
};

class Mailbox {
 public:
  Mailbox(const comm::Group& group, int edges, const StepShapes& shapes, const MessageMetaCache& known,
          BufferPool& pool, ActionClock& clock);

  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  //! Stores a message for a send or for a stage of this rank.
  void put(int edge, Direction way, MicrobatchId microbatch, Message message);
  //! Sends the stored message; its memory is freed when the send completes.
  void send(int edge, Direction way, MicrobatchId microbatch, int to);
  //! The memory that posting the receives of a message needs.
  std::size_t bytes_of(int edge, Direction way, MicrobatchId microbatch) const;
  //! Posts the receives of a message. If its metadata is sent ahead, they are posted when the value is taken;
  //! over an ordered transport they are posted now, after waiting for the metadata, so that the transfers of
  //! a pair of ranks keep the order of the program.
  void post(int edge, Direction way, MicrobatchId microbatch, int from, at::Device device);
  //! Takes a message that was stored or posted; waits for it. Throws ScheduleError if there is none.
  Message take(int edge, Direction way, MicrobatchId microbatch);

  //! The metadata that this step has learned.
  MessageMetaCache&& learned() && { return std::move(learned_); }

 private:
  struct Slot {
    Message message;
    bool full = false;
    int from = -1;  // peer of a posted receive
    at::Device device = at::kCPU;
    at::Tensor meta_size;  // if metadata is sent: its size, received first
    std::shared_ptr<const MessageMeta> meta;
    std::vector<comm::Work> works;
  };

  std::size_t number(int edge, Direction way, MicrobatchId microbatch) const;
  //! Forward and backward tags have different parity: Gloo sends them over different connections.
  int tag(int edge, Direction way, MicrobatchId microbatch) const;
  Slot& open(int edge, Direction way, MicrobatchId microbatch);
  std::shared_ptr<const MessageMeta> meta_for(int edge, Direction way, MicrobatchId microbatch,
                                              const Message& message);
  void send_meta(const MessageMeta& meta, int to, int tag);
  void receive_meta(Slot& slot, int tag);
  void post_tensors(Slot& slot, int tag);
  void learn_meta(Slot& slot, int edge, Direction way, MicrobatchId microbatch);
  void wait_for(Slot& slot, int edge, Direction way, MicrobatchId microbatch);
  void release(comm::Work work, std::size_t bytes);

  const comm::Group& group_;
  const StepShapes& shapes_;
  const MessageMetaCache& known_;
  BufferPool& pool_;
  MessageMetaCache learned_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<comm::Work> small_sends_;  // running, or complete and not yet detached
  ActionClock& clock_;
};

}  // namespace penstock::runtime
