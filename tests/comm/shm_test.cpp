// Shared memory: segments, rings, and messages and collectives between ranks that are threads of this
// process, compared with a model of message passing. The contract suite runs over it in contract_test.cpp.
#include "comm/shm/collectives.h"
#include "comm/shm/ring.h"
#include "comm/shm/segment.h"
#include "support/error_message.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <thread>

namespace penstock::comm::shm {
namespace {

using std::chrono::seconds;

constexpr std::size_t kSmallRing = 16U << 10U;
const std::atomic<bool> kNever{false};

Link::Clock::time_point soon() {
  return Link::Clock::now() + seconds(60);
}

TEST(CommShmSegment, SerializesItsName) {
  const SegmentName name{.pid = 12, .descriptor = 7, .nonce = 0xffffffffffffffff, .bytes = 4096};
  const SegmentName parsed = SegmentName::parse(name.serialize());
  EXPECT_EQ(parsed.pid, 12);
  EXPECT_EQ(parsed.descriptor, 7);
  EXPECT_EQ(parsed.nonce, 0xffffffffffffffff);
  EXPECT_EQ(parsed.bytes, 4096U);
  for (const char* const bad :
       {"", "1", "1,2", "1,2,3", "1,2,3,4,5", "1,2,3,x", "a,2,3,4", "1,2,3,4 ", "1;2,3,4"})
    EXPECT_ERROR(SegmentName::parse(bad), CommError, "not the name of a shared segment");
}

//! Attaches in a child process and returns its exit code.
template <class Check>
int in_child(const Check& check) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 100;
    try {
      code = check();
    } catch (const CommError&) {
      code = 101;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CommShmSegment, IsSharedWithOtherProcessesUntilItIsSealed) {
  const auto segment = Segment::create(100);
  segment->data()[5] = std::byte{42};
  EXPECT_EQ(in_child([&] {
              const auto attached = Segment::attach(segment->name());
              attached->data()[6] = std::byte{43};
              return static_cast<int>(attached->data()[5]);
            }),
            42);
  EXPECT_EQ(segment->data()[6], std::byte{43});
  SegmentName other = segment->name();
  ++other.nonce;
  EXPECT_EQ(in_child([&] { return Segment::attach(other) ? 0 : 1; }), 101);
  segment->seal();
  EXPECT_EQ(in_child([&] { return Segment::attach(segment->name()) ? 0 : 1; }), 101);
}

TEST(CommShmSegment, IsPrivateToItsUserAndHasNoName) {
  const auto segment = Segment::create(100);
  struct stat found {};
  ASSERT_EQ(fstat(segment->name().descriptor, &found), 0);
  EXPECT_EQ(found.st_nlink, 0U);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  if (geteuid() != 0) return;
  // Another user cannot open it, even with the name.
  EXPECT_EQ(in_child([&] { return setuid(65534) == 0 && Segment::attach(segment->name()) ? 0 : 1; }), 101);
}

TEST(CommShmSegment, SaysThatMemoryIsShort) {
  EXPECT_ERROR(Segment::create(std::size_t{1} << 50U), CommError, "/dev/shm is too small: this rank needs");
}

// One thread writes records of random sizes, the other compares them with the same random numbers.
TEST(CommShmRing, TransfersRecordsInOrder) {
  constexpr std::size_t capacity = 4096;
  alignas(64) static std::array<std::byte, ring_bytes(capacity)> memory{};
  RingWriter writer(memory.data(), capacity);
  RingReader reader(memory.data(), capacity);
  constexpr int records = 20000;
  const auto payload_of = [](std::mt19937& random) { return random() % (capacity / 4); };
  std::thread sender([&] {
    std::mt19937 random(7);
    for (int i = 0; i < records; ++i) {
      const std::size_t payload = payload_of(random);
      Record* record = nullptr;
      while ((record = writer.reserve(payload)) == nullptr) std::this_thread::yield();
      record->tag = i;
      std::memset(static_cast<void*>(record + 1), i % 251, payload);
      writer.publish(*record);
    }
  });
  std::mt19937 random(7);
  for (int i = 0; i < records; ++i) {
    const Record* record = nullptr;
    while ((record = reader.front()) == nullptr) std::this_thread::yield();
    const std::size_t payload = payload_of(random);
    ASSERT_EQ(record->tag, i);
    ASSERT_EQ(record->payload, payload);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(record + 1);
    ASSERT_TRUE(std::all_of(bytes, bytes + payload, [&](unsigned char byte) { return byte == i % 251; }));
    reader.pop();
  }
  sender.join();
  EXPECT_TRUE(reader.empty());
}

TEST(CommShmRing, SaysWhenWriterWaitsForSpace) {
  constexpr std::size_t capacity = 1024;
  alignas(64) static std::array<std::byte, ring_bytes(capacity)> memory{};
  RingWriter writer(memory.data(), capacity);
  RingReader reader(memory.data(), capacity);
  while (Record* const record = writer.reserve(64)) writer.publish(*record);
  EXPECT_TRUE(writer.await_room(64));
  ASSERT_NE(reader.front(), nullptr);
  EXPECT_TRUE(reader.pop());
  ASSERT_NE(reader.front(), nullptr);
  EXPECT_FALSE(reader.pop());
  EXPECT_FALSE(writer.await_room(64));
  EXPECT_TRUE(writer.await_room(200));
}

//! Links of `ranks` ranks in this process.
std::vector<std::shared_ptr<Link>> connect(int ranks, bool direct,
                                           Link::Progress progress = Link::Progress::InWaits) {
  std::vector<std::shared_ptr<Segment>> segments;
  for (int rank = 0; rank < ranks; ++rank)
    segments.push_back(Segment::create(Engine::segment_bytes(static_cast<std::size_t>(ranks), kSmallRing)));
  std::vector<std::shared_ptr<Link>> links;
  for (int rank = 0; rank < ranks; ++rank) {
    const Engine::Setup setup{
        .rank = rank, .segments = segments, .ring_capacity = kSmallRing, .direct = direct};
    links.push_back(std::make_shared<Link>(setup, progress));
  }
  return links;
}

Sink into(std::vector<std::byte>& buffer) {
  return {.memory = buffer.data(), .bytes = buffer.size(), .reduce = {}};
}

class CommShmLink : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Transfers, CommShmLink, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Direct" : "Copied"; });

TEST_P(CommShmLink, RejectsMessageOfAnotherSize) {
  const auto links = connect(2, GetParam());
  for (const std::size_t bytes : {100U, 100'000U}) {
    std::vector<std::byte> sent(bytes), got(bytes - 1), next(3);
    const RequestPtr receive = links[1]->receive({0, 5, 1}, into(got));
    const RequestPtr following = links[1]->receive({0, 5, 2}, into(next));
    const RequestPtr send = links[0]->send({1, 5, 1}, sent.data(), sent.size());
    const RequestPtr small = links[0]->send({1, 5, 2}, sent.data(), 3);
    while (!links[1]->poll(*following)) links[0]->poll(*small);
    EXPECT_EQ(receive->status, Request::Status::WrongSize);
    EXPECT_THAT(receive->error, testing::HasSubstr("expected"));
    EXPECT_EQ(following->status, Request::Status::Done);
    while (!links[0]->poll(*send)) links[1]->poll(*following);
  }
}

TEST_P(CommShmLink, EndsWhatWaitsForRankThatLeft) {
  auto links = connect(2, GetParam());
  std::vector<std::byte> first(10), second(10);
  const std::vector<std::byte> sent(10, std::byte{1});
  const RequestPtr arrives = links[1]->receive({0, 5, 1}, into(first));
  const RequestPtr never = links[1]->receive({0, 5, 2}, into(second));
  links[0]->send({1, 5, 1}, sent.data(), sent.size());
  links[0].reset();
  EXPECT_TRUE(links[1]->wait(*arrives, soon(), kNever));
  EXPECT_EQ(arrives->status, Request::Status::Done);
  EXPECT_TRUE(links[1]->wait(*never, soon(), kNever));
  EXPECT_EQ(never->status, Request::Status::Failed);
  EXPECT_EQ(links[1]->send({0, 5, 1}, sent.data(), sent.size())->status, Request::Status::Failed);
  EXPECT_EQ(links[1]->receive({0, 5, 1}, into(first))->status, Request::Status::Failed);
}

TEST_P(CommShmLink, WaitEndsByDeadlineAndByStop) {
  const auto links = connect(2, GetParam());
  std::vector<std::byte> buffer(10);
  const RequestPtr never = links[1]->receive({0, 5, 1}, into(buffer));
  EXPECT_FALSE(links[1]->wait(*never, Link::Clock::now() + std::chrono::milliseconds(5), kNever));
  std::atomic<bool> stop{false};
  std::thread waiting([&] { EXPECT_FALSE(links[1]->wait(*never, soon(), stop)); });
  stop = true;
  links[1]->wake();
  waiting.join();
}

TEST_P(CommShmLink, FlushWaitsForReceiver) {
  const auto links = connect(2, GetParam());
  const std::vector<std::byte> sent(1'000'000, std::byte{3});
  links[0]->send({1, 5, 1}, sent.data(), sent.size());
  EXPECT_FALSE(links[0]->flush(Link::Clock::now() + std::chrono::milliseconds(5), [] { return false; }));
  EXPECT_FALSE(links[0]->flush(soon(), [] { return true; }));
  std::thread flushing([&] { EXPECT_TRUE(links[0]->flush(soon(), [] { return false; })); });
  std::vector<std::byte> got(sent.size());
  const RequestPtr receive = links[1]->receive({0, 5, 1}, into(got));
  EXPECT_TRUE(links[1]->wait(*receive, soon(), kNever));
  flushing.join();
  EXPECT_EQ(got, sent);
}

// Every rank runs a random list of sends and receives on two threads. In the model, message n of a key is
// what receive n of that key gets.
TEST_P(CommShmLink, RandomMessagesMatchModel) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::cout << "seed " << seed << std::endl;
  constexpr int ranks = 3, messages = 300;
  struct Message {
    int from, to;
    std::int64_t tag;
    std::size_t bytes;
    unsigned content;
  };
  std::mt19937 random(seed);
  std::vector<Message> plan;
  for (int i = 0; i < messages; ++i) {
    const std::size_t scale = std::array<std::size_t, 4>{1, 200, 20'000, 300'000}[random() % 4];
    plan.push_back({static_cast<int>(random() % ranks), static_cast<int>(random() % ranks),
                    static_cast<std::int64_t>(random() % 3), random() % scale,
                    static_cast<unsigned>(random())});
  }
  const auto content = [](const Message& message) {
    std::vector<std::byte> bytes(message.bytes);
    std::mt19937 values(message.content);
    for (auto& byte : bytes) byte = static_cast<std::byte>(values());
    return bytes;
  };
  const auto links = connect(ranks, GetParam());
  const auto run = [&](int rank, bool sends) {
    Link& link = *links[static_cast<std::size_t>(rank)];
    std::mt19937 choices(seed + static_cast<unsigned>(rank) * 2 + (sends ? 1 : 0));
    std::deque<std::pair<std::vector<std::byte>, RequestPtr>> pending;
    std::deque<const Message*> expected;
    const auto finish_one = [&] {
      ASSERT_TRUE(link.wait(*pending.front().second, soon(), kNever));
      ASSERT_EQ(pending.front().second->status, Request::Status::Done) << pending.front().second->error;
      if (!sends) {
        ASSERT_EQ(pending.front().first, content(*expected.front()));
        expected.pop_front();
      }
      pending.pop_front();
    };
    for (const Message& message : plan) {
      if ((sends ? message.from : message.to) != rank) continue;
      if (sends) {
        auto& [bytes, request] = pending.emplace_back(content(message), nullptr);
        request = link.send({message.to, 9, message.tag}, bytes.data(), bytes.size());
      } else {
        auto& [bytes, request] = pending.emplace_back(std::vector<std::byte>(message.bytes), nullptr);
        request = link.receive({message.from, 9, message.tag}, into(bytes));
        expected.push_back(&message);
      }
      while (!sends && pending.size() > choices() % 40) finish_one();
    }
    while (!pending.empty()) finish_one();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(run, rank, true);
    threads.emplace_back(run, rank, false);
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 starts a collective and then does not wait for it.
TEST_P(CommShmLink, MovesMessagesOnThreadOfWorldThatSpansHosts) {
  const auto links = connect(2, GetParam(), Link::Progress::OnThread);
  std::array<at::Tensor, 2> tensors{at::full({50'000}, 1), at::full({50'000}, 2)};
  Channel first(links[0], 7, {0, 1}, 0), second(links[1], 7, {0, 1}, 1);
  const RequestPtr waited = first.all_reduce(tensors[0], c10d::ReduceOp::SUM);
  const RequestPtr other = second.all_reduce(tensors[1], c10d::ReduceOp::SUM);
  EXPECT_TRUE(links[0]->wait(*waited, soon(), kNever));
  EXPECT_TRUE(at::equal(tensors[0], at::full({50'000}, 3)));
  while (!other->ended()) std::this_thread::yield();
  EXPECT_TRUE(at::equal(tensors[1], at::full({50'000}, 3)));
}

class CommShmCollectives : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  //! Runs `body` on a thread per rank.
  void run(const std::function<void(Channel&, int)>& body) const {
    const auto [ranks, direct] = GetParam();
    const auto links = connect(ranks, direct);
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Channel channel(links[static_cast<std::size_t>(rank)], 77, members, rank);
        body(channel, rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  static void finish(Channel& channel, const RequestPtr& request) {
    ASSERT_TRUE(channel.link().wait(*request, soon(), kNever));
    ASSERT_EQ(request->status, Request::Status::Done) << request->error;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CommShmCollectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::Bool()),
                         [](const auto& test) {
                           return (std::get<1>(test.param) ? "Direct" : "Copied") +
                                  std::to_string(std::get<0>(test.param));
                         });

//! Values whose sum depends on the order of the additions.
at::Tensor uneven(int rank, std::int64_t elements, at::ScalarType type) {
  at::Tensor values = at::arange(elements, at::kDouble).add_(1).mul_(0.37 * (rank + 1)).sin_();
  if (rank % 2 == 1) values.mul_(1e4);
  return c10::isFloatingType(type) ? values.to(type) : values.mul_(50).to(type);
}

TEST_P(CommShmCollectives, AllReduceSumsInRankOrder) {
  const int ranks = std::get<0>(GetParam());
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
    for (const std::int64_t elements : {0, 1, 3, 1000, 100'003}) {
      at::Tensor expected = uneven(0, elements, type);
      for (int rank = 1; rank < ranks; ++rank) expected.add_(uneven(rank, elements, type));
      run([&](Channel& channel, int rank) {
        const at::Tensor tensor = uneven(rank, elements, type);
        finish(channel, channel.all_reduce(tensor, c10d::ReduceOp::SUM));
        EXPECT_TRUE(at::equal(tensor, expected))
            << c10::toString(type) << " " << elements << " rank " << rank;
      });
    }
  }
}

TEST_P(CommShmCollectives, SupportsEveryReduction) {
  const int ranks = std::get<0>(GetParam());
  const auto value = [](int rank) { return at::tensor({rank + 1, 7 - rank, 3 * rank + 2}, at::kInt); };
  using Combine = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
  const std::vector<std::pair<c10d::ReduceOp, Combine>> cases{
      {c10d::ReduceOp::PRODUCT, [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); }},
      {c10d::ReduceOp::MIN, [](const at::Tensor& a, const at::Tensor& b) { return at::minimum(a, b); }},
      {c10d::ReduceOp::MAX, [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }},
      {c10d::ReduceOp::BAND, [](const at::Tensor& a, const at::Tensor& b) { return at::bitwise_and(a, b); }},
      {c10d::ReduceOp::BOR, [](const at::Tensor& a, const at::Tensor& b) { return at::bitwise_or(a, b); }},
      {c10d::ReduceOp::BXOR, [](const at::Tensor& a, const at::Tensor& b) { return at::bitwise_xor(a, b); }}};
  for (const auto& [operation, combine] : cases) {
    at::Tensor expected = value(0);
    for (int rank = 1; rank < ranks; ++rank) expected = combine(expected, value(rank));
    run([&, op = operation](Channel& channel, int rank) {
      const at::Tensor tensor = value(rank);
      finish(channel, channel.all_reduce(tensor, op));
      EXPECT_TRUE(at::equal(tensor, expected)) << static_cast<int>(op) << " rank " << rank;
    });
  }
}

TEST_P(CommShmCollectives, ReduceScatterEqualsSumInRankOrder) {
  const int ranks = std::get<0>(GetParam());
  for (const std::int64_t elements : {1, 1000, 50'001}) {
    at::Tensor sum = uneven(0, elements * ranks, at::kFloat);
    for (int rank = 1; rank < ranks; ++rank) sum.add_(uneven(rank, elements * ranks, at::kFloat));
    run([&](Channel& channel, int rank) {
      const at::Tensor output = at::empty({elements});
      const auto inputs = uneven(rank, elements * ranks, at::kFloat).view({ranks, -1}).unbind(0);
      finish(channel, channel.reduce_scatter(output, inputs, c10d::ReduceOp::SUM));
      EXPECT_TRUE(at::equal(output, sum.view({ranks, -1})[rank])) << elements << " rank " << rank;
    });
  }
}

//! The sum of `a` and `b`, element by element and without libtorch's operators on tensors.
at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum = at::empty_like(a);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kBool, at::kHalf, at::kBFloat16, a.scalar_type(), "sum_of", [&] {
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      const scalar_t x = a.const_data_ptr<scalar_t>()[i], y = b.const_data_ptr<scalar_t>()[i];
      scalar_t& into = sum.mutable_data_ptr<scalar_t>()[i];
      if constexpr (std::is_same_v<scalar_t, bool>) {
        into = x || y;
      } else {
        into = static_cast<scalar_t>(x + y);
      }
    }
  });
  return sum;
}

TEST_P(CommShmCollectives, SumsEveryType) {
  const int ranks = std::get<0>(GetParam());
  for (const at::ScalarType type : {at::kBool, at::kChar, at::kShort, at::kByte, at::kHalf, at::kBFloat16,
                                    at::kComplexFloat, at::kComplexDouble}) {
    const auto value = [type](int rank) {
      const at::Tensor whole = at::arange(10'001, at::kLong).mul(7 * rank + 3).remainder(251).sub(120);
      if (type == at::kBool) return whole.remainder(5).eq(rank % 5);
      if (c10::isComplexType(type)) return at::complex(whole * 0.3, whole.flip(0) * 0.7).to(type);
      return c10::isFloatingType(type) ? (whole * 0.37).to(type) : whole.to(type);
    };
    at::Tensor expected = value(0);
    for (int rank = 1; rank < ranks; ++rank) expected = sum_of(expected, value(rank));
    run([&](Channel& channel, int rank) {
      const at::Tensor tensor = value(rank);
      finish(channel, channel.all_reduce(tensor, c10d::ReduceOp::SUM));
      EXPECT_TRUE(at::equal(tensor, expected)) << c10::toString(type) << " rank " << rank;
    });
  }
}

// A NaN of any rank is the result, as in libtorch.
TEST_P(CommShmCollectives, MinimumAndMaximumKeepNotANumber) {
  const int ranks = std::get<0>(GetParam());
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const bool least : {true, false}) {
      run([&](Channel& channel, int rank) {
        const at::Tensor tensor =
            at::tensor({rank == ranks - 1 ? nan : 1.0, rank == 0 ? nan : 2.0, 4.0 + rank, -8.0 - rank},
                       at::kDouble)
                .to(type);
        finish(channel, channel.all_reduce(tensor, least ? c10d::ReduceOp::MIN : c10d::ReduceOp::MAX));
        EXPECT_TRUE(std::isnan(tensor[0].item<double>()) && std::isnan(tensor[1].item<double>()));
        EXPECT_EQ(tensor[2].item<double>(), least ? 4 : 3 + ranks);
        EXPECT_EQ(tensor[3].item<double>(), least ? -7 - ranks : -8);
      });
    }
  }
  run([&](Channel& channel, int rank) {
    const at::Tensor all = at::tensor({1, rank == 0 ? 0 : 1}, at::kInt).to(at::kBool);
    const at::Tensor any = at::tensor({0, rank == 0 ? 1 : 0}, at::kInt).to(at::kBool);
    finish(channel, channel.all_reduce(all, c10d::ReduceOp::MIN));
    finish(channel, channel.all_reduce(any, c10d::ReduceOp::MAX));
    EXPECT_TRUE(all[0].item<bool>() && !all[1].item<bool>());
    EXPECT_TRUE(!any[0].item<bool>() && any[1].item<bool>());
  });
}

// Ranks start several collectives and wait for them in different orders.
TEST_P(CommShmCollectives, MayBeWaitedForInAnyOrder) {
  const int ranks = std::get<0>(GetParam());
  run([&](Channel& channel, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<RequestPtr> requests;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(at::full({i % 2 == 0 ? 10 : 50'000}, rank + i, at::kFloat));
      requests.push_back(channel.all_reduce(tensors.back(), c10d::ReduceOp::SUM));
    }
    requests.push_back(channel.barrier());
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::size_t> order{0, 1, 2, 3, 4, 5, 6, 7, 8};
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) finish(channel, requests[i]);
    for (int i = 0; i < 8; ++i) {
      const double expected = ranks * i + ranks * (ranks - 1) / 2;
      EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(expected).all().item<bool>())
          << i << " rank " << rank;
    }
  });
}

}  // namespace
}  // namespace penstock::comm::shm
