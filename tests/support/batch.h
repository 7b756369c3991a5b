// A batch for a pipeline, with the options of its step.
#pragma once

#include <penstock/runtime/pipeline.h>

namespace penstock::test {

//! The arguments of `PipelineSchedule::step` and `eval`.
struct TestBatch {
  value::Args args{};
  c10::IValue target{};
  runtime::StepOptions options{};
};

template <class Pipeline>
runtime::StepResult step_on(Pipeline&& pipeline, const TestBatch& batch) {
  return pipeline.step(batch.args, batch.target, batch.options);
}
template <class Pipeline>
runtime::StepResult eval_on(Pipeline&& pipeline, const TestBatch& batch) {
  return pipeline.eval(batch.args, batch.target, batch.options);
}

}  // namespace penstock::test
