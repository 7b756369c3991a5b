// The order of transfers over a transport that runs the transfers of two ranks in the order of their calls,
// as NCCL does: it must be the order of the program, which was validated, also if metadata travels first.
#include "comm/transport/thread_backend.h"
#include "device_pipeline.h"

#include <penstock/comm/adopt.h>

#include <tuple>

namespace penstock::test {
namespace {

using schedule::ScheduleKind;

class DevicesRuntimeOrder : public SimulatedDeviceTest {};

struct PairTransfer {
  bool sends;
  int tag;
  friend bool operator==(const PairTransfer&, const PairTransfer&) = default;
};

// What all ranks sent and received from device memory, by rank and peer. Metadata is in host memory and takes
// another path.
class TransferLog {
 public:
  void add(int rank, int peer, PairTransfer transfer) {
    const std::lock_guard lock(mutex_);
    transfers_[{rank, peer}].push_back(transfer);
  }
  std::map<std::pair<int, int>, std::vector<PairTransfer>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(transfers_, {});
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<PairTransfer>> transfers_;
};

class RecordingBackend final : public comm::ThreadBackend {
 public:
  RecordingBackend(int rank, int size, std::shared_ptr<comm::ThreadExchange> exchange, TransferLog& log)
      : ThreadBackend(rank, size, std::move(exchange)), log_(log) {}

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    if (tensors[0].is_cuda()) log_.add(getRank(), to, {true, tag});
    return ThreadBackend::send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    if (tensors[0].is_cuda()) log_.add(getRank(), from, {false, tag});
    return ThreadBackend::recv(tensors, from, tag);
  }

 private:
  TransferLog& log_;
};

// The exchanges of groups by name, which the ranks share.
class Exchanges {
 public:
  std::shared_ptr<comm::ThreadExchange> of(const std::string& name, int size) {
    const std::lock_guard lock(mutex_);
    auto& found = exchanges_[name];
    if (!found) found = std::make_shared<comm::ThreadExchange>(size);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<comm::ThreadExchange>> exchanges_;
};

comm::Group ordered_group(const comm::World& world, Exchanges& exchanges, TransferLog& log) {
  comm::AdoptOptions options{.send_mode = schedule::SendMode::Ordered};
  options.connect = [&](const std::string& name, const std::vector<int>& members, int me) {
    const int size = static_cast<int>(members.size());
    return c10::make_intrusive<RecordingBackend>(me, size, exchanges.of(name, size), log);
  };
  const c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<RecordingBackend>(
      world.rank().value, world.size(), exchanges.of("all", world.size()), log);
  return comm::adopt_group(backend, options);
}

void expect_program_order(const schedule::Program& program,
                          const std::map<std::pair<int, int>, std::vector<PairTransfer>>& transfers) {
  std::map<std::pair<int, int>, std::vector<bool>> expected;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    for (const schedule::Action& action : program.of(Rank(rank))) {
      if (!action.is_transfer()) continue;
      const int peer = program.placement().rank_of(action.peer()).value;
      expected[{rank, peer}].push_back(action.is_send());
    }
  }
  ASSERT_EQ(transfers.size(), expected.size());
  for (const auto& [pair, sends] : expected) {
    SCOPED_TRACE(std::to_string(pair.first) + " and " + std::to_string(pair.second));
    const std::vector<PairTransfer>& local = transfers.at(pair);
    const std::vector<PairTransfer>& other = transfers.at({pair.second, pair.first});
    ASSERT_EQ(local.size(), sends.size());
    ASSERT_EQ(local.size(), other.size());
    for (std::size_t i = 0; i < local.size(); ++i) {
      EXPECT_EQ(local[i].sends, sends[i]) << i;
      EXPECT_EQ(other[i], (PairTransfer{!local[i].sends, local[i].tag})) << i;
    }
  }
}

void expect_ordered_steps(ScheduleKind kind, runtime::ShapeMode mode) {
  const schedule::ScheduleInfo& info = info_of(kind);
  PipelineRun run{.model = mlp(), .kind = kind, .ranks = 4, .microbatches = 8};
  run.stages_per_rank = info.only_stages_per_rank.value_or(info.default_stages_per_rank);
  Exchanges exchanges;
  TransferLog log;
  comm::run_thread_ranks(run.ranks,
                         [&](comm::World& world) {
                           const comm::Group group = ordered_group(world, exchanges, log);
                           runtime::PipelineOptions options =
                               options_for(run.model, run.ranks * run.stages_per_rank);
                           options.shapes = mode;
                           runtime::PipelineSchedule pipeline(stages_on(world.device(), run, group), kind,
                                                              run.microbatches, options);
                           for (int step = 0; step < 2; ++step) {
                             world.group().barrier();
                             if (world.rank().value == 0) log.take();
                             world.group().barrier();
                             const TestBatch batch = batch_on(world.device(), run.model.batch(16));
                             if (info.has_backward) {
                               step_on(pipeline, batch);
                             } else {
                               eval_on(pipeline, batch);
                             }
                             world.group().barrier();
                             if (world.rank().value == 0)
                               expect_program_order(pipeline.program(), log.take());
                           }
                         },
                         {.device = c10::kCUDA});
}

TEST_F(DevicesRuntimeOrder, TransfersOfEveryScheduleRunInOrderOfProgram) {
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    for (const runtime::ShapeMode mode : {runtime::ShapeMode::Inferred, runtime::ShapeMode::Dynamic}) {
      SCOPED_TRACE(std::string(info.name) + ", " + std::string(to_string(mode)));
      expect_ordered_steps(info.kind, mode);
    }
  }
}

}  // namespace
}  // namespace penstock::test
