// Reads lines regardless of the chunks in which output arrives.
#include "comm/launch/line_reader.h"

#include "comm/failure/sockets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <random>
#include <set>
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

//! The lines of a stream that is read in these pieces, derived from the line ends of the full stream.
Lines expected_lines(const std::vector<std::string>& pieces) {
  std::string all;
  std::set<std::size_t> read_ends;
  for (const std::string& piece : pieces) {
    all += piece;
    read_ends.insert(all.size());
  }
  Lines lines;
  std::size_t begin = 0;
  for (std::size_t end = all.find_first_of("\r\n"); end != std::string::npos;
       end = all.find_first_of("\r\n", begin)) {
    const std::string line = all.substr(begin, end - begin);
    const bool carriage_return = all[end] == '\r';
    const bool newline = all[carriage_return ? end + 1 : end] == '\n';
    // At the end of a read, a carriage return looks like that of a progress bar.
    if (carriage_return && (!newline || read_ends.contains(end + 1))) lines.push_back(line + "\r");
    if (newline) lines.push_back(line);
    begin = end + (carriage_return && newline ? 2 : 1);
  }
  if (begin < all.size()) lines.push_back(all.substr(begin));
  return lines;
}

TEST(CommLineReader, ReturnsEveryLineOfRandomPieces) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<std::string> pieces(1 + random() % 8);
    for (std::string& piece : pieces) {
      for (unsigned i = random() % 12; i > 0; --i) piece += "ab\n\r"[random() % 4];
    }
    EXPECT_EQ(lines_of(pieces), expected_lines(pieces));
  }
}

// 64 MiB without a newline take constant time per byte and no more memory than one chunk.
TEST(CommLineReader, LimitsLineLength) {
  const std::vector<std::string> pieces(1024, std::string(65536, 'x'));
  const Lines lines = lines_of(pieces);
  EXPECT_EQ(lines.size(), 64U);
  for (const std::string& line : lines) EXPECT_EQ(line.size(), LineReader::kMaxLineBytes);
}

}  // namespace
}  // namespace penstock::comm
