// The validator.
#include "base/option_ranges.h"
#include "plan/bindings.h"

#include <penstock/schedule/validate.h>

#include <pybind11/stl.h>

namespace penstock::python {
namespace {

using namespace py::literals;

py::object verdict_object(const schedule::Verdict& verdict) {
  py::dict by_mode;
  for (const schedule::SendMode mode : schedule::kSendModes) {
    const auto& findings = verdict.by_mode.at(static_cast<std::size_t>(mode));
    if (findings) by_mode[py::str(to_string(mode))] = diagnostics_of(*findings);
  }
  return py::module_::import("penstock.schedule")
      .attr("Verdict")("findings"_a = diagnostics_of(verdict.findings), "by_mode"_a = by_mode,
                       "peak_in_flight"_a = py::tuple(py::cast(verdict.peak_in_flight)),
                       "peak_in_flight_of_rank"_a = py::tuple(py::cast(verdict.peak_in_flight_of_rank)));
}

schedule::ValidateOptions options_of(const std::optional<std::string>& send_mode,
                                     std::optional<std::int64_t> max_in_flight) {
  schedule::ValidateOptions options;
  if (send_mode) options.send_mode = schedule::parse_send_mode(*send_mode);
  if (max_in_flight) options.max_in_flight = count_option(*max_in_flight, "max_in_flight");
  return options;
}

py::object validate(const py::object& subject, const std::optional<std::string>& send_mode,
                    std::optional<std::int64_t> max_in_flight, const StagePairs& skips) {
  const schedule::ValidateOptions options = options_of(send_mode, max_in_flight);
  if (py::isinstance<schedule::Program>(subject))
    return verdict_object(schedule::validate(subject.cast<const schedule::Program&>().draft(), options));
  if (py::isinstance<schedule::Schedule>(subject)) {
    const auto& table = subject.cast<const schedule::Schedule&>();
    return verdict_object(
        schedule::validate(table, schedule::Wiring(table.num_stages(), edges_of(skips)), options));
  }
  if (!py::isinstance<py::sequence>(subject) || py::isinstance<py::str>(subject))
    throw py::type_error("expected a Schedule, a Program or rows of actions");
  return verdict_object(file_of(subject, {}, skips, {}).validate(options));
}

}  // namespace

py::tuple diagnostics_of(const Diagnostics& diagnostics) {
  const py::object type = py::module_::import("penstock.schedule").attr("Diagnostic");
  py::tuple findings(diagnostics.size());
  for (std::size_t i = 0; i < diagnostics.size(); ++i) {
    const Diagnostic& diagnostic = diagnostics[i];
    findings[i] = type(to_string(diagnostic.severity), diagnostic.where, diagnostic.message);
  }
  return findings;
}

void bind_validation(py::module_& module) {
  module.def("validate", &validate, "subject"_a, "send_mode"_a, "max_in_flight"_a, "skips"_a);
}

}  // namespace penstock::python
