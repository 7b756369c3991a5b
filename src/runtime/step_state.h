// The state of one step on one rank. It is made for the step and destroyed with it, whether it ends well or
// throws.
#pragma once

#include "runtime/backward_edges.h"
#include "runtime/mailbox.h"
#include "runtime/setup.h"
#include "runtime/step_facts.h"

#include <penstock/runtime/backward.h>

#include <chrono>
#include <memory>
#include <vector>

namespace penstock {

//! This rank's part of the batch, cut.
struct StepBatch {
  std::vector<Args> args;                   //!< of the first stage, by microbatch; empty elsewhere
  std::vector<std::vector<Kwargs>> kwargs;  //!< by stage index, then by microbatch
  std::vector<c10::IValue> targets;         //!< empty where there is none
  std::vector<Kwargs> loss_kwargs;
  std::vector<double> seeds;  //!< what each microbatch's backward starts from
};

//! What is kept of an output until its gradient comes: where autograd continues. The output itself is freed
//! as soon as it has been sent, unless the backward needs it.
struct OutputRoot {
  Edge edge;
  std::unique_ptr<const SentValue> distributed;  //!< null for a plain tensor
};

//! The gradient of one of the caller's tensors, or of a microbatch's part of it.
struct OwnGrad {
  StageId stage;
  MicrobatchId microbatch;
  at::Tensor input, grad;
};

//! One microbatch on its way through one stage.
struct Passage {
  //! A stretch of `inputs` that came along an edge.
  struct Source {
    int edge;
    std::size_t count;
  };

  std::vector<at::Tensor> inputs;      //!< the leaves that need a gradient: the caller's, then edge by edge
  std::vector<at::Tensor> own_inputs;  //!< what the first of them were detached from
  std::vector<Source> sources;
  std::vector<std::vector<OutputRoot>> outputs;  //!< that need a gradient, for each edge out of the stage
  at::Tensor loss;
  WeightWork weights;
};

class Step {
 public:
  Step(const PipelineSetup& setup, const Program& program, StepBatch batch, StepShapes shapes,
       const FormBook& known, BufferPool& pool, std::uint64_t number, bool return_outputs);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  //! Runs this rank's actions.
  void run();

  std::vector<at::Tensor> losses;    //!< of the last stage, by microbatch
  std::vector<c10::IValue> outputs;  //!< of the last stage, by microbatch; empty if not asked for
  std::vector<OwnGrad> own_grads;    //!< in the order in which they were computed
  std::vector<TimedAction> times;
  FormBook learnt() && { return std::move(mailbox_).learnt(); }

 private:
  void run_action(const Action& action);
  void perform(const Action& action);
  void perform_usual(const Action& action);
  void handle(const Action& action);
  void perform_overlap(const Action& forward, const Action& backward);

  //! A forward comes in three parts, so that the module may run on another thread: what arrived is taken, the
  //! module runs, what it gives is put where it is wanted. The same goes for a backward.
  struct ForwardPart {
    StageId stage;
    MicrobatchId microbatch;
    Args args{};
    Kwargs kwargs{};
    StageResult result{};
  };
  ForwardPart begin_forward(StageId stage, MicrobatchId microbatch);
  void run(ForwardPart& part) const;
  void end(const ForwardPart& part);
  void gather_inputs(const PipelineStage& stage, MicrobatchId microbatch, Passage& passage, Args& args,
                     Kwargs& kwargs);
  void gather_own_inputs(const PipelineStage& stage, MicrobatchId microbatch, Passage& passage, Args& args,
                         Kwargs& kwargs);
  void deliver_outputs(const PipelineStage& stage, MicrobatchId microbatch, Passage& passage,
                       const StageResult& result);
  void finish_last(MicrobatchId microbatch, Passage& passage, const c10::IValue& output);

  struct BackwardPart {
    StageId stage;
    MicrobatchId microbatch;
    bool whole;  // B; else I
    edge_list roots{};
    variable_list grads{};
    InputBackward result{};
  };
  BackwardPart begin_backward(const Action& action);
  void run(BackwardPart& part);
  void end(BackwardPart& part);
  void backward_weight(StageId stage, MicrobatchId microbatch);
  void gather_output_grads(StageId stage, MicrobatchId microbatch, const Passage& passage, edge_list& roots,
                           variable_list& grads);
  void deliver_input_grads(StageId stage, MicrobatchId microbatch, const Passage& passage,
                           std::vector<at::Tensor> grads);
  void before_weight_gradients(StageId stage);

  struct Transfer {
    int edge;
    Way way;
    int peer;
  };
  Transfer transfer_of(const Action& action) const;
  void send(const Action& action);
  void receive(const Action& action);
  void post(const Action& action);
  void post_ahead(const ActionList& actions, std::size_t at);

  Passage& passage(StageId stage, MicrobatchId microbatch);

  const PipelineSetup& setup_;
  const Program& program_;
  StepBatch batch_;
  StepShapes shapes_;
  Mailbox mailbox_;
  StepFacts facts_;
  std::uint64_t number_;
  bool return_outputs_;
  std::vector<std::vector<Passage>> passages_;  // by stage index; empty for other ranks' stages
  std::vector<int> weight_backwards_;           // by stage index: how many have run
  std::chrono::steady_clock::time_point started_;

  //! Receives that are posted and that the program has not come to yet.
  struct Ahead {
    bool allowed = false;
    std::size_t next = 0;  // the first action not looked at
    std::size_t count = 0, bytes = 0;
  };
  Ahead ahead_;
};

}  // namespace penstock
