// The built-in schedules as classes, such as Schedule1F1B.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <utility>

namespace penstock::runtime {

//! A PipelineSchedule of a fixed kind, with one or several stages per rank.
template <schedule::ScheduleKind kind>
class NamedSchedule : public PipelineSchedule {
 public:
  NamedSchedule(const StageList& stages, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(stages, kind, microbatches, std::move(options)) {}
};

#define PENSTOCK_SCHEDULE(kind, class_name, ...) \
  using class_name = NamedSchedule<schedule::ScheduleKind::kind>;
#include <penstock/schedule/schedules.def>

}  // namespace penstock::runtime
