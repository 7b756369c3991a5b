// Exchanges the reports of a step.
#include "train/loop/step_report.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace penstock::train {
namespace {

constexpr std::int64_t kReportSize = 6;
static_assert(sizeof(StepReport) == kReportSize * sizeof(double));

}  // namespace

std::vector<StepReport> exchange(const comm::Group& world, const StepReport& local) {
  const at::Tensor tensor =
      at::tensor({local.loss, local.grad_norm, local.busy, local.end, local.peak, local.stop}, at::kDouble);
  const std::vector<at::Tensor> all =
      world.size() > 1 ? world.all_gather(tensor) : std::vector<at::Tensor>{tensor};
  std::vector<StepReport> reports;
  for (const at::Tensor& one : all) {
    const auto* v = one.const_data_ptr<double>();
    reports.push_back({v[0], v[1], v[2], v[3], v[4], v[5]});
  }
  return reports;
}

bool is_asked_to_stop(const comm::Group& world, const std::function<int()>& stop) {
  StepReport local;
  if (stop) local.stop = stop();
  const std::vector<StepReport> reports = exchange(world, local);
  return std::any_of(reports.begin(), reports.end(), [](const StepReport& one) { return one.stop != 0; });
}

void fill(StepRecord& record, const std::vector<StepReport>& reports, const ParallelOptions& options,
          int loss_rank) {
  double busy = 0, end = 0;
  for (const StepReport& report : reports) {
    busy += report.busy;
    end = std::max(end, report.end);
    record.peak_memory.push_back(static_cast<std::uint64_t>(report.peak));
  }
  const int first = loss_rank * options.dp * options.tp;
  for (int d = 0; d < options.dp; ++d)
    record.loss += reports[static_cast<std::size_t>(first + d * options.tp)].loss / options.dp;
  record.grad_norm = reports.front().grad_norm;
  if (end > 0) record.bubble = std::max(0.0, 1 - busy / (end * static_cast<double>(reports.size())));
}

double mean_loss(const std::vector<at::Tensor>& losses) {
  if (losses.empty()) return 0;
  const at::Tensor all = at::stack(losses).to(at::kCPU, at::kDouble);
  const auto* const values = all.const_data_ptr<double>();
  double mean = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) mean += values[i] / static_cast<double>(losses.size());
  return mean;
}

void LogInterval::close(StepRecord& record) {
  record.seconds = seconds / static_cast<double>(steps);
  record.examples_per_second = static_cast<double>(examples) / seconds;
  if (tokens) record.tokens_per_second = static_cast<double>(*tokens) / seconds;
  *this = {};
}

}  // namespace penstock::train
