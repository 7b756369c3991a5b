// Counts the calls to a store; each is one message to its server.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

class CountingStore final : public c10d::Store {
 public:
  using Counter = std::shared_ptr<std::atomic<std::int64_t>>;
  using Bytes = std::vector<std::uint8_t>;
  using Keys = std::vector<std::string>;

  CountingStore(c10::intrusive_ptr<c10d::Store> store, Counter calls)
      : Store(store->getTimeout()), store_(std::move(store)), calls_(std::move(calls)) {}

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<CountingStore>(store_->clone(), calls_);
  }
  void set(const std::string& key, const Bytes& value) override { counted().set(key, value); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return counted().compareSet(key, expected, desired);
  }
  Bytes get(const std::string& key) override { return counted().get(key); }
  std::int64_t add(const std::string& key, std::int64_t value) override { return counted().add(key, value); }
  bool deleteKey(const std::string& key) override { return counted().deleteKey(key); }
  std::int64_t getNumKeys() override { return counted().getNumKeys(); }
  bool check(const Keys& keys) override { return counted().check(keys); }
  void wait(const Keys& keys) override { counted().wait(keys); }
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override {
    counted().wait(keys, timeout);
  }
  void append(const std::string& key, const Bytes& value) override { counted().append(key, value); }
  std::vector<Bytes> multiGet(const Keys& keys) override { return counted().multiGet(keys); }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    counted().multiSet(keys, values);
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  c10d::Store& counted() {
    ++*calls_;
    return *store_;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Counter calls_;
};

}  // namespace penstock::test
