// Callbacks after a backward accumulates the gradient of a parameter, and at the end of the backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::parallel {

//! Hooks on the gradient accumulators of leaves. The destructor removes them.
class LeafHooks {
 public:
  LeafHooks() = default;
  ~LeafHooks() { clear(); }
  LeafHooks(const LeafHooks&) = delete;
  LeafHooks& operator=(const LeafHooks&) = delete;

  //! Calls `added` after each accumulation into the gradient of the leaf. Leaves are numbered from 0 in the
  //! order of `add`.
  void add(const at::Tensor& leaf, std::function<void()> added);
  void clear() noexcept;
  //! The gradient accumulator of the leaf, in which graphs that reach the parameter end.
  const torch::autograd::Node* node(std::size_t number) const { return hooks_[number].accumulator.get(); }

 private:
  struct Hook {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;  // the leaf holds only a weak reference
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

//! Tells its owner once when the current backward ends.
class EndOfBackward {
 public:
  //! Call it during a backward; further calls have no effect until `reset`. Calls `end(true)` when the
  //! outermost backward succeeds, and `end(false)`, from a destructor, when the current one fails. The
  //! success of a backward that is nested in another one (recomputation) calls nothing: the next `watch` of
  //! the outer backward registers again. `owner` is the object that contains this one; once it is gone,
  //! nothing is called.
  void watch(const std::weak_ptr<void>& owner, std::function<void(bool success)> end);
  //! Call it when `end` was called.
  void reset() { registered_ = false; }

 private:
  bool registered_ = false;
};

}  // namespace penstock::parallel
