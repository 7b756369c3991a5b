// The schedules under the names that users know.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <utility>
#include <vector>

namespace penstock {

//! A PipelineSchedule of one kind, from one stage or several.
template <ScheduleKind kind>
class NamedSchedule : public PipelineSchedule {
 public:
  NamedSchedule(PipelineStage stage, int microbatches, PipelineOptions options = {})
      : NamedSchedule(std::vector<PipelineStage>{std::move(stage)}, microbatches, std::move(options)) {}
  NamedSchedule(std::vector<PipelineStage> stages, int microbatches, PipelineOptions options = {})
      : PipelineSchedule(std::move(stages), kind, microbatches, std::move(options)) {}
};

using ScheduleGPipe = NamedSchedule<ScheduleKind::GPipe>;
using Schedule1F1B = NamedSchedule<ScheduleKind::OneFOneB>;
using ScheduleInterleaved1F1B = NamedSchedule<ScheduleKind::Interleaved1F1B>;
using ScheduleLoopedBFS = NamedSchedule<ScheduleKind::LoopedBFS>;
using ScheduleInterleavedZeroBubble = NamedSchedule<ScheduleKind::InterleavedZeroBubble>;
using ScheduleZBVZeroBubble = NamedSchedule<ScheduleKind::ZBVZeroBubble>;
using ScheduleDualPipeV = NamedSchedule<ScheduleKind::DualPipeV>;
using ForwardOnly = NamedSchedule<ScheduleKind::ForwardOnly>;

}  // namespace penstock
