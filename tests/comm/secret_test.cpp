// The secret of a job, the store that it protects, and the sockets of a store client.
#include "comm/failure/sockets.h"
#include "comm/rendezvous/job_secret.h"
#include "comm/rendezvous/store_client.h"
#include "support/error_message.h"
#include "support/program.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <set>

namespace penstock::comm {
namespace {

using testing::HasSubstr;

TEST(CommJobSecret, IsRandomAndRoundTripsThroughText) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(JobSecret::random().text());
  EXPECT_EQ(seen.size(), 100U);
  const JobSecret secret = JobSecret::random();
  EXPECT_EQ(secret.text().size(), 32U);
  EXPECT_EQ(JobSecret::parse(secret.text()).sign("x"), secret.sign("x"));
  EXPECT_NE(secret.sign("y"), secret.sign("x"));
  EXPECT_NE(JobSecret::random().sign("x"), secret.sign("x"));
  for (const char* const wrong :
       {"", "0123", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdef0"})
    EXPECT_ERROR(JobSecret::parse(wrong), UsageError, "must be 32 lowercase hexadecimal digits");
}

// RFC 2104 with the inner digest in hexadecimal; the expected value was computed with Python's hashlib.
TEST(CommJobSecret, SignsWithKeyedHash) {
  EXPECT_EQ(JobSecret::parse("000102030405060708090a0b0c0d0e0f").sign("a message"),
            "e36a7d923d844d3b9e2f973cae1638d743a9c24a");
}

TEST(CommJobSecret, CanBeReadFromFile) {
  const test::TempDir dir;
  std::ofstream(dir / "a") << "0123456789abcdef";
  std::ofstream(dir / "b") << "0123456789abcdef\n";
  std::ofstream(dir / "c") << "0123456789abcdeg";
  EXPECT_EQ(JobSecret::from_file(dir / "a").text(), JobSecret::from_file(dir / "b").text());
  EXPECT_NE(JobSecret::from_file(dir / "a").text(), JobSecret::from_file(dir / "c").text());
  EXPECT_EQ(JobSecret::from_file(dir / "a").text().size(), 32U);
  std::ofstream(dir / "short") << "0123456789\n";
  std::ofstream(dir / "long") << std::string(5000, 'x');
  const auto problem = [&](const char* name) {
    try {
      return JobSecret::from_file(dir / name).text();
    } catch (const Error& e) {
      return e.message();
    }
  };
  EXPECT_THAT(problem("short"), HasSubstr("must have 16 to 4096 bytes"));
  EXPECT_THAT(problem("long"), HasSubstr("must have 16 to 4096 bytes"));
  EXPECT_THAT(problem("absent"), HasSubstr("cannot be read"));
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(problem("fifo"), HasSubstr("cannot be read: it is a FIFO, not a regular file"));
  EXPECT_THAT(problem("."), HasSubstr("cannot be read: it is a directory, not a regular file"));
  EXPECT_ERROR(JobSecret::from_file(dir / "absent"), StorageError, "cannot be read");
  EXPECT_ERROR(JobSecret::from_file(dir / "short"), UsageError, "must have 16 to 4096 bytes");
}

TEST(CommJobSecret, HidesStoreKeyNames) {
  const c10::intrusive_ptr<c10d::Store> plain = c10::make_intrusive<c10d::HashStore>();
  const JobSecret secret = JobSecret::random();
  const auto mine = secret.protect(plain), alike = secret.protect(plain),
             other = JobSecret::random().protect(plain);
  mine->set("died", std::string("1"));
  EXPECT_EQ(mine->get_to_str("died"), "1");
  EXPECT_EQ(alike->get_to_str("died"), "1");
  EXPECT_TRUE(mine->clone()->check({"died"}));
  EXPECT_FALSE(other->check({"died"}));
  EXPECT_FALSE(plain->check({"died"}));
  plain->set("failed", std::string("1"));
  EXPECT_FALSE(mine->check({"failed"}));
  EXPECT_EQ(mine->compareSet("failed", std::string(), std::string("2")), "2");
  EXPECT_EQ(mine->add("count", 2) + mine->add("count", 3), 7);
  mine->multiSet({"x", "y"}, {{1}, {2}});
  EXPECT_EQ(alike->multiGet({"y", "x"}), (std::vector<std::vector<std::uint8_t>>{{2}, {1}}));
  EXPECT_TRUE(mine->deleteKey("died"));
  EXPECT_FALSE(alike->check({"died"}));
  EXPECT_EQ(JobSecret().protect(plain), plain);
}

int user_timeout(const Fd& socket) {
  int value = -1;
  socklen_t length = sizeof value;
  getsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &length);
  return value;
}

TEST(CommStoreClient, AffectsOnlyItsOwnSockets) {
  StoreOptions options{
      .host = "127.0.0.1", .hosts = true, .only_here = true, .timeout = std::chrono::seconds(10)};
  const auto host = open_store(options);
  const std::uint16_t port = host->getPort();
  // Connections of the user: to the same port of another address, and to the store itself.
  const auto [listener, endpoint] =
      listen_on("127.0.0.2", port);  // free, because the store listens only on its own address
  const Fd elsewhere = connect_to(endpoint, std::chrono::seconds(5)).connection;
  const Fd here = connect_to({"127.0.0.1", port}, std::chrono::seconds(5)).connection;
  ASSERT_TRUE(elsewhere && here);
  const auto client = open_store({.host = "127.0.0.1", .port = port, .timeout = std::chrono::seconds(10)});
  EXPECT_EQ(user_timeout(elsewhere), 0);
  EXPECT_EQ(user_timeout(here), 0);
  int watched = 0;
  for (const int fd : connections_to({"127.0.0.1", port})) {
    Fd socket(fd);
    watched += user_timeout(socket) == kAckTimeout.count() ? 1 : 0;
    socket.release();
  }
  EXPECT_EQ(watched, 2);  // the client of the host, and this one
}

}  // namespace
}  // namespace penstock::comm
