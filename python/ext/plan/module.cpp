// The extension module penstock._plan: everything of Penstock that does not need torch.
#include "errors.h"
#include "plan/bindings.h"

#include <penstock/version.h>

PYBIND11_MODULE(_plan, module) {
  module.doc() =
      "Schedules, the simulator, the planner and drawings. The public names are in penstock.schedule, "
      "penstock.plan and penstock.view.";
  namespace python = penstock::python;
  python::register_errors();
  module.def("version", &penstock::version);
  python::bind_actions(module);
  python::bind_schedules(module);
  python::bind_validation(module);
  python::bind_timelines(module);
  python::bind_costs(module);
  python::bind_planner(module);
  python::bind_views(module);
}
