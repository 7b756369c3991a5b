// Data parallelism of Python: every call of the executor becomes a method call.
#include "data_parallel.h"

#include <utility>

namespace penstock::python {
namespace {

class PythonDataParallel final : public runtime::DataParallel {
 public:
  explicit PythonDataParallel(py::object hooks)
      : hooks_(hooks), waits_(hooks.attr("waits_before_compute").cast<bool>()) {}

  void unshard(StageId stage) override { call("unshard", stage); }
  void reshard(StageId stage) override { call("reshard", stage); }
  void before_compute(StageId stage) override {
    if (waits_) call("before_compute", stage);
  }
  //! No backward pass reduces gradients: `reduce_grad` does.
  void before_backward(StageId /*stage*/, runtime::GradientSync /*sync*/) override {}
  void reduce_grad(StageId stage) override { call("reduce_grad", stage); }

 private:
  void call(const char* method, StageId stage) const {
    const py::gil_scoped_acquire gil;
    hooks_.get().attr(method)(stage.value);
  }

  SharedObject hooks_;
  bool waits_;
};

}  // namespace

std::shared_ptr<runtime::DataParallel> make_data_parallel(py::object hooks) {
  return std::make_shared<PythonDataParallel>(std::move(hooks));
}

}  // namespace penstock::python
