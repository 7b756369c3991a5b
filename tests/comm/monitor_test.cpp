// What the monitor makes of a neighbour that cannot be reached, and of strangers, on loopback.
#include "comm/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace penstock {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr seconds kSoon{10};  // of what takes a second or two

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 1000 * static_cast<int>(kSoon.count())) == 1;
}

class MonitorOfTwo : public testing::Test {
 protected:
  MonitorOfTwo() { std::tie(listener_, endpoint_) = listen_on("127.0.0.1"); }

  //! Rank 0's monitor; rank 1 is this test.
  void watch(std::chrono::milliseconds heartbeat_limit) {
    Monitor::Setup setup{.domain = domain_, .store = store_};
    setup.size = 2;
    setup.address = "127.0.0.1";
    setup.heartbeat_limit = heartbeat_limit;
    monitor_.emplace(std::move(setup));
  }
  void publish_endpoint() { store_->set(live_key("penstock/0/0/", Rank(1)), endpoint_.text()); }
  //! From here on no packet is answered, as beyond a network that is cut: the listener's queue is full.
  void stop_answering() {
    ASSERT_EQ(listen(listener_.get(), 0), 0);
    filler_ = connect_to(endpoint_, kSoon).connection;
    ASSERT_TRUE(filler_);
  }
  Fd accept_one() {
    return readable(listener_.get()) ? Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) : Fd();
  }
  std::string cause(seconds within = kSoon) const {
    const auto failure = domain_->failure.wait_for_report(within);
    return failure ? "rank " + std::to_string(failure->rank->value) + " " + failure->cause : "none";
  }

  std::shared_ptr<Domain> domain_ = std::make_shared<Domain>(Rank(0), seconds(60));
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  Fd listener_, filler_;
  Endpoint endpoint_;
  std::optional<Monitor> monitor_;
};

TEST_F(MonitorOfTwo, CallsANeighbourThatNeverAnsweredSilent) {
  stop_answering();
  publish_endpoint();
  watch(std::chrono::milliseconds(1500));
  EXPECT_THAT(
      cause(),
      StartsWith("rank 1 gave no sign of life for 1.50 s (cannot be reached by rank 0 at 127.0.0.1 port " +
                 std::to_string(endpoint_.port)));
}

TEST_F(MonitorOfTwo, TriesUntilTheNeighbourAnswers) {
  stop_answering();
  publish_endpoint();
  watch(seconds(60));
  EXPECT_EQ(cause(seconds(3)), "none");  // several tries long
  EXPECT_TRUE(accept_one());             // the filler: now there is room
  Fd connection = accept_one();
  ASSERT_TRUE(connection);
  connection.reset();
  EXPECT_THAT(cause(), HasSubstr("ended without a goodbye"));
}

TEST_F(MonitorOfTwo, KnowsAtOnceThatNobodyListensAnyMore) {
  listener_.reset();
  publish_endpoint();
  watch(seconds(60));
  EXPECT_THAT(cause(), AllOf(StartsWith("rank 1 cannot be reached by rank 0"), HasSubstr("refused")));
}

TEST_F(MonitorOfTwo, IsNotHeldUpByAStrangerWithHalfAGreeting) {
  watch(seconds(60));
  const auto own = Endpoint::parse(store_->get_to_str(live_key("penstock/0/0/", Rank(0))));
  const Fd stranger = connect_to(own, kSoon).connection;
  ASSERT_EQ(send(stranger.get(), "PS", 2, MSG_NOSIGNAL), 2);
  char none = 0;
  ASSERT_TRUE(readable(stranger.get()));
  EXPECT_EQ(recv(stranger.get(), &none, 1, 0), 0);  // shown the door
  monitor_->publish({Rank(1), "was killed"});
  EXPECT_EQ(cause(), "rank 1 was killed");
}

}  // namespace
}  // namespace penstock
