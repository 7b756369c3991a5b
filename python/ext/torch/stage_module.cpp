// A module of Python as the computation of a stage: takes the GIL, converts the arguments and calls it.
#include "stage_module.h"

#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

std::vector<value::NamedTensor> named_tensors(const py::object& items) {
  std::vector<value::NamedTensor> tensors;
  for (const py::handle item : items) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    tensors.push_back({pair[0].cast<std::string>(), THPVariable_Unpack(py::object(pair[1]).ptr())});
  }
  return tensors;
}

class PythonModule final : public runtime::StageModule {
 public:
  PythonModule(py::object calls, bool last)
      : calls_(SharedObject(calls)),
        forward_(SharedObject(calls.attr("forward"))),
        skips_(SharedObject(calls.attr("output_type"))),
        last_(last) {}

  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) override {
    const py::gil_scoped_acquire gil;
    py::tuple positional(args.size());
    for (std::size_t i = 0; i < args.size(); ++i) positional[i] = to_object(args[i]);
    py::object named;
    if (!kwargs.empty()) {
      py::dict dict;
      for (const auto& [name, value] : kwargs) dict[py::str(name)] = to_object(value);
      named = std::move(dict);
    }
    const auto output =
        py::reinterpret_steal<py::object>(PyObject_Call(forward_.get().ptr(), positional.ptr(), named.ptr()));
    if (!output) throw py::error_already_set();
    return result_of(output);
  }

  std::vector<value::NamedTensor> parameters() const override {
    const py::gil_scoped_acquire gil;
    return named_tensors(calls_.get().attr("parameters")());
  }
  std::vector<value::NamedTensor> buffers() const override {
    const py::gil_scoped_acquire gil;
    return named_tensors(calls_.get().attr("buffers")());
  }
  //! The program places its modules itself.
  void to(at::Device /*device*/) override {}
  void train(bool on) override {
    const py::gil_scoped_acquire gil;
    calls_.get().attr("train")(on);
  }
  bool is_training() const override {
    const py::gil_scoped_acquire gil;
    return calls_.get().attr("is_training")().cast<bool>();
  }
  //! As in any program of PyTorch: torch.manual_seed decides.
  bool uses_default_generator() const override { return true; }

 private:
  runtime::StageResult result_of(const py::object& output) const {
    if (last_) return {hold(output), {}};
    if (!py::isinstance(output, skips_.get())) return {sendable(output), {}};
    value::Kwargs skips;
    for (const auto& item : output.attr("skips").cast<py::dict>())
      skips[item.first.cast<std::string>()] = sendable(py::reinterpret_borrow<py::object>(item.second));
    return {sendable(output.attr("output")), std::move(skips)};
  }

  // Exported modules return a list of outputs. They are the arguments of the next stage, like a tuple.
  static c10::IValue sendable(py::object output) {
    if (PyList_CheckExact(output.ptr())) output = py::tuple(output);
    c10::IValue value = to_sendable(output);
    if (PyObject* const held = find_held(value)) {
      throw py::type_error("a stage returned a " + std::string(Py_TYPE(held)->tp_name) +
                           ", which cannot be sent to the next stage: return tensors, numbers, strings, or "
                           "tuples, lists, dicts and dataclasses of them, or register the class with "
                           "torch.utils._pytree");
    }
    return value;
  }

  SharedObject calls_, forward_, skips_;
  bool last_;
};

}  // namespace

std::shared_ptr<runtime::StageModule> make_stage_module(py::object calls, bool last) {
  return std::make_shared<PythonModule>(std::move(calls), last);
}

}  // namespace penstock::python
