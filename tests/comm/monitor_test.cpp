// The monitor's reaction to unreachable neighbors and to foreign connections, on loopback.
#include "comm/failure/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <ctime>

namespace penstock::comm {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr seconds kSoon{10};  // for operations that take a second or two

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 1000 * static_cast<int>(kSoon.count())) == 1;
}

TEST(CommFailure, SurvivesSerialization) {
  const Failure departure = Failure::of_departure(Rank(3), Rank(1), "barrier");
  EXPECT_TRUE(departure.departure);
  // A cause that only reads like a departure is a failure.
  for (const Failure& sent : {departure, Failure{Rank(3), departure.cause}, Failure{std::nullopt, "a: b"},
                              Failure{Rank(0), " left:"}}) {
    const Failure received = Failure::parse(sent.serialize());
    EXPECT_EQ(received.rank, sent.rank);
    EXPECT_EQ(received.cause, sent.cause);
    EXPECT_EQ(received.departure, sent.departure);
  }
  EXPECT_FALSE(Failure::parse("- left:gone").departure);
}

class CommMonitor : public testing::Test {
 protected:
  CommMonitor() { std::tie(listener_, endpoint_) = listen_on("127.0.0.1"); }

  //! The monitor of rank 0; the test acts as rank 1.
  void start_monitor(std::chrono::milliseconds heartbeat_limit) {
    Monitor::Setup setup{.generation = generation_, .store = store_};
    setup.size = 2;
    setup.address = "127.0.0.1";
    setup.heartbeat_limit = heartbeat_limit;
    setup.secret = secret_;
    monitor_.emplace(std::move(setup));
  }
  void publish_endpoint() { store_->set(live_key("penstock/0/0/", Rank(1)), endpoint_.text()); }
  //! From now on no packet is answered, as on a broken network: the listen queue is full.
  void stop_answering() {
    ASSERT_EQ(listen(listener_.get(), 0), 0);
    filler_ = connect_to(endpoint_, kSoon).connection;
    ASSERT_TRUE(filler_);
  }
  Fd accept_one() {
    return readable(listener_.get()) ? Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) : Fd();
  }
  Endpoint own_endpoint() const {
    return Endpoint::parse(store_->get_to_str(live_key("penstock/0/0/", Rank(0))));
  }
  //! A connection to the monitor of rank 0 that sends this.
  Fd connect_and_send(const std::string& words) const {
    Fd connection = connect_to(own_endpoint(), kSoon).connection;
    send(connection.get(), words.data(), words.size(), MSG_NOSIGNAL);
    return connection;
  }
  std::string greeting(const JobSecret& secret) const {
    const std::string text = "penstock monitor 0/0/1\n";
    return text + secret.sign(text) + "\n";
  }
  std::string cause(seconds within = kSoon) const {
    const auto failure = generation_->failure.wait_for_report(within);
    return failure ? "rank " + std::to_string(failure->rank->value) + " " + failure->cause : "none";
  }

  std::shared_ptr<WorldGeneration> generation_ = std::make_shared<WorldGeneration>(Rank(0), seconds(60));
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  Fd listener_, filler_;
  Endpoint endpoint_;
  JobSecret secret_ = JobSecret::random();
  std::optional<Monitor> monitor_;
};

//! The CPU time of this process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

//! What arrives first: a heartbeat, or the end of the connection (0).
char first_byte(const Fd& connection) {
  char sign = 0;
  return readable(connection.get()) && recv(connection.get(), &sign, 1, 0) == 1 ? sign : '\0';
}

TEST_F(CommMonitor, ReportsNeighborThatNeverAnswers) {
  stop_answering();
  publish_endpoint();
  start_monitor(std::chrono::milliseconds(1500));
  EXPECT_THAT(
      cause(),
      StartsWith("rank 1 sent no heartbeat for 1.50 s (cannot be reached by rank 0 at 127.0.0.1 port " +
                 std::to_string(endpoint_.port)));
}

TEST_F(CommMonitor, RetriesUntilNeighborAnswers) {
  stop_answering();
  publish_endpoint();
  start_monitor(seconds(60));
  EXPECT_EQ(cause(seconds(3)), "none");  // several retries long
  EXPECT_TRUE(accept_one());             // accepts the filler: now there is room
  Fd connection = accept_one();
  ASSERT_TRUE(connection);
  ASSERT_EQ(send(connection.get(), ".", 1, MSG_NOSIGNAL), 1);
  connection.reset();
  EXPECT_THAT(cause(), HasSubstr("ended without leaving the world"));
}

TEST_F(CommMonitor, DetectsClosedListenerImmediately) {
  listener_.reset();
  publish_endpoint();
  start_monitor(seconds(60));
  EXPECT_THAT(cause(), AllOf(StartsWith("rank 1 cannot be reached by rank 0"), HasSubstr("refused")));
}

// A rank may leave before this one has connected to it.
TEST_F(CommMonitor, ClosedListenerOfRankThatLeftIsNoFailure) {
  listener_.reset();
  publish_endpoint();
  store_->set(left_key("penstock/0/0/", Rank(1)), "1");
  start_monitor(seconds(60));
  EXPECT_EQ(cause(seconds(3)), "none");
}

TEST_F(CommMonitor, ConnectionThatRankClosedAfterItLeftIsNoFailure) {
  start_monitor(seconds(60));
  Fd neighbor = connect_and_send(greeting(secret_));
  EXPECT_EQ(first_byte(neighbor), '.');
  store_->set(left_key("penstock/0/0/", Rank(1)), "1");
  neighbor.reset();
  EXPECT_EQ(cause(seconds(3)), "none");
}

TEST_F(CommMonitor, ReturnsFirstFailureThatWasPublished) {
  start_monitor(seconds(60));
  EXPECT_EQ(monitor_->publish({Rank(1), "was killed"}).cause, "was killed");
  const Failure first = monitor_->publish({Rank(2), "came later"});
  EXPECT_EQ(first.rank, Rank(1));
  EXPECT_EQ(first.cause, "was killed");
}

// Rank 1 left early; rank 2 reported that and left, too.
TEST(CommDepartedRank, IsTheOneThatWasReportedFirst) {
  WorldGeneration generation(Rank(0), seconds(60));
  generation.departed = [] { return std::vector<Rank>{Rank(2), Rank(1)}; };
  generation.publish = [](const Failure&) { return Failure::of_departure(Rank(1), Rank(2), "all_reduce"); };
  generation.report_departed({1, 2}, "all_reduce");
  ASSERT_TRUE(generation.failure.failed());
  EXPECT_EQ(generation.failure.failure()->rank, Rank(1));
}

TEST_F(CommMonitor, IsNotBlockedByPartialGreeting) {
  start_monitor(seconds(60));
  const Fd foreign = connect_and_send("pen");
  EXPECT_EQ(first_byte(foreign), '\0');  // disconnected
  monitor_->publish({Rank(1), "was killed"});
  EXPECT_EQ(cause(), "rank 1 was killed");
}

TEST_F(CommMonitor, HearsNeighborAmongManyForeignConnections) {
  start_monitor(seconds(60));
  std::vector<Fd> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(connect_and_send("penstock monitor"));
  EXPECT_EQ(first_byte(connect_and_send(greeting(secret_))), '.');  // not one second per connection
}

TEST_F(CommMonitor, AuthenticatesNeighborBySecret) {
  start_monitor(seconds(60));
  EXPECT_EQ(first_byte(connect_and_send(greeting(JobSecret::random()))), '\0');
  EXPECT_EQ(first_byte(connect_and_send(greeting(JobSecret()))), '\0');
  EXPECT_EQ(first_byte(connect_and_send(greeting(secret_))), '.');
}

// A connection left in the listen queue would keep the thread busy.
TEST_F(CommMonitor, RejectsForeignConnectionsAfterNeighborConnected) {
  start_monitor(seconds(60));
  const Fd neighbor = connect_and_send(greeting(secret_));
  EXPECT_EQ(first_byte(neighbor), '.');
  EXPECT_EQ(first_byte(connect_and_send("GET / HTTP/1.1\r\n")), '\0');
  EXPECT_EQ(first_byte(connect_and_send("")), '\0');
  EXPECT_EQ(first_byte(connect_and_send(greeting(secret_))), '\0');  // the neighbor is already connected
  EXPECT_EQ(first_byte(neighbor), '.');
}

// A monitor that polls in a loop would use all of a core.
TEST_F(CommMonitor, SilentForeignConnectionCostsLittleCpuTime) {
  start_monitor(seconds(60));
  Fd neighbor;
  for (const bool connected : {false, true}) {
    SCOPED_TRACE(connected);
    if (connected) {
      neighbor = connect_and_send(greeting(secret_));
      EXPECT_EQ(first_byte(neighbor), '.');
    }
    const Fd silent = connect_and_send("");
    ASSERT_TRUE(silent);
    const double before = cpu_seconds();
    EXPECT_EQ(cause(seconds(1)), "none");  // waits for a second
    EXPECT_LT(cpu_seconds() - before, 0.5);
  }
}

}  // namespace
}  // namespace penstock::comm
