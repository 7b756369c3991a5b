// Mutations of valid safetensors files: any bytes give an error of the family, or tensors that lie inside the
// file.
#include "checkpoint/safetensors/header.h"
#include "support/program.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace penstock::checkpoint {
namespace {

using test::slurp;

struct Outcomes {
  int read = 0, refused = 0;
};

//! Parses bytes like the reader, without a file, and checks the guarantees for every entry.
void parse(const std::string& bytes, Outcomes& outcomes) {
  try {
    const std::span prefix(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                           std::min<std::size_t>(bytes.size(), 8));
    const std::uint64_t length = safetensors_header_length(prefix, bytes.size(), "fuzz");
    const std::uint64_t data = bytes.size() - 8 - length;
    const SafetensorsHeader header =
        parse_safetensors_header(std::string_view(bytes).substr(8, length), data, "fuzz");
    std::uint64_t next = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      ASSERT_EQ(entry.begin, next);
      ASSERT_EQ(checked_nbytes(entry.shape, entry.dtype), entry.nbytes());
      next = entry.end;
    }
    ASSERT_EQ(next, data);
    ++outcomes.read;
  } catch (const ParseError&) {
    ++outcomes.refused;
  }
}

class CheckpointSafetensorsFuzz : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* rounds = std::getenv("PENSTOCK_FUZZ_ROUNDS")) rounds_ = 100 * std::atoi(rounds);
    std::printf("seed %u, %d rounds\n", seed_, rounds_);
    for (const char* name : {"all_dtypes", "shapes", "none"}) {
      files_.push_back(
          slurp(std::string(PENSTOCK_SOURCE_DIR "/tests/checkpoint/files/") + name + ".safetensors"));
    }
  }

  //! A few random edits, mostly in the header and mostly with characters that have a meaning there.
  std::string mutated(std::mt19937& random) {
    static const std::string tokens[] = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "\"",
                                         "0",
                                         "-1",
                                         "1e9",
                                         "18446744073709551615",
                                         "null",
                                         "true",
                                         "\\u0000",
                                         "\"shape\"",
                                         "\"data_offsets\"",
                                         "\"F64\"",
                                         "\xff",
                                         "__metadata__",
                                         "9223372036854775807",
                                         " ",
                                         "\\"};
    std::string bytes = files_[random() % files_.size()];
    const std::size_t edits = 1 + random() % 4;
    for (std::size_t i = 0; i < edits && !bytes.empty(); ++i) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 7) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 1:
          bytes.insert(at, tokens[random() % std::size(tokens)]);
          break;
        case 2:
          bytes.replace(at, 1 + random() % 3, tokens[random() % std::size(tokens)]);
          break;
        case 3:
          bytes.erase(at, 1 + random() % 20);
          break;
        case 4:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 60));
          break;
        case 5:
          if (bytes.size() > at) bytes[at] = static_cast<char>('0' + random() % 10);
          break;
        case 6:
          bytes.resize(random() % (bytes.size() + 1));
          break;
      }
    }
    // Half of the mutants get a correct length field, so that the text after it is parsed.
    if (bytes.size() >= 8 && random() % 2 == 0) {
      const std::size_t brace = bytes.rfind('}');
      const std::uint64_t length =
          brace == std::string::npos || brace < 8 ? bytes.size() - 8 : (brace - 8) / 8 * 8 + 8;
      std::memcpy(bytes.data(), &length, 8);
    }
    return bytes;
  }

  std::vector<std::string> files_;
  unsigned seed_ = 20261116;
  int rounds_ = 40000;
};

TEST_F(CheckpointSafetensorsFuzz, MutationsAreRejectedOrConsistent) {
  std::mt19937 random(seed_);
  Outcomes outcomes;
  for (int i = 0; i < rounds_; ++i) {
    parse(mutated(random), outcomes);
    if (HasFatalFailure()) FAIL() << "round " << i;
  }
  std::printf("%d read, %d refused\n", outcomes.read, outcomes.refused);
  EXPECT_GT(outcomes.read, 0);
  EXPECT_GT(outcomes.refused, rounds_ / 2);
}

TEST_F(CheckpointSafetensorsFuzz, RejectsEveryPrefix) {
  Outcomes outcomes;
  for (const std::string& file : files_) {
    for (std::size_t size = 0; size < file.size(); ++size) parse(file.substr(0, size), outcomes);
  }
  EXPECT_EQ(outcomes.read, 0);
}

}  // namespace
}  // namespace penstock::checkpoint
