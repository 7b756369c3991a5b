// Random numbers that depend on what is computed and not on where or when: while a RandomScope lives, every
// random operation of its thread draws from a generator of its own, seeded by the scope's key. The default
// generator, which all threads share, is neither read nor changed.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <memory>

namespace penstock {

//! What a draw depends on. Stages count, not ranks; `replica` is the data-parallel rank.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  StageId stage;
  MicrobatchId microbatch;
  std::uint32_t replica = 0;

  //! All of them mixed into one seed.
  std::uint64_t mixed() const;
};

//! Two scopes of one key give the same numbers. Scopes nest; an operation that is given a generator keeps it.
class RandomScope {
 public:
  explicit RandomScope(const RandomKey& key);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  struct Content;

 private:
  std::unique_ptr<Content> content_;
};

}  // namespace penstock
