// Runs of the exported test models on given tensors, for tests of losses and errors.
#pragma once

#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {

using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kIgnored = -100;

inline std::string archive(const std::string& name) {
  return PENSTOCK_SOURCE_DIR "/tests/train/archives/" + name;
}

class RecordingObserver : public Observer {
 public:
  void on_step(const StepRecord& record) override { records.push_back(record); }
  void on_message(const std::string& text) override { notes.push_back(text); }
  std::vector<StepRecord> records;
  std::vector<std::string> notes;
};

inline RunResult run_archive(const std::string& model, const Tensors& tensors, const RunOptions& options,
                             Observer* observer = nullptr, double validation = 0,
                             const EpochOptions& order = {}) {
  RunResult result;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    const ArchiveModel loaded = archive_model(
        {.file = archive(model + ".pt2"), .loss = model == "mlp" ? LossKind::Mse : LossKind::CrossEntropy});
    const auto data = tensor_data(tensors, {loaded.positional, loaded.keywords, validation, order});
    RunResult mine = run(world, *loaded.model, *data, options, {.observer = observer});
    if (world.rank().value == 0) result = std::move(mine);
  });
  return result;
}

inline RunOptions sgd(const ParallelOptions& parallel, std::int64_t batch, std::int64_t accumulate = 1) {
  RunOptions options;
  options.parallel = parallel;
  options.batch = batch;
  options.accumulate = accumulate;
  options.steps = 3;
  options.optimizer.kind = OptimizerKind::Sgd;
  options.learning_rate.peak = 0.5;
  return options;
}

inline Tensors with_ignored(std::uint64_t seed, double share) {
  Tensors data = checkpoint::load_safetensors(archive("language.safetensors"));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Tensor target = data.at("target").clone();
  target.masked_fill_(at::rand(target.sizes(), generator).lt(share), kIgnored);
  // Rows 10 to 14 are complete microbatches and a complete accumulated backward of a replica.
  if (seed % 2 == 1) target.narrow(0, 10, 5).fill_(kIgnored);
  data["target"] = target;
  return data;
}

}  // namespace penstock::train
