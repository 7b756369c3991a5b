// The ranks of a host exchange the names of their segments through the store.
#include "comm/shm/host.h"

#include "base/text.h"
#include "comm/rendezvous/environment.h"

#include <penstock/base/error.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

namespace penstock::comm::shm {
namespace {

constexpr std::size_t kDefaultBytes = 32U << 20U;
constexpr std::size_t kMinRing = 16U << 10U;
constexpr std::size_t kMaxRing = 1U << 20U;

std::string key_of(const std::string& prefix, std::string_view what) {
  return str_cat(prefix, "shm/", what, "/", host_identity());
}

//! The entries of a key to which each rank appends `<rank>:<text>;`.
std::map<int, std::string> entries(c10d::Store& store, const std::string& key) {
  std::map<int, std::string> found;
  const std::string text = store.get_to_str(key);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t colon = text.find(':', begin), end = text.find(';', begin);
    if (colon >= end || end == std::string::npos) throw CommError("invalid entry of a host in the store");
    const std::int64_t rank =
        parse_number("the rank of a host's entry", text.substr(begin, colon - begin), 1 << 30);
    found[static_cast<int>(rank)] = text.substr(colon + 1, end - colon - 1);
    begin = end + 1;
  }
  return found;
}

void append(c10d::Store& store, const std::string& key, Rank rank, std::string text) {
  std::replace(text.begin(), text.end(), ';', ',');
  const std::string entry = str_cat(rank.value, ":", text, ";");
  store.append(key, {entry.begin(), entry.end()});
}

//! Adds the entry of this rank, waits for those of the other ranks of the host, and returns them all. The
//! last rank tells the others, so that a poll does not read all entries.
std::map<int, std::string> exchange(c10d::Store& store, WorldGeneration& generation, const std::string& key,
                                    const std::string& entry, std::size_t count,
                                    std::chrono::milliseconds limit) {
  const std::string complete = key + "/complete";
  append(store, key, generation.rank, entry);
  if (store.add(key + "/arrived", 1) == static_cast<std::int64_t>(count))
    store.set(complete, std::vector<std::uint8_t>{1});
  const auto deadline = std::chrono::steady_clock::now() + limit;
  auto pause = std::chrono::milliseconds(1);
  while (!store.check({complete})) {
    generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect"});
    if (std::chrono::steady_clock::now() > deadline)
      throw TimeoutError("some ranks of this host did not connect through shared memory",
                         {.rank = generation.rank, .op = "connect"}, "check the output of those ranks");
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  return entries(store, key);
}

constexpr std::string_view kNone = "-";  //!< precedes the reason why a rank has no segment
constexpr std::string_view kDirect = "direct";
constexpr std::string_view kCopied = "copied";

// `<name>,<address>`: the address of the nonce in the memory of the owner, to try whether it can be read.
std::string offer(const Segment& segment) {
  return str_cat(segment.name().serialize(), ",", reinterpret_cast<std::uint64_t>(&segment.name().nonce));
}

//! Maps the segments. Sets `direct` to false if the memory of a rank cannot be read.
std::vector<std::shared_ptr<Segment>> attach_all(const std::map<int, std::string>& offers, std::size_t bytes,
                                                 bool& direct) {
  std::vector<std::shared_ptr<Segment>> segments;
  for (const auto& [rank, text] : offers) {
    if (text.starts_with(kNone)) throw CommError(str_cat("rank ", rank, ": ", text.substr(kNone.size())));
    const std::size_t comma = text.rfind(',');
    const SegmentName name = SegmentName::parse(text.substr(0, comma));
    if (name.bytes != bytes)
      throw CommError(str_cat("rank ", rank, " has shared memory of another size"), {},
                      "set PENSTOCK_SHM_BYTES to the same value on all ranks");
    segments.push_back(Segment::attach(name));
    const auto address = static_cast<std::uint64_t>(std::stoull(text.substr(comma + 1)));
    std::uint64_t nonce = 0;
    if (read_memory(name.pid, address, reinterpret_cast<std::byte*>(&nonce), sizeof nonce) != 0 ||
        nonce != name.nonce)
      direct = false;
  }
  return segments;
}

}  // namespace

std::string host_identity() {
  std::string boot = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const auto space = [](const char* name) {
    struct stat found {};
    return stat(name, &found) == 0 ? static_cast<std::uint64_t>(found.st_ino) : 0;
  };
  return str_cat(boot, "/", space("/proc/self/ns/pid"), "/", space("/proc/self/ns/net"), "/", geteuid());
}

std::size_t ring_capacity(std::size_t ranks) {
  const char* const asked = look_in_process("PENSTOCK_SHM_BYTES");
  const std::size_t bytes =
      asked == nullptr
          ? kDefaultBytes
          : static_cast<std::size_t>(parse_number("PENSTOCK_SHM_BYTES", asked, std::int64_t{1} << 40));
  return std::clamp(std::bit_floor(bytes / (ranks * ranks)), kMinRing, kMaxRing);
}

bool direct_reads_allowed() {
  const char* const asked = look_in_process("PENSTOCK_SHM_DIRECT");
  return asked == nullptr || parse_number("PENSTOCK_SHM_DIRECT", asked, 1) == 1;
}

void announce_on_host(c10d::Store& store, const std::string& prefix, Rank rank) {
  append(store, key_of(prefix, "ranks"), rank, "");
}

Host connect_host(c10d::Store& store, WorldGeneration& generation, const std::string& prefix, int world_size,
                  std::chrono::milliseconds limit) {
  Host host;
  for (const auto& [rank, _] : entries(store, key_of(prefix, "ranks")))
    host.index.emplace(rank, static_cast<int>(host.index.size()));
  const std::size_t ranks = host.index.size();
  if (ranks < 2) return host;

  Engine::Setup setup{.rank = host.index.at(generation.rank.value), .ring_capacity = ring_capacity(ranks)};
  const std::size_t bytes = Engine::segment_bytes(ranks, setup.ring_capacity);
  std::shared_ptr<Segment> own;
  std::string offered;
  try {
    own = Segment::create(bytes);
    offered = offer(*own);
  } catch (const CommError& e) {
    offered = str_cat(kNone, e.message(), "; ", e.hint());
  }
  const auto offers = exchange(store, generation, key_of(prefix, "segments"), offered, ranks, limit);

  setup.direct = direct_reads_allowed();
  std::string attached;
  try {
    setup.segments = attach_all(offers, bytes + Segment::kPrefix, setup.direct);
    attached = setup.direct ? kDirect : kCopied;
  } catch (const CommError& e) {
    attached = str_cat(kNone, e.message());
  }
  const auto results = exchange(store, generation, key_of(prefix, "attached"), attached, ranks, limit);
  if (own) own->seal();
  for (const auto& [rank, result] : results) {
    if (result != kDirect) setup.direct = false;
    if (result.starts_with(kNone) && host.problem.empty()) host.problem = result.substr(kNone.size());
  }
  if (!host.problem.empty()) return host;
  host.direct = setup.direct;
  const bool spans_hosts = ranks < static_cast<std::size_t>(world_size);
  host.link = std::make_shared<Link>(std::move(setup),
                                     spans_hosts ? Link::Progress::OnThread : Link::Progress::InWaits);
  return host;
}

}  // namespace penstock::comm::shm
