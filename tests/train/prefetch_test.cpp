// Runs that load their data ahead: the same losses, errors in the step that needs the data, and one call of
// the source at a time.
#include "small_run.h"
#include "support/error_message.h"

#include <penstock/base/error.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

namespace penstock::train {
namespace {

using test::small_options;
using test::Topology;

class Validations : public Observer {
 public:
  void on_evaluation(std::int64_t, double loss) override { losses.push_back(loss); }
  std::vector<double> losses;
};

TEST(TrainPrefetch, LossesAreThoseOfLoadingOnDemand) {
  at::set_num_threads(1);
  for (const Topology& topology : {Topology{1, 1, 1, 2, "GPipe"}, Topology{2, 2, 1, 2, "1F1B"}}) {
    for (const std::int64_t accumulate : {1, 2}) {
      RunOptions options = test::with(topology);
      options.steps = 6;
      options.accumulate = accumulate;
      options.eval_every = 2;
      options.eval_batches = 3;
      std::vector<std::vector<double>> losses, validations;
      for (const std::int64_t prefetch : {0, 1, 2, 7}) {
        options.prefetch = prefetch;
        Validations observer;
        losses.push_back(test::small_run(options, &observer).losses);
        validations.push_back(observer.losses);
        EXPECT_EQ(validations.back().size(), 3U);
        EXPECT_EQ(losses.back(), losses.front());
        EXPECT_EQ(validations.back(), validations.front());
      }
    }
  }
}

// A source that is not thread-safe, and that fails at a step.
class FragileSource : public DataSource {
 public:
  explicit FragileSource(std::function<void(std::int64_t step)> check) : check_(std::move(check)) {
    tensors_ = at::arange(64 * 12, at::kLong).remainder(11).view({64, 12});
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    const Call call(*this);
    check_(step);
    return take((step - 1) * batch % 32 + rows.begin, rows.end - rows.begin);
  }
  std::int64_t training_rows(std::int64_t, std::int64_t batch) const override {
    const Call call(*this);
    return batch;
  }
  std::int64_t validation_rows() const override {
    const Call call(*this);
    return 24;
  }
  Batch validation(Rows rows) const override {
    const Call call(*this);
    return take(rows.begin, rows.end - rows.begin);
  }

  mutable std::atomic<bool> overlapped = false;
  mutable std::set<std::thread::id> threads;  // unguarded on purpose: the thread sanitizer checks the calls

 private:
  struct Call {
    explicit Call(const FragileSource& owner) : source(owner) {
      // training() calls no other method of this class.
      if (source.busy_.exchange(true)) source.overlapped = true;
      source.threads.insert(std::this_thread::get_id());
    }
    ~Call() { source.busy_ = false; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    const FragileSource& source;
  };

  Batch take(std::int64_t begin, std::int64_t count) const {
    const at::Tensor tokens = tensors_.narrow(0, begin, count);
    return {.args = {tokens}, .target = tokens, .examples = count};
  }

  std::function<void(std::int64_t step)> check_;
  at::Tensor tensors_;
  mutable std::atomic<bool> busy_ = false;
};

RunResult run_with(const FragileSource& source, std::int64_t prefetch, Observer* observer = nullptr,
                   std::function<int()> stop = nullptr) {
  RunOptions options = small_options();
  options.steps = 5;
  options.parallel = {.pp = 1, .microbatches = 2};
  options.eval_every = 1;
  options.prefetch = prefetch;
  RunResult result;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    const auto model = gpt_model({.vocabulary = 11, .context = 12, .layers = 1, .heads = 2, .width = 16}, 1);
    result = run(world, *model, source, options, {.observer = observer, .stop = std::move(stop)});
  });
  return result;
}

TEST(TrainPrefetch, CallsSourceFromOneThreadAtATime) {
  at::set_num_threads(1);
  for (const std::int64_t prefetch : {0, 2}) {
    const FragileSource source([](std::int64_t) {});
    EXPECT_EQ(run_with(source, prefetch).losses.size(), 5U);
    EXPECT_FALSE(source.overlapped);
    EXPECT_EQ(source.threads.size() == 1, prefetch == 0);
  }
}

class Steps : public Observer {
 public:
  void on_step(const StepRecord& record) override { last = record.step; }
  std::int64_t last = 0;
};

TEST(TrainPrefetch, ErrorIsThatOfStepThatNeedsTheBatch) {
  at::set_num_threads(1);
  for (const std::int64_t prefetch : {0, 1, 4}) {
    const FragileSource broken([](std::int64_t step) {
      if (step == 3) throw StorageError("cannot read 'part.bin'", EIO);
    });
    Steps steps;
    try {
      run_with(broken, prefetch, &steps);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RunError& error) {
      EXPECT_EQ(error.step(), 3);
      EXPECT_THAT(error.what(), testing::HasSubstr("step 3: cannot read 'part.bin'"));
      EXPECT_ERROR(std::rethrow_if_nested(error), StorageError, "cannot read 'part.bin'");
    }
    EXPECT_EQ(steps.last, 2);
    const FragileSource wrong([](std::int64_t step) {
      if (step == 4) throw UsageError("token 12 is outside the vocabulary");
    });
    EXPECT_ERROR(run_with(wrong, prefetch, &steps), UsageError, "token 12 is outside the vocabulary");
    EXPECT_EQ(steps.last, 3);
  }
}

// Data of steps that are not reached may be missing.
TEST(TrainPrefetch, StoppedRunDoesNotReportLaterSteps) {
  at::set_num_threads(1);
  const FragileSource source([](std::int64_t step) {
    if (step > 2) throw UsageError("there is no such step");
  });
  int asked = 0;
  const RunResult result = run_with(source, 4, nullptr, [&] { return ++asked == 2 ? 15 : 0; });
  EXPECT_EQ(result.stopped, 15);
  EXPECT_EQ(result.last_step, 2);
}

TEST(TrainPrefetch, RefusesNegativeNumber) {
  const FragileSource source([](std::int64_t) {});
  EXPECT_ERROR(run_with(source, -1), UsageError, "prefetch must be at least 0");
}

}  // namespace
}  // namespace penstock::train
