// The failure state: what a report does to the operations that threads wait for. The thread that aborts
// backends.
#include "comm/failure/aborter.h"
#include "comm/failure/failure.h"

#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

// An operation whose abort asks for the failure, as the code of a transport may.
class CuriousWork : public c10d::Work {
 public:
  explicit CuriousWork(const FailureState& state) : state_(state) {}
  void abort() override { causes.push_back(state_.failure().value().cause); }

  std::vector<std::string> causes;

 private:
  const FailureState& state_;
};

// With the lock held, the abort would wait for itself.
TEST(CommFailureState, AbortsWithoutLock) {
  FailureState state;
  const auto before = c10::make_intrusive<CuriousWork>(state),
             after = c10::make_intrusive<CuriousWork>(state);
  const auto ended = c10::make_intrusive<CuriousWork>(state);
  { const FailureState::AbortOnFailure guard(state, ended); }
  {
    const FailureState::AbortOnFailure guard(state, before);
    state.report({Rank(1), "first"});
    state.report({Rank(2), "second"});
  }
  const FailureState::AbortOnFailure guard(state, after);
  EXPECT_EQ(before->causes, std::vector<std::string>{"first"});
  EXPECT_EQ(after->causes, std::vector<std::string>{"first"});
  EXPECT_TRUE(ended->causes.empty());
}

// A backend that says what happens to it.
class TracedBackend : public c10d::Backend {
 public:
  TracedBackend(bool& aborted, bool& destroyed) : Backend(0, 1), aborted_(aborted), destroyed_(destroyed) {}
  ~TracedBackend() override { destroyed_ = true; }
  void abort() override { aborted_ = true; }

 private:
  bool& aborted_;
  bool& destroyed_;
};

// After the wait, the thread refers to no backend: its owner destroys it.
TEST(CommAborter, LetsGoOfBackends) {
  for (int i = 0; i < 300; ++i) {
    bool aborted = false, destroyed = false;
    auto backend = c10::make_intrusive<TracedBackend>(aborted, destroyed);
    Aborter aborter;
    aborter.add(backend);
    aborter.abort_all();
    aborter.wait(std::chrono::seconds(60));
    ASSERT_TRUE(aborted);
    ASSERT_FALSE(destroyed);
    backend.reset();
    ASSERT_TRUE(destroyed) << i;
  }
}

}  // namespace
}  // namespace penstock::comm
