// WeightWork: the weight half of a split backward pass.
#include "runtime/backward/backward_work.h"

#include "runtime/backward/backward_graph.h"

#include <penstock/base/error.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace penstock::runtime {

// If the work never ran, the stage's outputs may still keep our nodes alive. Their saved tensors must be
// freed anyway.
WeightWork::Impl::~Impl() {
  for (const Edge& root : roots) root.function->release_variables();
}

// Each weight gradient goes directly to its accumulator, one at a time, so that only one is in memory. If the
// accumulator has hooks or other sources of gradients, the engine must sum the gradients first.
void WeightWork::Impl::run_tasks() {
  const at::NoGradGuard no_grad;
  for (Task& task : tasks) {
    auto* accumulator =
        task.alone ? dynamic_cast<torch::autograd::AccumulateGrad*>(task.target.function.get()) : nullptr;
    const auto compute = std::exchange(task.compute, nullptr);
    if (accumulator != nullptr && !has_hooks(*accumulator) && !accumulator->tensor_post_acc_grad_hooks()) {
      (*accumulator)({compute()});
    } else {
      roots.push_back(task.target);
      grads.push_back(compute());
    }
  }
}

void WeightWork::Impl::run() {
  for (WeightWork& part : inner) part.run();
  run_tasks();
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  if (function) function();
}

WeightWork::WeightWork() noexcept = default;
WeightWork::~WeightWork() = default;
WeightWork::WeightWork(WeightWork&&) noexcept = default;
WeightWork& WeightWork::operator=(WeightWork&&) noexcept = default;
WeightWork::WeightWork(std::unique_ptr<Impl> content) noexcept : impl_(std::move(content)) {}

WeightWork WeightWork::of(std::function<void()> function) {
  auto content = std::make_unique<Impl>();
  content->function = std::move(function);
  return WeightWork(std::move(content));
}

void WeightWork::run() {
  if (done_) throw UsageError("the weight half of a backward pass ran twice");
  done_ = true;
  if (const std::unique_ptr<Impl> content = std::move(impl_)) content->run();
}

}  // namespace penstock::runtime
