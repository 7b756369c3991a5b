// Training runs of the exported models in archives/ over thread ranks, and the topologies of their tests.
#pragma once

#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::train {

constexpr std::int64_t kSteps = 12;

inline std::string recipe_file(const std::string& name) {
  return PENSTOCK_SOURCE_DIR "/tests/train/archives/" + name;
}

struct ArchiveRun {
  std::string model = "language";
  ArchiveOptions archive{};
  std::function<at::Tensor(const at::Tensor&)> change_target{};
  std::string data{};  // default: that of the model
  EpochOptions order{};
  bool validates_on_all = false;
};

using MakeHook = std::function<std::unique_ptr<RankHook>(Rank rank)>;

inline RunResult train_archive(const ArchiveRun& test, const RunOptions& options,
                               Observer* observer = nullptr, const MakeHook& make_hook = nullptr) {
  RunResult result;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    ArchiveOptions archive = test.archive;
    archive.file = recipe_file(test.model + ".pt2");
    const ArchiveModel model = archive_model(archive);
    const std::string file = test.data.empty() ? test.model : test.data;
    auto tensors = checkpoint::load_safetensors(recipe_file(file + ".safetensors"));
    if (test.change_target) tensors["target"] = test.change_target(tensors.at("target"));
    const auto table = memory_table(tensors);
    const auto data = tensor_data(table, {.positional = model.positional,
                                          .keywords = model.keywords,
                                          .order = test.order,
                                          .dtypes = model.dtypes,
                                          .validation = test.validates_on_all ? table : nullptr,
                                          .constants = model.constants,
                                          .has_target = !model.computes_loss,
                                          .labels = model.labels});
    const auto hook = make_hook ? make_hook(world.rank()) : nullptr;
    RunResult mine = run(world, *model.model, *data, options,
                         {.observer = observer, .hook = hook.get(), .gather_parameters = true});
    if (world.rank().value == 0) result = std::move(mine);
  });
  return result;
}

struct Layout {
  ParallelOptions parallel;
  std::int64_t accumulate = 1;
};

inline std::string text_of(const Layout& layout) {
  const ParallelOptions& p = layout.parallel;
  return "pp " + std::to_string(p.pp) + " tp " + std::to_string(p.tp) + " dp " + std::to_string(p.dp) +
         " sharding " + std::string(to_string(p.sharding)) + " " + to_string(p.schedule) + " A " +
         std::to_string(layout.accumulate);
}

inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{.pp = 1, .schedule = schedule::ScheduleKind::GPipe, .microbatches = 1}},
      {{.pp = 2, .schedule = schedule::ScheduleKind::OneFOneB, .microbatches = 3}},
      {{.pp = 3, .schedule = schedule::ScheduleKind::ZB1P, .microbatches = 2}},
      {{.pp = 2, .dp = 2, .schedule = schedule::ScheduleKind::OneFOneB, .microbatches = 2}},
      {{.pp = 2,
        .dp = 2,
        .sharding = Sharding::Full,
        .schedule = schedule::ScheduleKind::OneFOneB,
        .microbatches = 2}},
      {{.pp = 2, .tp = 2, .schedule = schedule::ScheduleKind::OneFOneB, .microbatches = 2}, 2},
      {{.pp = 2,
        .dp = 2,
        .sharding = Sharding::Gradients,
        .schedule = schedule::ScheduleKind::ZB1P,
        .microbatches = 2}},
      {{.pp = 1,
        .tp = 2,
        .dp = 2,
        .sharding = Sharding::Optimizer,
        .schedule = schedule::ScheduleKind::OneFOneB,
        .microbatches = 2}}};
  return all;
}

}  // namespace penstock::train
