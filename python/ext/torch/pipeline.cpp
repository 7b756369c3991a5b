// The pipeline of this rank: stages of Python, a table of actions, and `step`.
#include "pipeline.h"

#include "data_parallel.h"
#include "interrupt.h"
#include "raise.h"
#include "stage_module.h"
#include "values.h"
#include "world.h"

#include <penstock/runtime/pipeline.h>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <csignal>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using Rows = std::vector<std::vector<std::string>>;

//! One stage of this rank: the object with its calls, its index, its device, the builder of deferred weight
//! gradients, and examples of the input and output.
using StageEntry = std::tuple<py::object, int, std::string, py::object, py::object, py::object>;

std::vector<schedule::ActionList> parse_rows(const Rows& rows) {
  std::vector<schedule::ActionList> lists;
  for (const auto& row : rows) {
    schedule::ActionList& list = lists.emplace_back();
    list.reserve(row.size());
    for (const std::string& text : row)
      list.push_back(text.empty() ? schedule::Action() : schedule::parse_action(text));
  }
  return lists;
}

std::optional<value::TreeMeta> meta_of(const py::object& example) {
  if (example.is_none()) return std::nullopt;
  return value::TreeMeta::of(to_value(example));
}

runtime::PipelineStage make_stage(const StageEntry& entry, int num_stages, const comm::Group& group) {
  const auto& [calls, index, device, weight_work, input, output] = entry;
  const bool last = index == num_stages - 1;
  runtime::StageOptions options;
  options.input = meta_of(input);
  if (!last) options.output = meta_of(output);
  if (!weight_work.is_none()) {
    options.weight_work = [builder = SharedObject(weight_work)]() -> std::function<void()> {
      const py::gil_scoped_acquire gil;
      return [work = SharedObject(builder.get()())] {
        const py::gil_scoped_acquire again;
        work.get()();
      };
    };
  }
  return {make_stage_module(calls, last),
          StageId(index),
          num_stages,
          at::Device(device),
          group,
          std::move(options)};
}

runtime::LossFunction make_loss(const py::object& loss) {
  if (loss.is_none()) return {};
  return runtime::LossFunction([call = SharedObject(loss)](const c10::IValue& output,
                                                           const c10::IValue& target,
                                                           const value::Kwargs& /*more*/) {
    const py::gil_scoped_acquire gil;
    const py::object result = call.get()(to_object(output), to_object(target));
    if (!THPVariable_Check(result.ptr())) {
      throw py::type_error("the loss function returned a " + std::string(Py_TYPE(result.ptr())->tp_name) +
                           ", expected a tensor");
    }
    return THPVariable_Unpack(result.ptr());
  });
}

std::vector<value::Args> args_of(const py::list& microbatches) {
  std::vector<value::Args> all;
  for (const py::handle microbatch : microbatches) {
    value::Args& args = all.emplace_back();
    for (const py::handle arg : py::reinterpret_borrow<py::tuple>(microbatch)) args.push_back(to_value(arg));
  }
  return all;
}

std::vector<value::Kwargs> kwargs_of(const py::list& microbatches) {
  std::vector<value::Kwargs> all;
  bool any = false;
  for (const py::handle microbatch : microbatches) {
    value::Kwargs& kwargs = all.emplace_back();
    for (const auto& item : py::reinterpret_borrow<py::dict>(microbatch))
      kwargs[item.first.cast<std::string>()] = to_value(item.second);
    any = any || !kwargs.empty();
  }
  if (!any) all.clear();
  return all;
}

class Pipeline {
 public:
  Pipeline(std::shared_ptr<PythonWorld> world, const std::vector<StageEntry>& stages, int num_stages,
           const Rows& rows, bool lowered, const std::vector<int>& stage_to_rank, int microbatches,
           const py::dict& settings)
      : world_(std::move(world)) {
    // The constructor fails on all ranks if it fails on one, so everything happens inside the report.
    runtime::PipelineOptions options = options_of(settings);
    comm::Group group = world_->get().group();
    std::vector<runtime::PipelineStage> made;
    for (const StageEntry& entry : stages) made.push_back(make_stage(entry, num_stages, group));
    std::vector<Rank> placement(stage_to_rank.begin(), stage_to_rank.end());
    pipeline_ = without_gil([&] {
      schedule::Placement placed(static_cast<int>(rows.size()), placement);
      const std::string name = "table of penstock.pipelining";
      if (!lowered) {
        const schedule::Schedule schedule{name, std::move(placed), microbatches, parse_rows(rows)};
        return std::make_unique<runtime::PipelineSchedule>(std::move(made), schedule, std::move(options));
      }
      schedule::Draft draft{name, std::move(placed), schedule::Wiring(num_stages), microbatches,
                            parse_rows(rows)};
      return std::make_unique<runtime::PipelineSchedule>(
          std::move(made), schedule::Program::validated(std::move(draft), group.send_mode()),
          std::move(options));
    });
  }

  ~Pipeline() {
    const py::gil_scoped_release release;
    pipeline_.reset();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  py::list step(const py::list& args, const py::list& kwargs, const py::object& targets, bool train,
                bool interruptible) {
    runtime::Microbatches batch;
    batch.args = args_of(args);
    batch.kwargs = kwargs_of(kwargs);
    if (!targets.is_none())
      for (const py::handle target : targets) batch.targets.push_back(to_value(target));
    batch.return_outputs = false;  // the stage keeps them, as the objects that the module returned
    batch.keep_mode = true;
    runtime::StepResult result =
        run([&] { return train ? pipeline_->step_microbatches(batch) : pipeline_->eval_microbatches(batch); },
            interruptible);
    timeline_ = std::move(result.timeline);
    py::list losses;
    for (const at::Tensor& loss : result.losses) losses.append(to_object(loss));
    return losses;
  }

  py::object clip_grad_norm(double max_norm, double norm_type) {
    return py::float_(run([&] { return pipeline_->clip_grad_norm(max_norm, norm_type); }, false));
  }

  //! The actions of this rank with their start and end.
  std::vector<std::tuple<std::string, double, double>> timeline() const {
    std::vector<std::tuple<std::string, double, double>> rows;
    for (const auto& list : timeline_.ranks)
      for (const schedule::TimedAction& timed : list)
        rows.emplace_back(to_string(timed.action), timed.start, timed.end);
    return rows;
  }

  //! The actions of this rank.
  std::vector<std::string> actions() const {
    const Rank rank(pipeline_->stages().front().group().rank());
    std::vector<std::string> texts;
    for (const schedule::Action& action : pipeline_->program().of(rank)) texts.push_back(to_string(action));
    return texts;
  }

 private:
  static runtime::PipelineOptions options_of(const py::dict& settings) {
    runtime::PipelineOptions options;
    options.loss = make_loss(settings["loss"]);
    options.scale_grads = settings["scale_grads"].cast<bool>();
    if (!settings["data_parallel"].is_none())
      options.data_parallel = make_data_parallel(settings["data_parallel"]);
    for (const py::handle item : settings["skips"]) {
      const auto [name, from, to] = item.cast<std::tuple<std::string, int, int>>();
      options.skips.push_back({name, StageId(from), StageId(to)});
    }
    for (const py::handle item : settings["shared"]) {
      runtime::SharedParameter shared;
      for (const auto& [stage, name] : item.cast<std::vector<std::pair<int, std::string>>>())
        shared.push_back({StageId(stage), name});
      options.shared.push_back(std::move(shared));
    }
    options.execution.lowering.defer_receives = settings["defer_receives"].cast<bool>();
    return options;
  }

  template <class Body>
  auto run(Body&& body, bool interruptible) -> decltype(body()) {
    comm::Group group = world_->get().group();
    const InterruptScope scope(group, interruptible);
    try {
      return without_gil(body);
    } catch (py::error_already_set& error) {
      if (!InterruptScope::interrupted() || error.matches(PyExc_KeyboardInterrupt)) throw;
      if (PyErr_CheckSignals() == 0) PyErr_SetNone(PyExc_KeyboardInterrupt);
      throw py::error_already_set();
    }
  }

  std::shared_ptr<PythonWorld> world_;
  std::unique_ptr<runtime::PipelineSchedule> pipeline_;
  schedule::Timeline timeline_;
};

}  // namespace

void bind_pipeline(py::module_& module) {
  py::class_<Pipeline>(module, "Pipeline")
      .def(py::init<std::shared_ptr<PythonWorld>, const std::vector<StageEntry>&, int, const Rows&, bool,
                    const std::vector<int>&, int, const py::dict&>(),
           py::arg("world"), py::arg("stages"), py::arg("num_stages"), py::arg("rows"), py::arg("lowered"),
           py::arg("stage_to_rank"), py::arg("microbatches"), py::arg("settings"))
      .def("step", &Pipeline::step, py::arg("args"), py::arg("kwargs"), py::arg("targets"), py::arg("train"),
           py::arg("interruptible"))
      .def("clip_grad_norm", &Pipeline::clip_grad_norm, py::arg("max_norm"), py::arg("norm_type") = 2.0)
      .def("timeline", &Pipeline::timeline)
      .def("actions", &Pipeline::actions);
}

}  // namespace penstock::python
