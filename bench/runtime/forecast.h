// The step that the simulator predicts from the measured times of the stages.
#pragma once

#include <penstock/penstock.h>
#include <penstock/plan.h>
#include <penstock/runtime/stage_profile.h>

#include <map>
#include <vector>

namespace penstock::bench {

//! The mean of several measured profiles of this rank's stages.
class MeanProfile {
 public:
  void add(const schedule::Timeline& timeline) {
    for (const auto& [stage, profile] : runtime::profile_stages(timeline)) {
      runtime::StageProfile& sum = sums_[stage];
      sum.forward += profile.forward;
      sum.backward += profile.backward;
      sum.backward_input += profile.backward_input;
      sum.backward_weight += profile.backward_weight;
    }
    ++count_;
  }

  //! Stage, F, B, I and W of each stage.
  std::vector<double> flat() const {
    std::vector<double> values;
    for (const auto& [stage, sum] : sums_)
      for (const double value :
           {count_ * stage.value, sum.forward, sum.backward, sum.backward_input, sum.backward_weight})
        values.push_back(value / count_);
    return values;
  }

 private:
  std::map<StageId, runtime::StageProfile> sums_;
  double count_ = 0;
};

//! Collective: every rank passes its own profile. Transfers are free.
inline plan::Costs measured_costs(int num_stages, const comm::Group& group, const MeanProfile& mine) {
  plan::Costs costs;
  costs.stages.resize(static_cast<std::size_t>(num_stages));
  for (const c10::IValue& list : group.all_gather_object(c10::IValue(mine.flat()))) {
    const std::vector<double> values = list.toDoubleVector();
    for (std::size_t i = 0; i + 5 <= values.size(); i += 5) {
      plan::StageCosts& stage = costs.stages[static_cast<std::size_t>(values[i])];
      stage.forward = values[i + 1];
      if (values[i + 2] > 0) stage.backward = values[i + 2];
      stage.input = values[i + 3];
      stage.weight = values[i + 4];
    }
  }
  return costs;
}

inline plan::Simulation forecast(const schedule::Program& program, const comm::Group& group,
                                 const MeanProfile& mine) {
  return plan::simulate(program, measured_costs(program.num_stages(), group, mine),
                        {.memory_samples = false, .critical_path = false});
}

//! The fraction of a step in which this rank did not compute.
inline double idle_fraction(const schedule::Timeline& timeline, int rank, double seconds) {
  double busy = 0;
  for (const schedule::TimedAction& timed : timeline.ranks[static_cast<std::size_t>(rank)])
    if (timed.action.is_compute()) busy += timed.end - timed.start;
  return 1 - busy / seconds;
}

}  // namespace penstock::bench
