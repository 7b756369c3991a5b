// Backward of one stage for one microbatch, in full or split into two halves. Zero-bubble schedules run the
// input half (input gradients, which the previous stage waits for) first, and the weight half (weight
// gradients) when the rank would otherwise be idle. Both variants give bitwise identical gradients.
//
// Thread safety: every function here may be called concurrently from several threads for different graphs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace penstock::runtime {

//! The weight half of a split backward pass. It runs once or is dropped; the destructor frees what it holds.
//! It holds the output gradients it was created from: their memory must not be reused before it runs or is
//! destroyed.
class WeightWork {
 public:
  WeightWork() noexcept;
  ~WeightWork();
  WeightWork(WeightWork&&) noexcept;
  WeightWork& operator=(WeightWork&&) noexcept;

  //! Wraps a user function, for modules that compute their weight gradients themselves.
  static WeightWork of(std::function<void()> function);

  //! Adds the weight gradients to `.grad`; hooks on parameters and on their accumulators fire here. A second
  //! call throws UsageError. If it throws, the work is lost.
  void run();

  //! Whether there is work left to run.
  bool pending() const { return impl_ != nullptr; }

  struct Impl;
  explicit WeightWork(std::unique_ptr<Impl> content) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
  bool done_ = false;
};

struct InputBackward {
  std::vector<at::Tensor> input_grads;  //!< as returned by `backward_full`
  WeightWork weights;
};

//! Runs the full backward pass. Returns the gradient of each input and adds all other gradients to the
//! `.grad` of their leaves. A returned gradient has the layout of its input, or is contiguous if the input's
//! elements overlap; it is undefined if the input needs or receives none.
//!   - Outputs that need no gradient (integers, constants) and outputs with an undefined gradient (unused)
//!     are skipped.
//!   - Inputs must be leaves, as `flatten_args_detach` makes them; their `.grad` is unchanged. If a tensor is
//!     an input twice, its gradient is returned at the first position only.
//! Frees the graph. UsageError and ShapeError name the output whose gradient does not match.
std::vector<at::Tensor> backward_full(const std::vector<at::Tensor>& outputs,
                                      const std::vector<at::Tensor>& output_grads,
                                      const std::vector<at::Tensor>& inputs);

//! Computes only the input gradients and leaves the rest in `weights`. Between the two halves, only what the
//! weight gradients need stays in memory. If no input needs a gradient (first stage), all work is left in
//! `weights`.
InputBackward backward_input(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& output_grads,
                             const std::vector<at::Tensor>& inputs);

//! For modules that compute their weight gradients themselves (the reference's `dw_builder`): runs the full
//! backward pass, then calls `builder` to get the function that the weight half of this microbatch runs.
InputBackward backward_input_with(const std::function<std::function<void()>()>& builder,
                                  const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& output_grads,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace penstock::runtime
