// A graph with its tensors: one stage, or a complete imported or captured model.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::graph {

//! Runs a graph with its parameters, buffers and constants.
class GraphModule {
 public:
  //! `tensors` holds one tensor per slot, in slot order. With a device, moves the tensors there and overrides
  //! the device arguments of recorded operators.
  GraphModule(Graph graph, std::vector<at::Tensor> tensors, std::optional<at::Device> device = std::nullopt);
  GraphModule(GraphModule&&) noexcept;
  GraphModule& operator=(GraphModule&&) noexcept;
  ~GraphModule();

  const Graph& graph() const;
  //! One tensor per slot, in slot order.
  const std::vector<at::Tensor>& tensors() const;
  //! The device that was given to the constructor or to `to`; nullopt if none was.
  const std::optional<at::Device>& device() const;

  //! Moves parameters and buffers in place, so existing handles see the moved tensors. Meta tensors get
  //! uninitialized memory. Overrides the device arguments of recorded operators.
  void to(at::Device device);

  //! Runs the graph, which may update its buffers. The arguments must have the structure the graph was
  //! captured or exported with. Throws ShapeError naming every input whose sizes or dtype do not match.
  c10::IValue forward(const value::Args& args, const value::Kwargs& kwargs = {});

  //! Runs the graph on flattened arguments, without checks.
  std::vector<c10::IValue> run(std::vector<c10::IValue> leaves);

  //! Lists each tensor once, under its first name.
  std::vector<value::NamedTensor> named_parameters() const;
  std::vector<value::NamedTensor> named_buffers() const;

  //! On: training flags (dropout, batch norm) are as recorded. Off: they are false.
  void train(bool on = true);
  bool is_training() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

//! Which floating-point dtypes an input may have.
enum class FloatDtypes {
  AsRecorded,  //!< that of the graph; with autocast also float32, bfloat16 and float16
  Any,         //!< of float32, bfloat16 and float16
};

//! Throws ShapeError listing every input leaf that does not match: wrong dtype, wrong fixed size, conflicting
//! values of a symbol, or a symbol out of range. `size_hint` replaces the default hint for wrong fixed sizes.
void check_inputs(const Graph& graph, const std::vector<c10::IValue>& leaves,
                  const std::string& size_hint = {}, FloatDtypes floats = FloatDtypes::AsRecorded);

//! Flattens the arguments in the order of `graph.inputs`. Throws UsageError if their structure differs.
std::vector<c10::IValue> flatten_inputs(const Graph& graph, const value::Args& args,
                                        const value::Kwargs& kwargs);

}  // namespace penstock::graph
