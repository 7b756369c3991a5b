// Reports progress and triggers faults.
#include "train/rank/training_hook.h"

#include <penstock/comm/launched_rank.h>

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace penstock::tool {
namespace {

void fill_with_nan(const runtime::StageModule& stage) {
  const at::NoGradGuard no_grad;
  for (const value::NamedTensor& item : stage.parameters()) item.tensor.fill_(std::nan(""));
}

}  // namespace

void TrainingHook::on_start() {
  progress_.report(std::nullopt, "start");
  faults_.trigger(std::nullopt, "start");
}

void TrainingHook::on_phase(train::RunPhase phase, const train::RankState& state) {
  const std::string_view name = to_string(phase);
  progress_.report(state.step, name);
  if (!faults_.trigger(state.step, name) || phase != train::RunPhase::Step) return;
  for (const auto& [index, stage] : state.stages) fill_with_nan(*stage);
}

void TrainingHook::on_action(const schedule::Action& action, const train::RankState& state) {
  progress_.report(state.step, action);
  if (!faults_.empty() && faults_.trigger(state.step, to_string(action)))
    fill_with_nan(*state.stages.at(action.stage()));
}

bool TrainingHook::follows(schedule::ActionKind kind) const {
  return RankHook::follows(kind) || faults_.has_action(kind);
}

void report_start() {
  const comm::LaunchedRank found = comm::detect_rank();
  if (found.launcher != comm::LauncherKind::None) TrainingHook(found.rank).on_start();
}

}  // namespace penstock::tool
