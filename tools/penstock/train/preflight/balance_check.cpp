// Estimates the stages of the split that a run would use.
#include "train/preflight/balance_check.h"

#include "base/text.h"
#include "graph/passes/graph_costs.h"
#include "train/preflight/model_checks.h"

#include <penstock/pipe/pipe.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace penstock::tool {
namespace {

struct Largest {
  std::size_t stage = 0;
  double share = 0;  //!< of the sum over all stages
};

Largest largest_of(const std::vector<double>& amounts) {
  const double sum = std::accumulate(amounts.begin(), amounts.end(), 0.0);
  const auto most = std::max_element(amounts.begin(), amounts.end());
  return {static_cast<std::size_t>(most - amounts.begin()), sum > 0 ? *most / sum : 0};
}

//! The largest stage by operations and by parameter bytes, at the sizes of the export.
struct Imbalance {
  Largest work, parameters;
};

Imbalance imbalance_of(const train::ArchiveOptions& options, int stages) {
  const train::ArchiveModel archive = open_model(options);
  const train::ModelSplit split = archive.model->split(stages);
  const pipe::TensorSource no_tensors = [](const std::vector<graph::Slot>&) {
    return std::vector<at::Tensor>{};
  };
  const pipe::Pipe pipe(*archive.graph, no_tensors,
                        pipe::SplitPolicy([&](const graph::Graph&) { return split.positions; }));
  std::vector<double> work, parameters;
  for (int stage = 0; stage < pipe.num_stages(); ++stage) {
    const graph::GraphCosts costs = graph_costs(pipe.stage_graph(StageId(stage)));
    work.push_back(costs.flops);
    parameters.push_back(static_cast<double>(costs.parameter_bytes));
  }
  return {largest_of(work), largest_of(parameters)};
}

}  // namespace

std::optional<std::string> balance_warning(const TrainSettings& request) {
  const auto stages = static_cast<int>(*request.stages);
  if (request.built_in() || stages == 1 || !request.split.empty() || !request.cuts.empty() ||
      request.balance != pipe::BalanceBy::Parameters)
    return std::nullopt;
  train::ArchiveOptions options = request.archive();
  const Imbalance found = as_usage([&] { return imbalance_of(options, stages); });
  const double limit = stages == 2 ? 0.75 : 2.0 / stages;
  const bool by_work = found.work.share > limit;
  if (!by_work && found.parameters.share <= limit) return std::nullopt;
  const Largest& largest = by_work ? found.work : found.parameters;
  options.balance = pipe::BalanceBy::MeasuredTime;
  const bool time_helps =
      by_work && as_usage([&] { return imbalance_of(options, stages); }).work.share < 0.9 * largest.share;
  return str_cat("warning: stage ", largest.stage, " of ", stages, " has ", format_share(largest.share),
                 by_work ? " of the operations; " : " of the parameters; ",
                 time_helps ? "use --balance time to balance the stages by measured time"
                            : "no split is much more even; use fewer stages");
}

}  // namespace penstock::tool
