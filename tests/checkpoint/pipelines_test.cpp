// Checkpoints of pipelines, saved in one topology and loaded in another, for all pairs. A resumed run ends
// with the same bits as an uninterrupted one if both perform the same arithmetic.
#include "support/batch.h"
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/program.h"
#include "support/same_bits.h"

#include <penstock/checkpoint/distributed_pieces.h>
#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/models/gpt.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/pipeline.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <map>

namespace penstock::checkpoint {
namespace {

using test::same_bits;
using test::step_on;
using test::TempDir;
using test::TestBatch;

//! What ranks with the same stages do: split the batch, shard each parameter (Tensors), or both in pairs
//! (ShardedTensors).
enum class DataMode { Alone, Replicated, Sharded, Tensors, ShardedTensors };

//! How the model is split and which rank holds what. `blocks` gives the number of blocks per stage.
struct Topology {
  const char* name;
  int pipeline_ranks;
  int replicas;
  schedule::ScheduleKind schedule;
  std::vector<int> blocks;
  DataMode data_mode = DataMode::Alone;
};

const std::vector<Topology> kTopologies = {
    {"pp1", 1, 1, schedule::ScheduleKind::GPipe, {4}},
    {"pp2 1F1B", 2, 1, schedule::ScheduleKind::OneFOneB, {2, 2}},
    {"pp2 1F1B, other split", 2, 1, schedule::ScheduleKind::OneFOneB, {1, 3}},
    {"pp2 interleaved", 2, 1, schedule::ScheduleKind::Interleaved1F1B, {1, 1, 1, 1}},
    {"pp4 1F1B", 4, 1, schedule::ScheduleKind::OneFOneB, {1, 1, 1, 1}},
    {"pp2 ZBV", 2, 1, schedule::ScheduleKind::ZBVZeroBubble, {0, 2, 1, 1}},
    {"pp2 x dp2", 2, 2, schedule::ScheduleKind::OneFOneB, {2, 2}, DataMode::Replicated},
    {"pp2 x dp2 sharded", 2, 2, schedule::ScheduleKind::OneFOneB, {3, 1}, DataMode::Sharded},
    {"tp2", 1, 2, schedule::ScheduleKind::GPipe, {4}, DataMode::Tensors},
    {"pp2 x tp2 ZB1P", 2, 2, schedule::ScheduleKind::ZB1P, {3, 1}, DataMode::Tensors},
    {"sharded 2 x tp2", 1, 4, schedule::ScheduleKind::GPipe, {4}, DataMode::ShardedTensors},
    {"pp2 x sharded 2 x tp2", 2, 4, schedule::ScheduleKind::ZB1P, {2, 2}, DataMode::ShardedTensors},
};

//! Shards by heads and by feed-forward width; the vocabulary of 11 is sharded unevenly.
parallel::ParallelPlan plan_for(const torch::nn::Module& module) {
  parallel::ParallelPlan plan;
  for (const auto& item : module.named_modules("", false)) {
    const std::string& name = item.key();
    const auto is = [&](const char* end) { return name.ends_with(end); };
    if (is(".query") || is(".key") || is(".value") || is(".up"))
      plan.emplace_back(name, parallel::ColwiseParallel());
    if (is(".out") || is(".down")) plan.emplace_back(name, parallel::RowwiseParallel());
    if (name == "head") plan.emplace_back(name, parallel::ColwiseParallel());
  }
  return plan;
}

models::GptOptions small_gpt(bool tied) {
  models::GptOptions options;
  options.vocabulary = 11;
  options.context = 6;
  options.heads = 2;
  options.width = 8;
  options.tied = tied;
  return options;
}

constexpr std::int64_t kRows = 8;

//! The batch of a step; equal in every topology.
TestBatch batch_of(std::int64_t step, int replica, int replicas) {
  const at::Tensor text =
      (torch::arange(kRows * 7).reshape({kRows, 7}) * 5 + torch::arange(kRows).unsqueeze(1) * 3 + step * 7)
          .remainder(11);
  const std::int64_t mine = kRows / replicas;
  const at::Tensor part = text.narrow(0, replica * mine, mine);
  return {{part.narrow(1, 0, 6).contiguous()}, part.narrow(1, 1, 6).contiguous()};
}

//! One rank of a run.
class Run {
 public:
  Run(comm::World& world, const Topology& topology, bool tied)
      : replica_(world.rank().value / topology.pipeline_ranks),
        group_(*world.group().split(replica_, world.rank().value)),
        across_(*world.group().split(world.rank().value % topology.pipeline_ranks, world.rank().value)) {
    const models::GptOptions gpt = small_gpt(tied);
    const int stages = static_cast<int>(topology.blocks.size());
    const schedule::Placement placement =
        schedule::Placement::make(topology.pipeline_ranks, stages, info_of(topology.schedule).placement);
    runtime::PipelineOptions options;
    parallel::StageShardOptions shard;
    if (tied && stages > 1) {
      options.shared = {{{StageId(0), "token.weight"}, {StageId(stages - 1), "token.weight"}}};
      shard.separate = {"token.weight"};
    }
    std::optional<comm::Group> data = across_, tensors;
    if (topology.data_mode == DataMode::Tensors) tensors = across_;
    if (topology.data_mode == DataMode::ShardedTensors) {
      data = across_.split(across_.rank() % 2, across_.rank());  // tensor-parallel ranks vary fastest
      tensors = across_.split(across_.rank() / 2, across_.rank());
    }
    batch_parts_ = topology.data_mode == DataMode::Tensors ? 1 : data->size();
    batch_part_ = topology.data_mode == DataMode::Tensors ? 0 : data->rank();
    if (topology.data_mode == DataMode::Sharded || topology.data_mode == DataMode::ShardedTensors)
      sharded_ = std::make_shared<parallel::ShardedStages>(*data, shard);
    std::vector<runtime::PipelineStage> mine;
    std::int64_t first = 0;
    for (int s = 0; s < stages; ++s) {
      const std::int64_t end = first + topology.blocks[static_cast<std::size_t>(s)];
      if (placement.rank_of(StageId(s)).value == group_.rank()) {
        models::Gpt part(gpt, models::GptPart{first, end, s == 0, s == stages - 1});
        models::initialize(*part, gpt, 3);
        if (tensors)
          parallel::parallelize_module(*part, tensor::DeviceMesh(*tensors, {tensors->size()}),
                                       plan_for(*part));
        const runtime::StageFunction forward = [part](const value::Args& args, const value::Kwargs&) mutable {
          const at::Tensor output = part->forward(args.at(0).toTensor());
          return runtime::StageResult(tensor::is_dtensor(output) ? tensor::full_tensor(output) : output);
        };
        std::shared_ptr<runtime::StageModule> module = runtime::make_stage_module(part.ptr(), forward);
        if (sharded_) module = sharded_->add(StageId(s), module);
        mine.emplace_back(module, StageId(s), stages, at::kCPU, group_);
      }
      first = end;
    }
    if (topology.data_mode == DataMode::Replicated)
      options.data_parallel = std::make_shared<parallel::ReplicatedStages>(mine, across_);
    if (sharded_) options.data_parallel = sharded_;
    options.replica = static_cast<std::uint32_t>(batch_part_);
    options.loss = runtime::tensor_loss([](const at::Tensor& logits, const at::Tensor& target) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
    });
    pipeline_.emplace(mine, topology.schedule, static_cast<int>(kRows) / batch_parts_, options);
    std::vector<at::Tensor> parameters;
    for (const Piece& piece : pieces()) parameters.push_back(piece.local);
    // A large epsilon keeps rounding differences of small gradients from being amplified.
    optimizer_ =
        std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01).eps(1e-3));
  }

  std::vector<Piece> pieces() const {
    std::vector<Piece> all;
    for (const runtime::PipelineStage& stage : pipeline_->stages()) {
      if (sharded_) {
        for (const parallel::ShardedParameter& part : sharded_->sharded(stage.index()).shards()) {
          if (part.end == part.begin) continue;
          if (part.spec) {
            all.push_back(
                {part.name, part.spec->sizes, part.shard, local_region(*part.spec, part.begin, part.end)});
          } else {
            all.push_back({part.name, part.shape, part.shard, FlatRange{part.begin, part.end}});
          }
        }
      } else {
        for (const value::NamedTensor& parameter : stage.module().parameters())
          all.push_back(tensor_piece(parameter.name, parameter.tensor));
      }
    }
    return all;
  }

  void load(const Checkpoint& checkpoint, const comm::Group& world) {
    std::vector<Piece> wanted = pieces();
    const OptimizerLoad states = optimizer_load(checkpoint, wanted, *optimizer_);
    wanted.insert(wanted.end(), states.pieces.begin(), states.pieces.end());
    checkpoint.load(wanted, world);
    states.adopt();
    pipeline_->set_steps(static_cast<std::uint64_t>(checkpoint.step()));
  }

  void train(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from + 1; step <= to; ++step) {
      step_on(*pipeline_, batch_of(step, batch_part_, batch_parts_));
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

  void save(CheckpointWriter& writer, std::int64_t step) const {
    std::vector<Piece> all = pieces();
    const std::vector<Piece> states = optimizer_pieces(all, *optimizer_);
    all.insert(all.end(), states.begin(), states.end());
    writer.save(step, all);
  }

 private:
  int replica_;
  int batch_part_ = 0, batch_parts_ = 1;
  comm::Group group_, across_;
  std::shared_ptr<parallel::ShardedStages> sharded_;
  std::optional<runtime::PipelineSchedule> pipeline_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

//! Trains from the newest checkpoint in `from` (from scratch if empty), or from `steps[0]`, and saves after
//! each of `steps` into `to`.
void run(const Topology& topology, const std::string& from, const std::string& to,
         const std::vector<std::int64_t>& steps, bool tied) {
  comm::run_thread_ranks(topology.pipeline_ranks * topology.replicas, [&](comm::World& world) {
    Run mine(world, topology, tied);
    std::int64_t at = 0;
    if (!from.empty()) {
      const Checkpoint checkpoint(from);
      mine.load(checkpoint, world.group());
      at = checkpoint.step();
    }
    CheckpointWriter writer(to, world.group(), {.keep = std::nullopt});
    for (const std::int64_t step : steps) {
      mine.train(at, step);
      mine.save(writer, step);
      at = step;
    }
    writer.wait();
  });
}

//! The largest difference over all tensors; 0 only if all bits are equal.
double difference(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.tensors().size(), b.tensors().size());
  double largest = 0;
  for (const StoredTensor& tensor : a.tensors()) {
    const at::Tensor x = a.read(tensor.name, tensor.state), y = b.read(tensor.name, tensor.state);
    if (same_bits(x, y)) continue;
    largest = std::max(largest, std::max(1e-30, (x - y).abs().max().item<double>()));
  }
  return largest;
}

class CheckpointPipelines : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(CheckpointPipelines, ResumeFromAnyTopologyInAnyOther) {
  const TempDir dir;
  int exact = 0, close = 0;
  double most = 0;
  for (const Topology& a : kTopologies) {
    // Steps 1 to 4 without interruption; the other runs resume from the checkpoint after step 2.
    const std::string home = dir / a.name;
    run(a, "", home, {2, 4}, false);
    const Checkpoint expected(home + "/" + checkpoint_name(4));
    for (const Topology& b : kTopologies) {
      SCOPED_TRACE(std::string(a.name) + " to " + b.name);
      const std::string away = dir / (std::string(a.name) + " to " + b.name);
      run(b, home + "/" + checkpoint_name(2), away, {4}, false);
      const double off = difference(Checkpoint(away + "/" + checkpoint_name(4)), expected);
      // Data parallelism changes the order of sums over the batch, and tensor parallelism that of matrix
      // products, some of which are reduced only at the end of a stage. Everything else adds the same numbers
      // in the same order.
      const auto shards_tensors = [](const Topology& t) {
        return t.data_mode == DataMode::Tensors || t.data_mode == DataMode::ShardedTensors;
      };
      const bool tensors = shards_tensors(a) || shards_tensors(b);
      const bool same_sums = a.name == b.name || (!tensors && a.replicas == b.replicas);
      if (same_sums) {
        EXPECT_EQ(off, 0);
        ++exact;
      } else {
        EXPECT_LT(off, 1e-5);
        ++close;
      }
      most = std::max(most, off);
    }
  }
  std::printf("%d pairs bitwise, %d within %.1e\n", exact, close, most);
  EXPECT_EQ(exact + close, 144);
}

TEST_F(CheckpointPipelines, TiedWeightsAreRestoredInEveryStage) {
  const TempDir dir;
  run(kTopologies[5], "", dir / "a", {2, 4}, true);  // one rank holds both stages
  const Checkpoint expected(dir / ("a/" + checkpoint_name(4)));
  EXPECT_EQ(expected.find("head.weight"), nullptr);
  for (const std::size_t to : {0U, 1U, 7U}) {
    SCOPED_TRACE(kTopologies[to].name);
    const std::string away = dir / std::to_string(to);
    run(kTopologies[to], dir / ("a/" + checkpoint_name(2)), away, {4}, true);
    EXPECT_LT(difference(Checkpoint(away + "/" + checkpoint_name(4)), expected), 1e-5);
  }
}

}  // namespace
}  // namespace penstock::checkpoint
