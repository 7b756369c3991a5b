// The executor: runs a rank's list of actions, measures their times, and adds context to their errors.
#include "base/log_line.h"
#include "runtime/step/action_error.h"
#include "runtime/step/step_state.h"
#include "value/carried_setting.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>

namespace penstock::runtime {
namespace {

// A range `PP:1F0` in libtorch's profiler. The name is built only if a profiler is active.
class ProfilerRange {
 public:
  explicit ProfilerRange(const schedule::Action& action) : guard_(at::RecordScope::USER_SCOPE) {
    if (guard_.isActive()) guard_.before("PP:" + to_string(action));
  }

 private:
  at::RecordFunction guard_;
};

constexpr std::string_view kRank = "penstock: rank";
constexpr value::CarriedSetting<Rank> carried_rank(&kRank);

std::optional<Rank> find_carried_rank() {
  const Rank* const rank = carried_rank.find();
  return rank != nullptr ? std::optional(*rank) : std::nullopt;
}

// Backward passes of a device run on a thread of autograd: its log lines name the rank of this thread.
class CarriedLogRank {
 public:
  explicit CarriedLogRank(const std::vector<at::Device>& devices) {
    const auto on_cpu = [](const at::Device& device) { return device.is_cpu(); };
    const std::optional<Rank> rank = log_rank();
    if (!rank || std::all_of(devices.begin(), devices.end(), on_cpu)) return;
    set_log_rank_source(&find_carried_rank);
    scope_.emplace(carried_rank, *rank);
  }

 private:
  std::optional<value::CarriedSetting<Rank>::Scope> scope_;
};

}  // namespace

Step::Step(const PipelineSetup& setup, const schedule::Program& program, StepBatch batch, StepShapes shapes,
           const MessageMetaCache& known, BufferPool& pool, std::uint64_t number, bool return_outputs)
    : setup_(setup),
      program_(program),
      batch_(std::move(batch)),
      shapes_(std::move(shapes)),
      clock_(program.of(setup.rank).size()),
      mailbox_(setup.group, program.wiring().edges(), shapes_, known, pool, clock_),
      facts_(program),
      number_(number),
      return_outputs_(return_outputs),
      records_(static_cast<std::size_t>(program.num_stages())),
      weight_backwards_(static_cast<std::size_t>(program.num_stages()), 0) {
  const auto& custom = setup.options.execution.custom;
  ahead_.allowed = program.send_mode() == schedule::SendMode::Buffered &&
                   !custom.contains(schedule::ActionKind::RecvForward) &&
                   !custom.contains(schedule::ActionKind::RecvBackward);
  const auto microbatches = static_cast<std::size_t>(program.microbatches());
  for (const PipelineStage& stage : setup.stages) {
    records_[stage.index().index()].resize(microbatches);
    if (stage.is_last()) {
      if (return_outputs_) outputs.resize(microbatches);
      losses.resize(microbatches);
    }
  }
}

ActivationRecord& Step::record_of(StageId stage, MicrobatchId microbatch) {
  return records_[stage.index()].at(microbatch.index());
}

void Step::run(bool measure_memory) {
  const schedule::ActionList& actions = program_.of(setup_.rank);
  std::vector<at::Device> devices;
  for (const PipelineStage& stage : setup_.stages) devices.push_back(stage.device());
  const CarriedLogRank rank(devices);
  clock_.start_step(devices, measure_memory);
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

// A sender can transmit immediately if the receive is already posted; otherwise the message costs one more
// round trip. If the transport matches by tag, receives are therefore posted earlier than the program says,
// within a small memory budget. They are posted in batches, so that the peer wakes up once per batch.
void Step::post_ahead(const schedule::ActionList& actions, std::size_t at) {
  constexpr std::size_t many = 32, memory = 256U << 10U;
  if (ahead_.next <= at) ahead_.next = at;
  if (ahead_.count > many / 2) return;
  for (; ahead_.next < actions.size() && ahead_.count < many; ++ahead_.next) {
    const schedule::Action& action = actions[ahead_.next];
    if (!action.is_recv()) continue;
    const Transfer transfer = transfer_of(action);
    const std::size_t bytes = mailbox_.bytes_of(transfer.edge, transfer.way, action.microbatch());
    if (ahead_.next > at && ahead_.bytes + bytes > memory) return;
    post(action);
    ++ahead_.count;
    ahead_.bytes += bytes;
  }
}

void Step::run_action(const schedule::Action& action) {
  const ProfilerRange range(action);
  const bool overlap = action.kind() == schedule::ActionKind::Overlap;
  clock_.begin(setup_.stage(overlap ? action.forward_part().stage() : action.stage())->device());
  perform(action);
  clock_.end(action);
}

void Step::announce(const schedule::Action& action) const {
  if (const auto& before = setup_.options.execution.before_action) before(action);
}

void Step::perform(const schedule::Action& action) {
  announce(action);
  const auto& custom = setup_.options.execution.custom;
  const auto found = custom.empty() ? custom.end() : custom.find(action.kind());
  if (found == custom.end()) return perform_default(action);
  const std::function<void(const schedule::Action&)> run_part = [this](const schedule::Action& part) {
    perform_default(part);
  };
  const StepView view{batch_.args, batch_.kwargs, batch_.targets, losses, run_part};
  found->second(
      action, [&] { perform_default(action); }, view);
}

void Step::perform_default(const schedule::Action& action) {
  if (action.kind() == schedule::ActionKind::Overlap) {
    return perform_overlap(action.forward_part(), action.backward_part());
  }
  facts_.check(action);
  handle(action);
  facts_.add(action);
}

void Step::handle(const schedule::Action& action) {
  const StageId stage = action.stage();
  const MicrobatchId microbatch = action.microbatch();
  DataParallel* const data_parallel = setup_.options.data_parallel.get();
  if (data_parallel != nullptr && action.is_compute() && action.kind() != schedule::ActionKind::Overlap)
    data_parallel->before_compute(stage);
  switch (action.kind()) {
    case schedule::ActionKind::Forward: {
      ForwardPart part = begin_forward(stage, microbatch);
      run(part);
      return end(part);
    }
    case schedule::ActionKind::Backward:
    case schedule::ActionKind::BackwardInput: {
      BackwardPart part = begin_backward(action);
      run(part);
      return end(part);
    }
    case schedule::ActionKind::BackwardWeight:
      return backward_weight(stage, microbatch);
    case schedule::ActionKind::SendForward:
    case schedule::ActionKind::SendBackward:
      return send(action);
    case schedule::ActionKind::RecvForward:
    case schedule::ActionKind::RecvBackward:
      return receive(action);
    case schedule::ActionKind::Unshard:
      if (data_parallel != nullptr) data_parallel->unshard(stage);
      return;
    case schedule::ActionKind::Reshard:
      if (data_parallel != nullptr) data_parallel->reshard(stage);
      return;
    case schedule::ActionKind::ReduceGrad:
      if (data_parallel != nullptr) data_parallel->reduce_grad(stage);
      return;
    case schedule::ActionKind::Overlap:  // its parts are handled separately
    case schedule::ActionKind::Idle:
      return;
  }
}

Step::Transfer Step::transfer_of(const schedule::Action& action) const {
  const bool is_producer = action.kind() == schedule::ActionKind::SendForward ||
                           action.kind() == schedule::ActionKind::RecvBackward;
  const int edge = is_producer ? program_.wiring().find(action.stage(), action.peer()).value()
                               : program_.wiring().find(action.peer(), action.stage()).value();
  const bool forward_way = action.kind() == schedule::ActionKind::SendForward ||
                           action.kind() == schedule::ActionKind::RecvForward;
  return {edge, forward_way ? Direction::Forward : Direction::Backward, setup_.rank_of(action.peer()).value};
}

void Step::send(const schedule::Action& action) {
  const Transfer transfer = transfer_of(action);
  mailbox_.send(transfer.edge, transfer.way, action.microbatch(), transfer.peer);
}

void Step::receive(const schedule::Action& action) {
  if (!ahead_.allowed) return post(action);
  const Transfer transfer = transfer_of(action);  // the receive is already posted
  --ahead_.count;
  ahead_.bytes -= mailbox_.bytes_of(transfer.edge, transfer.way, action.microbatch());
}

void Step::post(const schedule::Action& action) {
  const Transfer transfer = transfer_of(action);
  mailbox_.post(transfer.edge, transfer.way, action.microbatch(), transfer.peer,
                setup_.stage(action.stage())->device());
}

}  // namespace penstock::runtime
