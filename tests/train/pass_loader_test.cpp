// The thread that loads passes ahead of their use.
#include "train/loop/pass_loader.h"

#include "base/log_line.h"
#include "support/error_message.h"

#include <penstock/base/error.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <thread>

namespace penstock::train {
namespace {

LoadedPass numbered(std::int64_t number) {
  return {.rows = number};
}

TEST(TrainPassLoader, LoadsInOrderAndNotTooFarAhead) {
  for (const std::int64_t ahead : {0, 1, 2, 5}) {
    std::atomic<std::int64_t> requested = 0, next = 0;
    std::atomic<bool> too_far = false;
    const auto load = [&](std::int64_t number) {
      EXPECT_EQ(number, next++);
      if (number >= requested + ahead) too_far = true;
      return numbered(number);
    };
    PassLoader loader(load, 20, ahead, c10::kCPU);
    for (std::int64_t number = 0; number < 20; ++number) {
      ++requested;
      EXPECT_EQ(loader.take().rows, number);
    }
    EXPECT_FALSE(too_far) << ahead;
    EXPECT_EQ(next, 20);
  }
}

TEST(TrainPassLoader, LoadsBeforePassesAreTaken) {
  std::latch three(3);
  const auto load = [&](std::int64_t number) {
    if (number < 3) three.count_down();
    return numbered(number);
  };
  PassLoader loader(load, 9, 3, c10::kCPU);
  three.wait();  // without any `take`
  EXPECT_EQ(loader.take().rows, 0);
}

TEST(TrainPassLoader, ThrowsErrorWithPassThatNeedsIt) {
  for (const std::int64_t ahead : {0, 1, 3}) {
    std::atomic<int> calls = 0;
    const auto load = [&](std::int64_t number) {
      ++calls;
      if (number == 2) throw UsageError("row 7 is missing", {}, "add it");
      return numbered(number);
    };
    PassLoader loader(load, 9, ahead, c10::kCPU);
    EXPECT_EQ(loader.take().rows, 0);
    EXPECT_EQ(loader.take().rows, 1);
    EXPECT_ERROR(loader.take(), UsageError, "row 7 is missing");
    if (ahead == 0) continue;
    EXPECT_ERROR(loader.take(), UsageError, "row 7 is missing");
    EXPECT_EQ(calls, 3);
  }
}

TEST(TrainPassLoader, StopsWithPassesLeft) {
  std::atomic<int> calls = 0;
  std::promise<void> started;
  std::latch destroying(1);
  std::thread release;
  {
    const auto load = [&](std::int64_t number) {
      ++calls;
      if (number == 1) {
        started.set_value();
        destroying.wait();
      }
      return numbered(number);
    };
    PassLoader loader(load, 100, 50, c10::kCPU);
    loader.take();
    started.get_future().wait();
    release = std::thread([&] { destroying.count_down(); });
  }
  release.join();
  EXPECT_LE(calls, 51);  // it may load more before the destructor runs
  const PassLoader waits_for_space([](std::int64_t number) { return numbered(number); }, 100, 1, c10::kCPU);
  const PassLoader empty([](std::int64_t number) { return numbered(number); }, 0, 1, c10::kCPU);
}

TEST(TrainPassLoader, KeepsSettingsOfThread) {
  const auto settings = [] {
    return std::tuple(at::GradMode::is_enabled(), c10::InferenceMode::is_enabled(),
                      log_rank().value_or(Rank(-1)).value);
  };
  const auto expect_same = [&] {
    const auto expected = settings();
    const auto load = [&](std::int64_t number) {
      EXPECT_EQ(settings(), expected);
      return numbered(number);
    };
    PassLoader loader(load, 1, 1, c10::kCPU);
    loader.take();
  };
  expect_same();
  {
    const at::NoGradGuard no_grad;
    expect_same();
  }
  {
    const c10::InferenceMode inference;
    expect_same();
  }
  set_log_rank(Rank(3));
  expect_same();
  set_log_rank(std::nullopt);
}

}  // namespace
}  // namespace penstock::train
