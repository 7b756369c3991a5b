// Measures the trainer's work outside the pipeline step, the time that saving a checkpoint delays training,
// and the speed of checkpoints on a disk. Prints one JSON object.
// Usage: trainer_bench step STEPS | pause DIRECTORY | storage DIRECTORY
#include "base/json.h"

#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/launcher.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/penstock.h>
#include <penstock/train/trainer.h>

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

//! When a rank entered the phases of each step, and when the first action of the step began.
class PhaseTimes final : public ps::train::RankHook {
 public:
  struct Step {
    Clock::time_point begin, first_action, update, end;  //!< `end`: after the update, logs and messages
    std::optional<Clock::time_point> checkpoint;         //!< before a checkpoint is saved

    double total() const { return seconds_between(begin, checkpoint.value_or(end)); }
    //! Data before the pipeline step; clipping, reports, the optimizer and logs after it.
    double outside_pipeline() const {
      return seconds_between(begin, first_action) + seconds_between(update, end);
    }
    double pause() const { return seconds_between(*checkpoint, end); }
  };

  void on_phase(ps::train::RunPhase phase, const ps::train::RankState&) override {
    using ps::train::RunPhase;
    const auto now = Clock::now();
    if ((phase == RunPhase::Step || phase == RunPhase::End) && !steps_.empty()) steps_.back().end = now;
    if (phase == RunPhase::Step) {
      steps_.push_back({.begin = now});
      before_actions_ = true;
    }
    if (steps_.empty()) return;
    if (phase == RunPhase::Update) steps_.back().update = now;
    if (phase == RunPhase::Checkpoint) steps_.back().checkpoint = now;
  }
  void on_action(const ps::schedule::Action&, const ps::train::RankState&) override {
    if (before_actions_) steps_.back().first_action = Clock::now();
    before_actions_ = false;
  }

  //! Without the first steps, which allocate memory and open connections.
  std::vector<Step> steps_after(std::size_t warmup) const {
    return {steps_.begin() + static_cast<std::ptrdiff_t>(warmup), steps_.end()};
  }

 private:
  std::vector<Step> steps_;
  bool before_actions_ = false;
};

//! A text of the built-in grammar, as `penstock train` uses it without a text.
class Text {
 public:
  std::int64_t vocabulary() const { return vocabulary_.size(); }
  std::unique_ptr<ps::train::DataSource> data() const {
    return ps::train::text_data(text_, vocabulary_, {.length = 64});
  }

 private:
  std::string text_ = ps::train::generated_text(400'000);
  ps::train::Vocabulary vocabulary_{text_};
};

//! The default run of `penstock train` with two pipeline ranks. The rank of the first stage finishes a step
//! last, so its figures contain no waits for the other rank.
int run_default(int steps) {
  at::set_num_threads(1);
  const ps::World world = ps::init();
  const Text text;
  const auto model = ps::train::gpt_model({.vocabulary = text.vocabulary()}, 1);
  ps::train::RunOptions options;
  options.parallel.pp = world.size();
  options.steps = steps;
  const auto log = std::filesystem::temp_directory_path() / "penstock-trainer-bench.jsonl";
  if (world.rank().value == 0) options.log_json = log;
  PhaseTimes times;
  ps::train::run(world, *model, *text.data(), options, {.hook = &times});
  if (world.rank().value != 0) return 0;
  std::filesystem::remove(log);
  std::vector<double> total, outside;
  for (const PhaseTimes::Step& step : times.steps_after(5)) {
    total.push_back(step.total());
    outside.push_back(step.outside_pipeline());
  }
  std::cout << ps::JsonWriter()
                   .begin_object()
                   .field("step_s", median(total))
                   .field("outside_s", median(outside))
                   .end_object()
                   .text()
            << std::endl;
  return 0;
}

//! A GPT of 100 M parameters saves its state (parameters and two states each) after two of its steps.
void measure_pause(const std::filesystem::path& directory) {
  at::set_num_threads(1);
  ps::comm::run_thread_ranks(1, [&](ps::comm::World& world) {
    const Text text;
    const auto model =
        ps::train::gpt_model({.vocabulary = text.vocabulary(), .layers = 14, .heads = 12, .width = 768}, 1);
    ps::train::RunOptions options;
    options.steps = 5;
    options.checkpoint.directory = directory;
    options.checkpoint.every = 2;
    PhaseTimes times;
    ps::train::run(world, *model, *text.data(), options, {.hook = &times});
    const std::vector<PhaseTimes::Step> steps = times.steps_after(0);
    std::cout << ps::JsonWriter()
                     .begin_object()
                     .field("step_s", steps[1].total())
                     .field("first_pause_s", steps[1].pause())  // allocates the memory of the copies
                     .field("pause_s", steps[3].pause())
                     .field("next_step_s", std::max(steps[2].total(), steps[4].total()))
                     .end_object()
                     .text()
              << std::endl;
  });
}

//! Drops the file from the page cache. It must be on disk.
void drop_from_cache(const std::filesystem::path& file) {
  const int descriptor = open(file.c_str(), O_RDONLY);
  if (descriptor < 0) return;
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
}

//! Writes and reads a checkpoint of 1 GiB in one process.
void measure_storage(const std::filesystem::path& directory) {
  ps::comm::run_thread_ranks(1, [&](ps::comm::World& world) {
    constexpr int tensors = 64;
    constexpr std::int64_t side = 2048;
    std::vector<ps::checkpoint::Piece> pieces;
    for (int i = 0; i < tensors; ++i)
      pieces.push_back(ps::checkpoint::full_piece("weight" + std::to_string(i), torch::rand({side, side})));
    const auto bytes = static_cast<double>(tensors * side * side * 4);
    const auto start = Clock::now();
    {
      ps::checkpoint::CheckpointWriter writer(directory, world.group(), {.asynchronous = false});
      writer.save(1, pieces);
      writer.wait();
    }
    const auto written = Clock::now();
    const ps::checkpoint::Checkpoint stored(directory / ps::checkpoint::checkpoint_name(1));
    for (const ps::checkpoint::StoredFile& file : stored.files()) drop_from_cache(stored.path() / file.name);
    const auto begin_read = Clock::now();
    stored.load(pieces);
    const auto end_read = Clock::now();
    std::cout << ps::JsonWriter()
                     .begin_object()
                     .field("write_bytes_per_s", bytes / seconds_between(start, written))
                     .field("read_bytes_per_s", bytes / seconds_between(begin_read, end_read))
                     .end_object()
                     .text()
              << std::endl;
  });
}

int launch_two_ranks(char** argv) {
  ps::comm::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[1], argv[2]};
  launch.ranks = 2;
  launch.on_line = [](ps::Rank, ps::comm::OutputStream stream, std::string_view line) {
    (stream == ps::comm::OutputStream::Err ? std::cerr : std::cout) << line << "\n";
  };
  return ps::comm::launch(launch).exit_code();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode == "step")
    return std::getenv("RANK") != nullptr ? run_default(std::atoi(argv[2])) : launch_two_ranks(argv);
  if (mode == "pause") return measure_pause(argv[2]), 0;
  if (mode == "storage") return measure_storage(argv[2]), 0;
  std::cerr << "usage: trainer_bench step STEPS | pause DIRECTORY | storage DIRECTORY\n";
  return 2;
}
