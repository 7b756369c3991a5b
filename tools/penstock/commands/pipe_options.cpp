// Reads the pipeline options, strictly.
#include "pipe_options.h"

#include "train_settings.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <charconv>

namespace penstock::tool {
namespace {

Cuts read_cuts(const std::vector<std::string>& words) {
  Cuts cuts;
  for (const std::string& word : words) {
    std::size_t cut = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), cut);
    if (error != std::errc() || end != word.data() + word.size())
      throw UsageError("--cuts " + quote(word) + " is no number of an operator");
    cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace

void CutOptions::declare(Arguments& arguments) {
  arguments.option("--split", split, "where stages begin or end: layers.2=beginning,layers.4=end");
  arguments.option("--cuts", cuts, "before which operators stages begin, counted from 0: 12,40");
  arguments.option("--stages", stages, "this many stages of about equal weight");
  arguments.choice<BalanceBy>(
      "--balance", by,
      {{"params", BalanceBy::Parameters}, {"flops", BalanceBy::Flops}, {"time", BalanceBy::MeasuredTime}},
      "what is made equal: bytes of parameters, estimated operations, measured time");
}

std::optional<SplitSpec> CutOptions::spec() const {
  const int given = (split.empty() ? 0 : 1) + (cuts.empty() ? 0 : 1) + (stages ? 1 : 0);
  if (given > 1) throw UsageError("--split, --cuts and --stages exclude each other", {}, "give one of them");
  if (!split.empty()) return read_split_points(split);
  if (!cuts.empty()) return SplitPolicy([places = read_cuts(cuts)](const Graph&) { return places; });
  if (stages) return Balanced{small_count(*stages, "--stages"), by};
  return std::nullopt;
}

void RankOptions::declare(Arguments& arguments, const std::string& usual_schedule) {
  schedule = usual_schedule;
  arguments.option("--ranks", asked.ranks, "how many ranks (processes); alone it means --pp");
  arguments.option("--pp", asked.pp, "pipeline-parallel ranks, which hold stages");
  arguments.option("--tp", asked.tp, "tensor-parallel ranks, which share the layers of a stage");
  arguments.option("--dp", asked.dp, "data-parallel ranks, which share the examples");
  arguments.option("--schedule", schedule, "its name");
  arguments.option("--stages-per-rank", stages_per_rank, "how many stages a rank holds");
  arguments.option("--microbatches", microbatches, "how many parts the examples are cut into");
  arguments.option("--backend", backend, "gloo or auto");
  arguments.choice<DeviceChoice>("--device", device, kDeviceWords,
                                 "what ranks compute on; auto is cpu so far");
}

RankCounts RankOptions::counts() const {
  if (stages_per_rank) small_count(*stages_per_rank, "--stages-per-rank");
  if (microbatches) small_count(*microbatches, "--microbatches");
  check_backend(backend);
  settle_device(device);
  return asked.counts();
}

}  // namespace penstock::tool
