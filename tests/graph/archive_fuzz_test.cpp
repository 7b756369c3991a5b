// Damaged and inconsistent archives: any bytes give an error of the family, or the same graph and weights.
#include "base/io/crc32.h"
#include "support/error_message.h"
#include "support/temp_dir.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

namespace penstock::graph {
namespace {

using test::archive;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class GraphArchiveFuzz : public testing::Test {
 protected:
  void SetUp() override {
    // The slow tier and the sanitizers use more rounds.
    if (const char* rounds = std::getenv("PENSTOCK_FUZZ_ROUNDS")) rounds_ = std::atoi(rounds);
    std::printf("seed %u, %d rounds\n", seed_, rounds_);
  }

  //! The content of an archive: its graph and its weights; empty if it is rejected.
  std::string content(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    try {
      const Pt2Archive file(path_);
      std::string text = to_string(file.graph());
      for (const at::Tensor& tensor : file.load(file.graph().slots)) {
        const at::Tensor flat = tensor.detach().contiguous();
        text.append(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
      }
      return text;
    } catch (const Error&) {
      return {};
    }
  }

  test::TempDir dir_;
  const std::string path_ = dir_ / "model.pt2";
  unsigned seed_ = 20261115;
  int rounds_ = 150;
};

TEST_F(GraphArchiveFuzz, RejectsTruncatedArchives) {
  const std::string original = read_file(archive("mlp.pt2"));
  ASSERT_FALSE(content(original).empty());
  std::mt19937 random(seed_);
  for (int i = 0; i < rounds_; ++i) EXPECT_EQ(content(original.substr(0, random() % original.size())), "");
}

TEST_F(GraphArchiveFuzz, FlippedBitsAreRejectedOrHarmless) {
  const std::string original = read_file(archive("mixed.pt2"));
  const std::string expected = content(original);
  std::mt19937 random(seed_);
  int refused = 0;
  for (int i = 0; i < rounds_; ++i) {
    std::string bytes = original;
    const std::size_t at = random() % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    const std::string got = content(bytes);
    refused += got.empty() ? 1 : 0;
    EXPECT_TRUE(got.empty() || got == expected) << "byte " << at;
  }
  EXPECT_GT(refused, rounds_ / 2);
}

//! Changes a record in place and repairs its checksum, so that the reader accepts the record.
std::string with_record(std::string bytes, const std::string& name, const std::string& content) {
  const std::string mark = "PK\x01\x02";
  for (std::size_t at = bytes.find(mark); at != std::string::npos; at = bytes.find(mark, at + 4)) {
    const auto number = [&](std::size_t offset, int size) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + at + offset, static_cast<std::size_t>(size));
      return value;
    };
    const std::string entry = bytes.substr(at + 46, number(28, 2));
    if (!entry.ends_with(name)) continue;
    const std::size_t local = number(42, 4);
    std::uint16_t name_size = 0, extra_size = 0;
    std::memcpy(&name_size, bytes.data() + local + 26, 2);
    std::memcpy(&extra_size, bytes.data() + local + 28, 2);
    const std::size_t data = local + 30 + name_size + extra_size;
    if (content.empty()) return bytes.substr(data, number(24, 4));
    bytes.replace(data, content.size(), content);
    const std::uint32_t crc = crc32({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()});
    std::memcpy(bytes.data() + at + 16, &crc, 4);
    return bytes;
  }
  throw std::runtime_error("no record " + name);
}

TEST_F(GraphArchiveFuzz, CorruptRecordsNeverReadBeyondFile) {
  for (const char* record : {"models/model.json", "weights_config.json", "constants_config.json"}) {
    const std::string original = read_file(archive("mixed.pt2"));
    const std::string json = with_record(original, record, "");
    ASSERT_EQ(content(with_record(original, record, json)), content(original));
    std::mt19937 random(seed_);
    const std::string alphabet = "0123456789\"{}[]:,-.eabntrufls_ ";
    for (int i = 0; i < rounds_; ++i) {
      std::string changed = json;
      for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
        const std::size_t at = random() % changed.size();
        if (random() % 2 == 0 && std::isdigit(static_cast<unsigned char>(changed[at])) != 0) {
          changed[at] = static_cast<char>('0' + random() % 10);  // an inconsistent number
        } else if (random() % 2 == 0) {
          changed[at] = alphabet[random() % alphabet.size()];
        } else {
          const std::size_t from = random() % changed.size(), size = random() % 40;
          const std::string piece = changed.substr(from, size);
          changed.replace(at, std::min(piece.size(), changed.size() - at),
                          piece.substr(0, changed.size() - at));
        }
      }
      content(with_record(original, record, changed));  // any result is allowed, but not a crash
    }
  }
}

TEST_F(GraphArchiveFuzz, ErrorsNameOperatorModuleAndVersion) {
  const std::string original = read_file(archive("mlp.pt2"));
  const std::string json = with_record(original, "models/model.json", "");
  const auto import_error = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    std::ofstream(path_, std::ios::binary) << with_record(original, "models/model.json", changed);
    return test::error_message([&] { Pt2Archive{path_}; });
  };
  EXPECT_NE(import_error("torch.ops.aten.relu.default", "torch.ops.aten.rexu.default")
                .find("torch.ops.aten.rexu.default"),
            std::string::npos);
  EXPECT_NE(import_error("torch.ops.aten.linear.default", "torch.ops.aten.linaer.default")
                .find("of module layers.0"),
            std::string::npos);
  EXPECT_NE(import_error("\"major\": 8", "\"major\": 9").find("schema version 9."), std::string::npos);
  EXPECT_NE(
      import_error("torch.ops.aten.linear.default", "torch.ops.higher_order.condx.").find("higher-order"),
      std::string::npos);
}

TEST_F(GraphArchiveFuzz, RejectsControlFlowAndPickledWeights) {
  const auto import_error = [](const std::string& path) {
    return test::error_message<UsageError>([&] { Pt2Archive{path}; });
  };
  const std::string branches = import_error(archive("branches.pt2"));  // torch.cond in the module `gate`
  for (const char* part : {"torch.ops.higher_order.cond of module gate", "does not branch on tensors"})
    EXPECT_NE(branches.find(part), std::string::npos) << branches;
  const std::string original = read_file(archive("mlp.pt2"));
  std::string json = with_record(original, "weights_config.json", "");
  const std::string plain = "\"use_pickle\": false";
  const std::size_t at = json.find(plain, json.find("layers.2.weight"));
  ASSERT_NE(at, std::string::npos);
  json.replace(at, plain.size(), "\"use_pickle\": true ");
  std::ofstream(path_, std::ios::binary) << with_record(original, "weights_config.json", json);
  const std::string pickled = import_error(path_);
  for (const char* part : {"layers.2.weight", "pickled", "plain strided tensors"})
    EXPECT_NE(pickled.find(part), std::string::npos) << pickled;
}

}  // namespace
}  // namespace penstock::graph
