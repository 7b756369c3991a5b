// Reads lines regardless of the chunks in which output arrives.
#include "comm/launch/line_reader.h"

#include "comm/failure/sockets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <random>
#include <vector>

namespace penstock::comm {
namespace {

using Lines = std::vector<std::string>;

//! The lines of a stream written in these chunks, each read separately.
Lines lines_of(const std::vector<std::string>& pieces) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {"no pipe"};
  const Fd out(ends[0]);
  Fd in(ends[1]);
  LineReader reader;
  Lines lines;
  const auto on_line = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) {
    if (piece.empty()) continue;
    if (write(in.get(), piece.data(), piece.size()) != static_cast<ssize_t>(piece.size()))
      return {"short write"};
    EXPECT_TRUE(reader.read(out.get(), on_line));
  }
  in.reset();
  EXPECT_FALSE(reader.read(out.get(), on_line));
  return lines;
}

TEST(CommLineReader, SplitsAtNewlines) {
  EXPECT_EQ(lines_of({"a\n\nb", "c\nd"}), (Lines{"a", "", "bc", "d"}));
  EXPECT_EQ(lines_of({"a\r\nb\r\n"}), (Lines{"a", "b"}));
  EXPECT_EQ(lines_of({"error: a\r", "\nhint: b\n"}), (Lines{"error: a\r", "error: a", "hint: b"}));
  EXPECT_EQ(lines_of({"a\r", "\n", "\n"}), (Lines{"a\r", "a", ""}));
}

TEST(CommLineReader, ReturnsProgressBarUpdatesImmediately) {
  EXPECT_EQ(lines_of({"1%\r2%\r", "3%\r", "\ndone\n"}), (Lines{"1%\r", "2%\r", "3%\r", "3%", "done"}));
  EXPECT_EQ(lines_of({"\r1%", "\r2%\n"}), (Lines{"\r", "1%\r", "2%"}));
}

TEST(CommLineReader, KeepsEveryByte) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string all;
    std::vector<std::string> pieces(1 + random() % 8);
    for (std::string& piece : pieces) {
      for (unsigned i = random() % 12; i > 0; --i) piece += "ab\n\r"[random() % 4];
      all += piece;
    }
    // A newline after a progress bar line repeats that line.
    std::string given, progress;
    for (const std::string& line : lines_of(pieces)) {
      const bool repeats = progress == line + "\r" && !line.ends_with('\r');
      if (!repeats) given += line;
      progress = line.ends_with('\r') ? line : "";
    }
    std::erase(all, '\n');
    std::erase(all, '\r');
    std::erase(given, '\r');
    EXPECT_EQ(given, all);
  }
}

// 64 MiB without a newline take constant time per byte and no more memory than one chunk.
TEST(CommLineReader, LimitsLineLength) {
  const std::vector<std::string> pieces(1024, std::string(65536, 'x'));
  const Lines lines = lines_of(pieces);
  EXPECT_EQ(lines.size(), 64U);
  for (const std::string& line : lines) EXPECT_EQ(line.size(), LineReader::kLongest);
}

}  // namespace
}  // namespace penstock::comm
