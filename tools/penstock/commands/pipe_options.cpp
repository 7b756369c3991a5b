// Parses and checks the pipeline options.
#include "commands/pipe_options.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "config/settings.h"
#include "config/train_settings.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>

namespace penstock::tool {

void SplitOptions::declare(Arguments& arguments) {
  arguments.option("--split", split, "split points: layers.2=beginning,layers.4=end");
  arguments.option("--cuts", positions, "split positions, as operator indices from 0: 12,40");
  arguments.option("--stages", stages, "split into this many balanced stages");
  arguments.choice<pipe::BalanceBy>(
      "--balance", by,
      {{"params", pipe::BalanceBy::Parameters},
       {"flops", pipe::BalanceBy::Flops},
       {"time", pipe::BalanceBy::MeasuredTime}},
      "balance stages by parameter bytes, estimated operations or measured time");
}

std::optional<pipe::SplitSpec> SplitOptions::spec() const {
  const int given = (split.empty() ? 0 : 1) + (positions.empty() ? 0 : 1) + (stages ? 1 : 0);
  if (given > 1)
    throw UsageError("--split, --cuts and --stages are mutually exclusive", {}, "give only one of them");
  if (!split.empty()) return read_split_points(split);
  if (!positions.empty())
    return pipe::SplitPolicy([read = read_split_positions(positions)](const graph::Graph&) { return read; });
  if (stages) return pipe::Balanced{count_option(*stages, "--stages"), by};
  return std::nullopt;
}

void RankOptions::declare(Arguments& arguments, const std::string& default_schedule) {
  schedule = default_schedule;
  arguments.option("--ranks", rank_request.ranks,
                   "number of ranks (processes); without --pp, --tp and --dp it sets --pp");
  arguments.option("--pp", rank_request.pp, "pipeline-parallel ranks");
  arguments.option("--tp", rank_request.tp, "tensor-parallel ranks; they shard the layers of a stage");
  arguments.option("--dp", rank_request.dp, "data-parallel ranks; they divide the examples");
  arguments.option("--schedule", schedule, "schedule name; see penstock schedule --list");
  arguments.suggest("--schedule", schedule::schedule_names());
  arguments.option("--stages-per-rank", stages_per_rank, "stages per rank");
  arguments.option("--microbatches", microbatches, "number of microbatches that the examples are split into");
  arguments.option("--backend", backend, kBackendHelp);
  arguments.choice<DeviceChoice>("--device", device, kDeviceChoices, kDeviceHelp);
}

RankCounts RankOptions::resolve() {
  if (stages_per_rank) count_option(*stages_per_rank, "--stages-per-rank");
  if (microbatches) count_option(*microbatches, "--microbatches");
  const RankCounts counts = rank_request.counts();
  ResolvedDevice resolved = resolve_device(device, counts.all());
  device = resolved.choice;
  device_reason = std::move(resolved.reason);
  backend = resolve_backend(backend, device);
  return counts;
}

}  // namespace penstock::tool
