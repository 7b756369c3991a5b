// The interpreter: runs a rank's list of actions, each by its handler, with times and with errors that know
// their place.
#include "runtime/action_error.h"
#include "runtime/step_state.h"

#include <ATen/record_function.h>

namespace penstock {
namespace {

// A range `PP:1F0` in libtorch's profiler; its name is only made where someone listens.
class ProfilerRange {
 public:
  explicit ProfilerRange(const Action& action) : guard_(at::RecordScope::USER_SCOPE) {
    if (guard_.isActive()) guard_.before("PP:" + to_text(action));
  }

 private:
  at::RecordFunction guard_;
};

}  // namespace

Step::Step(const PipelineSetup& setup, const Program& program, StepBatch batch, StepShapes shapes,
           const FormBook& known, BufferPool& pool, std::uint64_t number, bool return_outputs)
    : setup_(setup),
      program_(program),
      batch_(std::move(batch)),
      shapes_(std::move(shapes)),
      mailbox_(setup.group, program.wiring().edges(), shapes_, known, pool),
      facts_(program),
      number_(number),
      return_outputs_(return_outputs),
      passages_(static_cast<std::size_t>(program.stages())),
      weight_backwards_(static_cast<std::size_t>(program.stages()), 0) {
  const auto& custom = setup.options.custom;
  ahead_.allowed = program.mode() == SendMode::Buffered && !custom.contains(ActionKind::RecvForward) &&
                   !custom.contains(ActionKind::RecvBackward);
  const auto microbatches = static_cast<std::size_t>(program.microbatches());
  for (const PipelineStage& stage : setup.stages) {
    passages_[static_cast<std::size_t>(stage.index().value)].resize(microbatches);
    if (stage.is_last()) {
      if (return_outputs_) outputs.resize(microbatches);
      losses.resize(microbatches);
    }
  }
}

Passage& Step::passage(StageId stage, MicrobatchId microbatch) {
  return passages_[static_cast<std::size_t>(stage.value)].at(static_cast<std::size_t>(microbatch.value));
}

void Step::run() {
  const ActionList& actions = program_.of(setup_.rank);
  times.reserve(actions.size());
  started_ = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].is_idle()) continue;
    try {
      if (ahead_.allowed) post_ahead(actions, i);
      run_action(actions[i]);
    } catch (...) {
      rethrow_in(context_of(actions[i], setup_.group.global_rank(setup_.rank.value)),
                 schedule_around(actions, i));
      throw;
    }
  }
}

// A sender can write at once where the receiver's readiness is known to it; else the message takes one more
// way there and back. So receives are posted earlier than the program says, where the transport matches by
// tag, as long as their memory is small. They are posted many at a time, so that the other side wakes up
// once for all of them.
void Step::post_ahead(const ActionList& actions, std::size_t at) {
  constexpr std::size_t many = 32, memory = 256U << 10U;
  if (ahead_.next <= at) ahead_.next = at;
  if (ahead_.count > many / 2) return;
  for (; ahead_.next < actions.size() && ahead_.count < many; ++ahead_.next) {
    const Action& action = actions[ahead_.next];
    if (!action.is_recv()) continue;
    const Transfer transfer = transfer_of(action);
    const std::size_t bytes = mailbox_.bytes_of(transfer.edge, transfer.way, action.microbatch());
    if (ahead_.next > at && ahead_.bytes + bytes > memory) return;
    post(action);
    ++ahead_.count;
    ahead_.bytes += bytes;
  }
}

void Step::run_action(const Action& action) {
  using Seconds = std::chrono::duration<double>;
  const ProfilerRange range(action);
  const auto start = std::chrono::steady_clock::now();
  perform(action);
  const auto end = std::chrono::steady_clock::now();
  // A computation begins when what it needs has arrived.
  const double waited = action.is_compute() ? mailbox_.take_waited() : 0;
  times.push_back({action, Seconds(start - started_).count() + waited, Seconds(end - started_).count()});
}

void Step::perform(const Action& action) {
  const auto& custom = setup_.options.custom;
  const auto found = custom.empty() ? custom.end() : custom.find(action.kind());
  if (found == custom.end()) return perform_usual(action);
  const StepView view{batch_.args, batch_.kwargs, batch_.targets, losses};
  found->second(
      action, [&] { perform_usual(action); }, view);
}

void Step::perform_usual(const Action& action) {
  if (action.kind() == ActionKind::Overlap) {
    return perform_overlap(action.forward_part(), action.backward_part());
  }
  facts_.check(action);
  handle(action);
  facts_.add(action);
}

void Step::handle(const Action& action) {
  const StageId stage = action.stage();
  const MicrobatchId microbatch = action.microbatch();
  DataParallel* const data_parallel = setup_.options.data_parallel.get();
  if (data_parallel != nullptr && action.is_compute() && action.kind() != ActionKind::Overlap)
    data_parallel->before_compute(stage);
  switch (action.kind()) {
    case ActionKind::Forward: {
      ForwardPart part = begin_forward(stage, microbatch);
      run(part);
      return end(part);
    }
    case ActionKind::Backward:
    case ActionKind::BackwardInput: {
      BackwardPart part = begin_backward(action);
      run(part);
      return end(part);
    }
    case ActionKind::BackwardWeight:
      return backward_weight(stage, microbatch);
    case ActionKind::SendForward:
    case ActionKind::SendBackward:
      return send(action);
    case ActionKind::RecvForward:
    case ActionKind::RecvBackward:
      return receive(action);
    case ActionKind::Unshard:
      if (data_parallel != nullptr) data_parallel->unshard(stage);
      return;
    case ActionKind::Reshard:
      if (data_parallel != nullptr) data_parallel->reshard(stage);
      return;
    case ActionKind::ReduceGrad:
      if (data_parallel != nullptr) data_parallel->reduce_grad(stage);
      return;
    case ActionKind::Overlap:  // its parts come here
    case ActionKind::Idle:
      return;
  }
}

Step::Transfer Step::transfer_of(const Action& action) const {
  const bool downward = action.kind() == ActionKind::SendForward || action.kind() == ActionKind::RecvBackward;
  const int edge = downward ? program_.wiring().find(action.stage(), action.peer())
                            : program_.wiring().find(action.peer(), action.stage());
  const bool forward_way =
      action.kind() == ActionKind::SendForward || action.kind() == ActionKind::RecvForward;
  return {edge, forward_way ? Way::Forward : Way::Backward, setup_.rank_of(action.peer()).value};
}

void Step::send(const Action& action) {
  const Transfer transfer = transfer_of(action);
  mailbox_.send(transfer.edge, transfer.way, action.microbatch(), transfer.peer);
}

void Step::receive(const Action& action) {
  if (!ahead_.allowed) return post(action);
  const Transfer transfer = transfer_of(action);  // posted already
  --ahead_.count;
  ahead_.bytes -= mailbox_.bytes_of(transfer.edge, transfer.way, action.microbatch());
}

void Step::post(const Action& action) {
  const Transfer transfer = transfer_of(action);
  mailbox_.post(transfer.edge, transfer.way, action.microbatch(), transfer.peer,
                setup_.stage(action.stage())->device());
}

}  // namespace penstock
