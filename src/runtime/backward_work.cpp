// The weight half.
#include "runtime/backward_work.h"

#include "runtime/backward_graph.h"

#include <penstock/base/error.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace penstock {

// If the work never ran, whoever still has the stage's outputs holds our nodes too; what they saved must go
// all the same.
WeightWork::Content::~Content() {
  for (const Edge& root : roots) root.function->release_variables();
}

// A weight's gradient goes straight to its accumulator, one at a time, so that no two are in memory at once.
// Where the accumulator has hooks, or gets gradients from elsewhere too, the engine must bring them together
// first.
void WeightWork::Content::run_tasks() {
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

void WeightWork::Content::run() {
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
WeightWork::WeightWork(std::unique_ptr<Content> content) noexcept : content_(std::move(content)) {}

WeightWork WeightWork::of(std::function<void()> function) {
  auto content = std::make_unique<Content>();
  content->function = std::move(function);
  return WeightWork(std::move(content));
}

void WeightWork::run() {
  if (done_) throw UsageError("the weight half of a backward ran twice");
  done_ = true;
  if (const std::unique_ptr<Content> content = std::move(content_)) content->run();
}

}  // namespace penstock
