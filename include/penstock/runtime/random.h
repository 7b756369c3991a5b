// Random numbers that depend on what is computed, not on which rank computes it or when. While a RandomScope
// lives, every random operation of its thread draws from a separate generator that is seeded with the scope's
// key. The default generator, which all threads share, is neither read nor changed.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <memory>

namespace penstock::runtime {

//! The key from which a generator is seeded. It contains the stage instead of the rank; `replica` is the
//! data-parallel rank.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  StageId stage;
  MicrobatchId microbatch;
  std::uint32_t replica = 0;

  //! Hashes all fields into one seed.
  std::uint64_t mixed() const;
};

//! Two scopes with the same key produce the same numbers. Scopes nest. An operation that is called with an
//! explicit generator uses that generator.
class RandomScope {
 public:
  explicit RandomScope(const RandomKey& key);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::runtime
