// The built-in schedules as classes, such as Schedule1F1B.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <utility>
#include <vector>

namespace penstock::runtime {

//! A PipelineSchedule of a fixed kind, with one or several stages per rank.
template <schedule::ScheduleKind kind>
class NamedSchedule : public PipelineSchedule {
 public:
  NamedSchedule(PipelineStage stage, int microbatches, PipelineOptions options = {})
      : NamedSchedule(std::vector<PipelineStage>{std::move(stage)}, microbatches, std::move(options)) {}
  NamedSchedule(std::vector<PipelineStage> stages, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(std::move(stages), kind, microbatches, std::move(options)) {}
};

#define PENSTOCK_SCHEDULE(kind, class_name, ...) \
  using class_name = NamedSchedule<schedule::ScheduleKind::kind>;
#include <penstock/schedule/schedules.def>

}  // namespace penstock::runtime
