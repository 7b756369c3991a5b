// The backward of one stage and one microbatch: whole, or in two halves. Zero-bubble schedules run the half
// that the previous stage waits for (the gradients of the inputs) first, and the other (the gradients of the
// weights) when the rank would be idle. Both ways give bitwise the same gradients.
//
// Thread ranks: every function here may be called from several threads at once, for different graphs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace penstock {

//! The weight half of a backward that has been split: runs once, or is dropped. Destroying it frees what it
//! holds. It holds the output gradients it was made from, so their memory must not be reused before.
class WeightWork {
 public:
  WeightWork() noexcept;
  ~WeightWork();
  WeightWork(WeightWork&&) noexcept;
  WeightWork& operator=(WeightWork&&) noexcept;

  //! A user's own function, for modules that keep the work for their weights themselves.
  static WeightWork of(std::function<void()> function);

  //! Adds the weights' gradients to their `.grad`; hooks on parameters and on their accumulators fire here.
  //! The second call is a UsageError. When it throws, the work is gone.
  void run();

  //! Whether there is still something to run.
  bool pending() const { return content_ != nullptr; }

  struct Content;
  explicit WeightWork(std::unique_ptr<Content> content) noexcept;

 private:
  std::unique_ptr<Content> content_;
  bool done_ = false;
};

struct InputBackward {
  std::vector<at::Tensor> input_grads;  //!< as of `backward_full`
  WeightWork weights;
};

//! Runs the whole backward: returns the gradient of each input (undefined where it needs or gets none; laid
//! out like the input, or contiguous where the input's elements overlap), and adds the others to their
//! leaves' `.grad`.
//!   - Outputs that need no gradient (integers, constants) and outputs whose gradient is undefined (unused)
//!   are skipped.
//!   - Inputs must be leaves, as `flatten_args_detach` makes them; their `.grad` is left as it was. The
//!   gradient of a
//!     tensor that is an input twice is returned at its first place only.
//! The graph is freed. UsageError and ShapeError name the output whose gradient does not fit.
std::vector<at::Tensor> backward_full(const std::vector<at::Tensor>& outputs,
                                      const std::vector<at::Tensor>& output_grads,
                                      const std::vector<at::Tensor>& inputs);

//! Runs only what the inputs' gradients need, and leaves the rest in `weights`. Between the two, only what
//! the weights' gradients need is kept in memory. If no input needs a gradient (a first stage), all the work
//! is left.
InputBackward backward_input(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& output_grads,
                             const std::vector<at::Tensor>& inputs);

//! For modules that keep the work for their weights themselves (the reference's `dw_builder`): runs the whole
//! backward, then asks `builder` for the function that this microbatch's weight half runs.
InputBackward backward_input_with(const std::function<std::function<void()>()>& builder,
                                  const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& output_grads,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace penstock
