// The weight half.
#include "runtime/backward_work.h"

#include <penstock/base/error.h>

#include <torch/csrc/autograd/engine.h>

namespace penstock {

// If the work never ran, whoever still has the stage's outputs holds our nodes too; what they saved must go
// all the same.
WeightWork::Content::~Content() {
  for (const Edge& root : roots) root.function->release_variables();
}

void WeightWork::Content::run() {
  for (WeightWork& part : inner) part.run();
  for (auto& [edge, task] : tasks) {
    roots.push_back(edge);
    grads.push_back(task());
    task = nullptr;
  }
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
