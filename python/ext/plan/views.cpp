// Pictures of schedules, programs, simulations and timelines.
#include "base/option_ranges.h"
#include "plan/bindings.h"

#include <penstock/base/error.h>
#include <penstock/schedule/lower.h>
#include <penstock/view/render.h>

#include <pybind11/stl.h>

#include <span>

namespace penstock::python {
namespace {

using namespace py::literals;

//! Above this number of actions a notebook would become slow.
constexpr std::size_t kMaxNotebookActions = 20'000;

//! As `penstock schedule` draws it: simulated with equal costs. A table that is not a valid schedule cannot
//! be simulated; its slots are drawn.
view::Drawing draw_schedule(const schedule::Schedule& table) {
  try {
    const auto program = make_program(table, schedule::SendMode::Buffered);
    return view::draw(simulate(program, plan::Costs::uniform(table.num_stages())), view::TimeUnit::Units);
  } catch (const ScheduleError&) {
    return view::draw(table);
  }
}

std::vector<schedule::Timeline> timelines_of(const py::object& subject) {
  std::vector<schedule::Timeline> timelines;
  if (py::isinstance<py::sequence>(subject) && !py::isinstance<py::str>(subject)) {
    for (const py::handle item : subject) {
      if (!py::isinstance<schedule::Timeline>(item)) break;
      timelines.push_back(item.cast<schedule::Timeline>());
    }
    if (!timelines.empty() && timelines.size() == py::len(subject)) return timelines;
  }
  throw py::type_error("expected a Schedule, Program, Simulation or Timeline, or a list of timelines");
}

std::size_t actions_in(const py::object& subject) {
  if (py::isinstance<schedule::Schedule>(subject))
    return action_count(subject.cast<const schedule::Schedule&>().ranks);
  if (py::isinstance<schedule::Program>(subject))
    return action_count(subject.cast<const schedule::Program&>().draft().ranks);
  const schedule::Timeline& timeline = py::isinstance<Prediction>(subject)
                                           ? subject.cast<const Prediction&>().simulation.timeline
                                           : subject.cast<const schedule::Timeline&>();
  std::size_t count = 0;
  for (const auto& rank : timeline.ranks) count += rank.size();
  return count;
}

std::string grid(const py::object& subject, const std::string& unit, bool color,
                 std::optional<std::int64_t> width) {
  view::GridOptions options;
  options.color = color;
  if (width) options.width = count_option(*width, "width");
  return view::to_grid(drawing_of(subject, unit), options);
}

}  // namespace

view::Drawing drawing_of(const py::object& subject, const std::string& unit) {
  if (py::isinstance<schedule::Schedule>(subject))
    return draw_schedule(subject.cast<const schedule::Schedule&>());
  if (py::isinstance<schedule::Program>(subject)) return view::draw(subject.cast<const schedule::Program&>());
  if (py::isinstance<Prediction>(subject)) {
    const auto& prediction = subject.cast<const Prediction&>();
    return view::draw(prediction.simulation, prediction.unit);
  }
  if (py::isinstance<schedule::Timeline>(subject))
    return view::draw(std::span(&subject.cast<const schedule::Timeline&>(), 1), unit_of(unit));
  return view::draw(timelines_of(subject), unit_of(unit));
}

py::object picture_of(const py::object& subject) {
  if (actions_in(subject) > kMaxNotebookActions) return py::none();
  std::string unit = "units";
  if (py::isinstance<schedule::Timeline>(subject) &&
      subject.cast<const schedule::Timeline&>().source == schedule::TimelineSource::Measured)
    unit = "seconds";
  // An image: the style sheet of an inline SVG would apply to the whole notebook.
  const py::bytes svg(view::to_svg(drawing_of(subject, unit)));
  return py::str("<img style=\"max-width:100%\" alt=\"{}\" src=\"data:image/svg+xml;base64,{}\">")
      .format(py::module_::import("html").attr("escape")(py::repr(subject)),
              py::module_::import("base64").attr("b64encode")(svg).attr("decode")("ascii"));
}

void bind_views(py::module_& module) {
  module.def("grid", &grid, "subject"_a, "unit"_a, "color"_a, "width"_a);
  module.def(
      "svg",
      [](const py::object& subject, const std::string& unit) {
        return view::to_svg(drawing_of(subject, unit));
      },
      "subject"_a, "unit"_a);
  module.def(
      "html",
      [](const py::object& subject, const std::string& unit) {
        return view::to_html(drawing_of(subject, unit));
      },
      "subject"_a, "unit"_a);
  module.def(
      "trace",
      [](const py::object& subject, const std::string& unit) {
        return view::to_trace(drawing_of(subject, unit));
      },
      "subject"_a, "unit"_a);
}

}  // namespace penstock::python
