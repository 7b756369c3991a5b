// Job secrets: generation, keyed hash, and a store with hashed keys.
#include "comm/rendezvous/job_secret.h"

#include "base/io/regular_file.h"
#include "base/text.h"
#include "comm/failure/sockets.h"

#include <penstock/base/error.h>

#include <c10/util/hash.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock::comm {
namespace {

constexpr std::size_t kDigits = 32;
constexpr std::size_t kMinBytes = 16;  // in a token file
constexpr std::size_t kMaxBytes = 4096;

// HMAC (RFC 2104) with SHA-1, with the inner digest in hexadecimal. HMAC does not depend on collision
// resistance, which SHA-1 lacks.
std::string keyed_hash(const std::string& key, std::string_view message) {
  constexpr std::size_t block = 64;
  const std::string short_key = key.size() > block ? c10::sha1(key).str() : key;
  std::string inner(block, '\x36'), outer(block, '\x5c');
  for (std::size_t i = 0; i < short_key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ short_key[i]);
    outer[i] = static_cast<char>(outer[i] ^ short_key[i]);
  }
  inner += message;
  return c10::sha1(outer + c10::sha1(inner).str()).str();
}

std::string hexadecimal(const std::array<unsigned char, kDigits / 2>& bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text;
}

class KeyedStore : public c10d::Store {
 public:
  KeyedStore(JobSecret secret, c10::intrusive_ptr<c10d::Store> store)
      : Store(store->getTimeout()), secret_(std::move(secret)), store_(std::move(store)) {}

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<KeyedStore>(secret_, store_->clone());
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(hashed(key), value);
  }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return store_->compareSet(hashed(key), expected, desired);
  }
  std::vector<std::uint8_t> get(const std::string& key) override { return store_->get(hashed(key)); }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(hashed(key), value);
  }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(hashed(key)); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(hashed(keys)); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(hashed(keys)); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(hashed(keys), timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->append(hashed(key), value);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return store_->multiGet(hashed(keys));
  }
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override {
    store_->multiSet(hashed(keys), values);
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  std::string hashed(const std::string& key) const { return secret_.sign("store/" + key); }
  std::vector<std::string> hashed(const std::vector<std::string>& keys) const {
    std::vector<std::string> all;
    for (const std::string& key : keys) all.push_back(hashed(key));
    return all;
  }

  JobSecret secret_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

JobSecret JobSecret::random() {
  std::array<unsigned char, kDigits / 2> bytes{};
  ssize_t got = 0;
  do {
    got = getrandom(bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(bytes.size()))
    throw CommError(std::string("cannot generate the random job secret: ") + std::strerror(errno));
  return JobSecret(hexadecimal(bytes));
}

JobSecret JobSecret::parse(std::string_view text) {
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    throw UsageError(str_cat(kSecretVariable, " must be ", kDigits, " lowercase hexadecimal digits"), {},
                     "set it to the same value on every rank, or on none");
  }
  return JobSecret(std::string(text));
}

JobSecret JobSecret::from_file(const std::filesystem::path& path) {
  constexpr const char* hint = "create one with `head -c 32 /dev/urandom | base64` and copy it to every node";
  const auto fail = [&](const std::string& problem, int code) {
    throw StorageError("the token file " + quote(path.string(), 200) + " cannot be read: " + problem, code,
                       hint);
  };
  const RegularFile opened = open_regular_file(path.string());
  if (opened.error != 0) fail(opened.problem, opened.error);
  const Fd file(opened.descriptor);
  std::string content(kMaxBytes + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno), errno);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  while (!content.empty() && (content.back() == '\n' || content.back() == '\r')) content.pop_back();
  if (content.size() < kMinBytes || content.size() > kMaxBytes) {
    throw UsageError(str_cat("the token file ", quote(path.string(), 200), " must have ", kMinBytes, " to ",
                             kMaxBytes, " bytes"),
                     {}, hint);
  }
  return JobSecret(keyed_hash(content, "penstock job").substr(0, kDigits));
}

JobSecret JobSecret::from_identity(std::string_view identity) {
  return JobSecret(keyed_hash("penstock job identity", identity).substr(0, kDigits));
}

JobSecret read_job_secret(const EnvironmentLookup& lookup, const LaunchedRank& rank) {
  if (const char* const secret = lookup(kSecretVariable)) return JobSecret::parse(secret);
  if (const char* const file = lookup(kTokenFileVariable)) return JobSecret::from_file(file);
  return rank.job_identity.empty() ? JobSecret() : JobSecret::from_identity(rank.job_identity);
}

std::string JobSecret::sign(std::string_view message) const {
  return text_.empty() ? std::string() : keyed_hash(text_, message);
}

c10::intrusive_ptr<c10d::Store> JobSecret::protect(c10::intrusive_ptr<c10d::Store> store) const {
  if (text_.empty()) return store;
  return c10::make_intrusive<KeyedStore>(*this, std::move(store));
}

}  // namespace penstock::comm
