// The state of one step on one rank. It lives exactly as long as the step, which may end with an exception.
#pragma once

#include "runtime/backward/backward.h"
#include "runtime/backward/backward_edges.h"
#include "runtime/setup/pipeline_setup.h"
#include "runtime/step/action_clock.h"
#include "runtime/step/step_facts.h"
#include "runtime/transfer/mailbox.h"

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::runtime {

//! This rank's values of the batch, split into microbatches.
struct StepBatch {
  std::vector<value::Args> args;  //!< of the first stage, by microbatch; empty on other ranks
  std::vector<std::vector<value::Kwargs>> kwargs;  //!< by stage index, then by microbatch
  std::vector<c10::IValue> targets;                //!< empty if there is none
  std::vector<value::Kwargs> loss_kwargs;
  std::vector<double> initial_gradients;  //!< of each microbatch's loss
};

//! The root from which autograd continues when the gradient of an output arrives. The output itself is freed
//! as soon as it is sent, unless the backward pass needs it.
struct OutputRoot {
  Edge edge;
  std::unique_ptr<const SentDTensor> distributed;  //!< null for a plain tensor
};

//! The gradient of one of the caller's tensors, or of one microbatch of it.
struct InputGrad {
  StageId stage;
  MicrobatchId microbatch;
  at::Tensor input, grad;
};

//! What a stage keeps of one microbatch between its forward and its backward pass.
struct ActivationRecord {
  //! A range of `inputs` that was received over an edge.
  struct Source {
    int edge;
    std::size_t count;
  };

  std::vector<at::Tensor> inputs;         //!< leaves that need a gradient: the caller's, then by edge
  std::vector<at::Tensor> caller_inputs;  //!< the caller's tensors that the first `inputs` were detached from
  std::vector<Source> sources;
  std::vector<std::vector<OutputRoot>> outputs;  //!< those that need a gradient, per outgoing edge
  at::Tensor loss;
  WeightWork weights;
  //! The stream of the forward pass if it ran in an overlap. Autograd runs the backward pass on it, too.
  std::optional<c10::Stream> stream;
};

class Step {
 public:
  Step(const PipelineSetup& setup, const schedule::Program& program, StepBatch batch, StepShapes shapes,
       const MessageMetaCache& known, BufferPool& pool, std::uint64_t number, bool return_outputs);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  //! Runs the actions of this rank.
  void run(bool measure_memory);

  std::vector<at::Tensor> losses;      //!< of the last stage, by microbatch
  std::vector<c10::IValue> outputs;    //!< of the last stage, by microbatch; empty unless returned
  std::vector<InputGrad> input_grads;  //!< in order of computation
  //! Takes the times of a finished step.
  ActionClock take_clock() { return std::move(clock_); }
  MessageMetaCache learned() && { return std::move(mailbox_).learned(); }

 private:
  void run_action(const schedule::Action& action);
  void perform(const schedule::Action& action);
  void announce(const schedule::Action& action) const;
  void perform_default(const schedule::Action& action);
  void handle(const schedule::Action& action);
  void perform_overlap(const schedule::Action& forward, const schedule::Action& backward);
  //! The stream for the forward pass of an overlap; nullopt if the overlap does not run on two streams.
  std::optional<c10::Stream> overlap_stream(const schedule::Action& forward,
                                            const schedule::Action& backward);

  //! A forward pass has three phases, so that the module may run on another thread: take the inputs, run the
  //! module, deliver the outputs. A backward pass has the same phases.
  struct ForwardPart {
    StageId stage;
    MicrobatchId microbatch;
    value::Args args{};
    value::Kwargs kwargs{};
    StageResult result{};
  };
  ForwardPart begin_forward(StageId stage, MicrobatchId microbatch);
  void run(ForwardPart& part) const;
  void end(const ForwardPart& part);
  void gather_inputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                     value::Args& args, value::Kwargs& kwargs);
  void gather_caller_inputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                            value::Args& args, value::Kwargs& kwargs);
  void deliver_outputs(const PipelineStage& stage, MicrobatchId microbatch, ActivationRecord& record,
                       const StageResult& result);
  void finish_last(MicrobatchId microbatch, ActivationRecord& record, const c10::IValue& output);

  struct BackwardPart {
    StageId stage;
    MicrobatchId microbatch;
    bool full;  // true for B, false for I
    edge_list roots{};
    variable_list grads{};
    InputBackward result{};
  };
  BackwardPart begin_backward(const schedule::Action& action);
  void run(BackwardPart& part);
  void end(BackwardPart& part);
  void backward_weight(StageId stage, MicrobatchId microbatch);
  void gather_output_grads(StageId stage, MicrobatchId microbatch, const ActivationRecord& record,
                           edge_list& roots, variable_list& grads);
  at::Tensor initial_gradient(MicrobatchId microbatch, const at::Tensor& loss);
  void deliver_input_grads(StageId stage, MicrobatchId microbatch, const ActivationRecord& record,
                           std::vector<at::Tensor> grads);
  void before_weight_gradients(StageId stage);

  struct Transfer {
    int edge;
    Direction way;
    int peer;
  };
  Transfer transfer_of(const schedule::Action& action) const;
  void send(const schedule::Action& action);
  void receive(const schedule::Action& action);
  void post(const schedule::Action& action);
  void post_ahead(const schedule::ActionList& actions, std::size_t at);

  ActivationRecord& record_of(StageId stage, MicrobatchId microbatch);

  const PipelineSetup& setup_;
  const schedule::Program& program_;
  StepBatch batch_;
  StepShapes shapes_;
  ActionClock clock_;
  Mailbox mailbox_;
  StepFacts facts_;
  std::uint64_t number_;
  bool return_outputs_;
  std::vector<std::vector<ActivationRecord>> records_;  // by stage index; empty for stages of other ranks
  std::vector<int> weight_backwards_;                   // number of completed ones, by stage index
  std::pair<double, at::Tensor> shared_gradient_;       // the last one of a loss on the CPU
  //! Receives that were posted before their action.
  struct Ahead {
    bool allowed = false;
    std::size_t next = 0;  // the first action not examined
    std::size_t count = 0, bytes = 0;
  };
  Ahead ahead_;
};

}  // namespace penstock::runtime
