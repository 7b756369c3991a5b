// Calls back when a backward has added to a parameter's gradient, and when the whole backward is over.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace penstock {

//! Hooks on the gradient accumulators of leaves. They go away with the object.
class LeafHooks {
 public:
  LeafHooks() = default;
  ~LeafHooks() { clear(); }
  LeafHooks(const LeafHooks&) = delete;
  LeafHooks& operator=(const LeafHooks&) = delete;

  //! `added(number)` after each addition to the gradient; numbers count the calls of `add` from 0.
  void add(const at::Tensor& leaf, std::function<void()> added);
  void clear() noexcept;
  //! The node of the leaf: what graphs that reach the parameter end in.
  const torch::autograd::Node* node(std::size_t number) const { return hooks_[number].accumulator.get(); }

 private:
  struct Hook {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;  // the leaf itself holds it only weakly
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

//! To be called from within a backward: `end(true)` when the outermost backward has succeeded, `end(false)`
//! when the one that runs now was given up, from a destructor. Where the one that runs now is inside of
//! another (recomputation), its success calls `inner`.
void at_end_of_backward(std::function<void(bool success)> end, std::function<void()> inner);

}  // namespace penstock
