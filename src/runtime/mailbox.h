// The transfers of one step. Every edge has, for each microbatch and way, one slot: a message is put into it
// by the stage that makes it or by a receive, and taken out by the stage that uses it or by a send. Stages of
// one rank hand over through the slot without a copy.
#pragma once

#include "runtime/buffer_pool.h"
#include "runtime/message.h"

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>
#include <penstock/schedule/wiring.h>

#include <memory>
#include <utility>
#include <vector>

namespace penstock {

//! What a step knows of the shapes of its microbatches.
struct StepShapes {
  std::vector<std::uint64_t> signatures;  //!< of each microbatch, the same on every rank
  std::vector<bool> forms_travel;         //!< whether forms go ahead of its messages
  bool may_vary = false;                  //!< dynamic: equal signatures need not mean equal forms
};

class Mailbox {
 public:
  Mailbox(const Group& group, int edges, const StepShapes& shapes, const FormBook& known, BufferPool& pool);

  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  //! Puts a message where a send or a stage of this rank takes it.
  void put(int edge, Way way, MicrobatchId microbatch, Message message);
  //! Sends what was put; the memory is free as soon as it has gone.
  void send(int edge, Way way, MicrobatchId microbatch, int to);
  //! The memory that posting the receives of a message takes.
  std::size_t bytes_of(int edge, Way way, MicrobatchId microbatch) const;
  //! Posts the receives of a message.
  void post(int edge, Way way, MicrobatchId microbatch, int from, at::Device device);
  //! The message that was put or posted; waits for it. ScheduleError if it was neither.
  Message take(int edge, Way way, MicrobatchId microbatch);

  //! Seconds spent waiting for receives since the last call.
  double take_waited() { return std::exchange(waited_, 0.0); }

  //! The forms that this step has learnt.
  FormBook&& learnt() && { return std::move(learnt_); }

 private:
  struct Slot {
    Message message;
    bool full = false;
    int from = -1;  // of a receive that is posted
    at::Device device = at::kCPU;
    at::Tensor form_size;  // where forms travel: what comes first
    std::shared_ptr<const MessageForm> form;
    std::vector<Work> works;
  };

  std::size_t number(int edge, Way way, MicrobatchId microbatch) const;
  //! Forward and backward have tags of different parity, which Gloo sends over different connections.
  int tag(int edge, Way way, MicrobatchId microbatch) const;
  Slot& open(int edge, Way way, MicrobatchId microbatch);
  std::shared_ptr<const MessageForm> form_for(int edge, Way way, MicrobatchId microbatch,
                                              const Message& message);
  void send_form(const MessageForm& form, int to, int tag);
  void receive_form(Slot& slot, int tag);
  void post_tensors(Slot& slot, int tag);
  void wait_for(Slot& slot, int edge, Way way, MicrobatchId microbatch);
  void let_go(Work work, std::size_t bytes);

  const Group& group_;
  const StepShapes& shapes_;
  const FormBook& known_;
  BufferPool& pool_;
  FormBook learnt_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Work> small_sends_;  // under way, or done and not yet let go
  double waited_ = 0;
};

}  // namespace penstock
