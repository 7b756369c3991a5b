// The reader of zip files, on archives that this test lays out byte by byte.
#include "base/io/zip.h"

#include "base/io/crc32.h"
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace penstock {
namespace {

using Bytes = std::vector<std::uint8_t>;
using test::error_message;
using testing::HasSubstr;

constexpr std::uint32_t kInExtra = 0xffffffff;  //!< the value is in the zip64 extra field

void append(Bytes& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i, value >>= 8) bytes.push_back(static_cast<std::uint8_t>(value));
}

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

//! A record, with what its directory entry claims where that differs from the truth.
struct Entry {
  std::string name;
  Bytes content;
  Bytes local_extra{};  //!< padding, as libtorch aligns records
  Bytes extra{};
  std::string comment{};
  std::uint16_t method = 0;
  std::uint32_t local_mark = 0x04034b50, mark = 0x02014b50;
  std::optional<std::uint32_t> crc{}, stored{}, size{}, offset{};
};

//! What the end records claim where that differs from the truth.
struct End {
  std::string comment{};
  bool zip64 = false;
  std::optional<std::uint64_t> count{}, size{}, offset{}, place64{};
  std::uint32_t mark64 = 0x06064b50;
};

Bytes archive(const std::vector<Entry>& entries, const End& end = {}) {
  Bytes bytes;
  Bytes directory;
  for (const Entry& entry : entries) {
    const std::size_t offset = bytes.size();
    append(bytes, entry.local_mark, 4);
    append(bytes, 0x5a, 22);  // the reader takes these fields from the directory
    append(bytes, entry.name.size(), 2);
    append(bytes, entry.local_extra.size(), 2);
    append(bytes, Bytes(entry.name.begin(), entry.name.end()));
    append(bytes, entry.local_extra);
    append(bytes, entry.content);

    append(directory, entry.mark, 4);
    append(directory, 0x5a, 6);
    append(directory, entry.method, 2);
    append(directory, 0x5a, 4);
    append(directory, entry.crc.value_or(crc32(entry.content)), 4);
    append(directory, entry.stored.value_or(static_cast<std::uint32_t>(entry.content.size())), 4);
    append(directory, entry.size.value_or(static_cast<std::uint32_t>(entry.content.size())), 4);
    append(directory, entry.name.size(), 2);
    append(directory, entry.extra.size(), 2);
    append(directory, entry.comment.size(), 2);
    append(directory, 0x5a, 8);
    append(directory, entry.offset.value_or(static_cast<std::uint32_t>(offset)), 4);
    append(directory, Bytes(entry.name.begin(), entry.name.end()));
    append(directory, entry.extra);
    append(directory, Bytes(entry.comment.begin(), entry.comment.end()));
  }
  const std::uint64_t at = bytes.size();
  append(bytes, directory);
  const std::uint64_t count = end.count.value_or(entries.size());
  const std::uint64_t size = end.size.value_or(directory.size());
  const std::uint64_t offset = end.offset.value_or(at);
  if (end.zip64) {
    const std::uint64_t place = bytes.size();
    append(bytes, end.mark64, 4);
    append(bytes, 44, 8);
    append(bytes, 0x5a, 20);
    append(bytes, count, 8);
    append(bytes, size, 8);
    append(bytes, offset, 8);
    append(bytes, 0x07064b50, 4);
    append(bytes, 0, 4);
    append(bytes, end.place64.value_or(place), 8);
    append(bytes, 1, 4);
  }
  append(bytes, 0x06054b50, 4);
  append(bytes, 0x5a, 6);
  append(bytes, end.zip64 ? 0xffff : count, 2);
  append(bytes, end.zip64 ? kInExtra : size, 4);
  append(bytes, end.zip64 ? kInExtra : offset, 4);
  append(bytes, end.comment.size(), 2);
  append(bytes, Bytes(end.comment.begin(), end.comment.end()));
  return bytes;
}

Bytes counting(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  return bytes;
}

//! An extra field: its id, its size and its content.
Bytes extra_field(std::uint16_t id, const std::vector<std::uint64_t>& values) {
  Bytes bytes;
  append(bytes, id, 2);
  append(bytes, values.size() * 8, 2);
  for (const std::uint64_t value : values) append(bytes, value, 8);
  return bytes;
}

class BaseZip : public testing::Test {
 protected:
  std::string path() const { return directory_ / "archive.zip"; }

  void write(const Bytes& bytes) const {
    std::ofstream file(path(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.flush());
  }

  //! The error on opening the archive and reading every record, without the path.
  std::string error_of(const Bytes& bytes) const {
    write(bytes);
    std::string message = error_message<ParseError>([&] {
      const ZipFile zip(path());
      for (const std::string& name : zip.names()) zip.read(name);
    });
    const std::string quoted = "'" + path() + "': ";
    if (message.starts_with(quoted)) message.erase(0, quoted.size());
    return message.substr(0, message.find('\n'));
  }

 private:
  test::TempDir directory_;
};

TEST_F(BaseZip, ReadsRecordsWithoutTheirTopFolder) {
  const Bytes large = counting(70'001);
  write(archive({{.name = "model/large", .content = large, .local_extra = Bytes(300, 0x46)},
                 {.name = "model/data/weights/0", .content = counting(5), .comment = std::string(260, 'c')},
                 {.name = "model/empty", .content = {}},
                 {.name = "plain", .content = counting(999), .extra = extra_field(2, {1})}}));
  const ZipFile zip(path());
  EXPECT_EQ(zip.names(), (std::vector<std::string>{"data/weights/0", "empty", "large", "plain"}));
  EXPECT_TRUE(zip.has("large"));
  EXPECT_FALSE(zip.has("model/large"));
  EXPECT_EQ(zip.size("large"), 70'001U);
  EXPECT_EQ(zip.read("large"), large);
  EXPECT_EQ(zip.read("data/weights/0"), counting(5));
  EXPECT_EQ(zip.read("empty"), Bytes{});
  EXPECT_EQ(zip.read("plain"), counting(999));
  Bytes small(4);
  EXPECT_EQ(error_message<UsageError>([&] { zip.read("data/weights/0", small); }),
            "record 'data/weights/0' and the target differ in size");
}

TEST_F(BaseZip, ReadsArchivesWithComments) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{22}, std::size_t{65'535}}) {
    EXPECT_EQ(error_of(archive({{.name = "a", .content = counting(3)}}, {.comment = std::string(size, 'x')})),
              "no error");
    EXPECT_EQ(error_of(archive({{.name = "a", .content = counting(3)}},
                               {.comment = std::string(size, 'x'), .zip64 = true})),
              "no error");
  }
  // An end record inside the comment whose own comment would not end with the file.
  Bytes fake;
  append(fake, 0x06054b50, 4);
  append(fake, 0, 18);
  EXPECT_EQ(error_of(archive({{.name = "a", .content = counting(3)}},
                             {.comment = std::string(fake.begin(), fake.end()) + "tail"})),
            "no error");
  write(archive({{.name = "a", .content = counting(3)}},
                {.comment = std::string(fake.begin(), fake.end()) + "tail"}));
  EXPECT_TRUE(ZipFile(path()).has("a"));
}

TEST_F(BaseZip, ReadsAnEmptyArchive) {
  const Bytes empty = archive({});
  ASSERT_EQ(empty.size(), 22U);
  EXPECT_EQ(error_of(empty), "no error");
  EXPECT_EQ(error_of(Bytes(empty.begin(), empty.end() - 1)), "the file is too short to be a zip file");
  EXPECT_EQ(error_of({}), "the file is too short to be a zip file");
  EXPECT_EQ(error_of(Bytes(1000, 0)), "the file has no zip directory at its end");
}

TEST_F(BaseZip, ReadsZip64Values) {
  const Bytes content = counting(300);
  const Entry first{.name = "first", .content = counting(70'000)};
  const std::uint64_t offset = 30 + 5 + 70'000;
  for (const bool zip64 : {false, true}) {
    for (int mask = 0; mask < 8; ++mask) {
      Entry entry{.name = "m/x", .content = content};
      std::vector<std::uint64_t> values;
      if ((mask & 1) != 0) entry.size = kInExtra, values.push_back(300);
      if ((mask & 2) != 0) entry.stored = kInExtra, values.push_back(300);
      if ((mask & 4) != 0) entry.offset = kInExtra, values.push_back(offset);
      // Other fields before and after it do not disturb.
      append(entry.extra, extra_field(0x7075, {17}));
      append(entry.extra, extra_field(1, values));
      append(entry.extra, extra_field(0x0017, {}));
      write(archive({first, entry}, {.zip64 = zip64}));
      const ZipFile zip(path());
      EXPECT_EQ(zip.size("x"), 300U) << mask;
      EXPECT_EQ(zip.read("x"), content) << mask;
      EXPECT_EQ(zip.read("first"), first.content) << mask;
      if (values.empty()) continue;
      values.pop_back();
      entry.extra = extra_field(1, values);
      EXPECT_EQ(error_of(archive({first, entry}, {.zip64 = zip64})), "entry 'm/x' has a damaged extra field");
    }
  }
}

TEST_F(BaseZip, RejectsDamagedEndRecords) {
  const std::vector<Entry> entries = {{.name = "a", .content = counting(10)}};
  const Bytes good = archive(entries, {.zip64 = true});
  const std::uint64_t size = good.size();
  for (const std::uint64_t place : {size + 1, size, size - 55, ~std::uint64_t{0}}) {
    EXPECT_EQ(error_of(archive(entries, {.zip64 = true, .place64 = place})),
              "the offset of the zip64 directory is invalid")
        << place;
  }
  EXPECT_EQ(error_of(archive(entries, {.zip64 = true, .place64 = size - 56})),
            "the offset of the zip64 directory is invalid");
  EXPECT_EQ(error_of(archive(entries, {.zip64 = true, .mark64 = 0x06064b51})),
            "the offset of the zip64 directory is invalid");
  for (const bool zip64 : {false, true}) {
    const std::uint64_t length = archive(entries, {.zip64 = zip64}).size();
    const auto with = [&](End end) {
      end.zip64 = zip64;
      return error_of(archive(entries, end));
    };
    EXPECT_EQ(with({.offset = length + 1}), "the directory extends beyond the end of the file");
    EXPECT_EQ(with({.size = length - 40, .offset = 41}), "the directory extends beyond the end of the file");
    EXPECT_EQ(with({.size = length - 40, .offset = 40}), "entry 0 of the directory is damaged");
    EXPECT_EQ(with({.count = 2}), "entry 1 of the directory is damaged");
    EXPECT_EQ(with({.size = 45}), "entry 0 of the directory is damaged");
    EXPECT_EQ(with({.size = 46}), "entry 0 of the directory is truncated");
    EXPECT_EQ(with({.size = 47}), "no error");
    EXPECT_EQ(with({.count = 0, .size = 0}), "no error");
    EXPECT_EQ(with({.count = 0, .size = 0, .offset = length}), "no error");
  }
}

TEST_F(BaseZip, RejectsLocatorWithoutZip64Directory) {
  Bytes bytes;  // a locator at the beginning of the file, then an end record
  append(bytes, 0x07064b50, 4);
  append(bytes, 0, 16);
  append(bytes, archive({}));
  EXPECT_EQ(error_of(bytes), "the offset of the zip64 directory is invalid");
}

TEST_F(BaseZip, ReadsEmptyRecordAtTheEndOfTheFile) {
  Bytes header;  // in the comment of the archive: a local header without name and extra field
  append(header, 0x04034b50, 4);
  append(header, 0, 26);
  const End end{.comment = std::string(header.begin(), header.end())};
  const Entry entry{.name = "a", .content = {}};
  const auto length = static_cast<std::uint32_t>(archive({entry}, end).size());
  EXPECT_EQ(error_of(archive({{.name = "a", .content = {}, .offset = length - 30}}, end)), "no error");
  EXPECT_EQ(error_of(archive({{.name = "a", .content = {}, .offset = length - 29}}, end)),
            "the offset of record 'a' is invalid");
}

TEST_F(BaseZip, RejectsDamagedEntries) {
  const Entry good{.name = "f/a", .content = counting(10)};
  const auto with = [&](auto change) {
    Entry entry = good;
    change(entry);
    return error_of(archive({good.name == entry.name ? Entry{.name = "other", .content = {}} : good, entry}));
  };
  EXPECT_EQ(with([](Entry&) {}), "no error");
  EXPECT_EQ(with([](Entry& entry) { entry.mark = 1; }), "entry 1 of the directory is damaged");
  EXPECT_EQ(with([](Entry& entry) { entry.name = "g/a"; }), "duplicate record 'a'");
  EXPECT_EQ(with([](Entry& entry) { entry.crc = 1; }), "record 'a' is damaged: the checksum does not match");
  EXPECT_EQ(with([](Entry& entry) { entry.method = 8; }), "record 'a' is compressed");
  EXPECT_EQ(with([](Entry& entry) { entry.method = 0x100; }), "record 'a' is compressed");
  EXPECT_EQ(with([](Entry& entry) { entry.stored = 9; }), "record 'a' is compressed");
  EXPECT_EQ(with([](Entry& entry) { entry.local_mark = 1; }), "the offset of record 'a' is invalid");
  EXPECT_EQ(with([](Entry& entry) { entry.offset = 1; }), "the offset of record 'a' is invalid");
  // An extra field that claims one byte more than there is, and a header of three bytes.
  EXPECT_EQ(with([](Entry& entry) { entry.extra = {9, 0, 1, 0}; }), "entry 'f/a' has a damaged extra field");
  EXPECT_EQ(with([](Entry& entry) { entry.extra = {9, 0, 1, 0, 5}; }), "no error");
  EXPECT_EQ(with([](Entry& entry) { entry.extra = {9, 0, 1}; }), "no error");
  // The directory ends within its second entry.
  const std::uint64_t first = 46 + 3;
  const std::vector<Entry> two = {good, {.name = "f/b", .content = counting(4)}};
  EXPECT_EQ(error_of(archive(two, {.size = first + 45})), "entry 1 of the directory is damaged");
  EXPECT_EQ(error_of(archive(two, {.size = first + 46})), "entry 1 of the directory is truncated");
  EXPECT_EQ(error_of(archive(two, {.size = first + 48})), "entry 1 of the directory is truncated");
  EXPECT_EQ(error_of(archive(two, {.size = first + 49})), "no error");
  // Long names are cut off in messages.
  EXPECT_EQ(error_of(archive({{.name = std::string(201, 'n'), .content = {}, .crc = 1}})),
            "record '" + std::string(200, 'n') + "…' is damaged: the checksum does not match");
}

TEST_F(BaseZip, RejectsRecordsOutsideTheFile) {
  const std::uint32_t length =
      static_cast<std::uint32_t>(archive({{.name = "a", .content = counting(10)}}).size());
  const auto with = [&](Entry entry) {
    entry.name = "a";
    return error_of(archive({entry}));
  };
  EXPECT_EQ(with({.content = counting(10), .offset = length + 1}), "the offset of record 'a' is invalid");
  EXPECT_EQ(with({.content = counting(10), .offset = length - 29}), "the offset of record 'a' is invalid");
  EXPECT_EQ(with({.content = counting(10), .offset = length - 30}), "the offset of record 'a' is invalid");
  // The rest of the file has 10 + 47 + 22 bytes after the header of 31.
  EXPECT_EQ(with({.content = counting(10), .crc = 0, .stored = 80, .size = 80}), "record 'a' is truncated");
  EXPECT_EQ(with({.content = counting(10), .crc = 0, .stored = 79, .size = 79}),
            "record 'a' is damaged: the checksum does not match");
  EXPECT_EQ(with({.content = counting(10), .stored = 1'000'000, .size = 1'000'000}),
            "record 'a' is truncated");
  for (const std::uint32_t more : {0U, 1U}) {
    write(archive({{.name = "a", .content = counting(10), .size = length + more}}));
    EXPECT_EQ(error_message<ParseError>([&] { ZipFile(path()).size("a"); }) == "no error", more == 0);
  }
  Bytes bytes = archive({{.name = "a", .content = counting(10)}});
  bytes[27] = 0xff;  // the local header's name is longer than the file
  EXPECT_EQ(error_of(bytes), "record 'a' is truncated");
  write(archive({{.name = "a", .content = counting(10)}}));
  const ZipFile zip(path());
  EXPECT_THAT(error_message<ParseError>([&] { zip.read("b"); }), HasSubstr("missing record 'b'"));
  EXPECT_THAT(error_message<ParseError>([&] { zip.size("b"); }), HasSubstr("missing record 'b'"));
}

TEST_F(BaseZip, RejectsEveryPrefix) {
  for (const bool zip64 : {false, true}) {
    const Bytes whole =
        archive({{.name = "m/a", .content = counting(40)}, {.name = "m/b", .content = counting(9)}},
                {.comment = "made by a test", .zip64 = zip64});
    ASSERT_EQ(error_of(whole), "no error");
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(error_of(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))), "no error")
          << size;
    }
  }
}

TEST_F(BaseZip, ReportsFilesThatShrinkAndFilesThatAreMissing) {
  write(archive({{.name = "a", .content = counting(5000)}}));
  const std::uint64_t size = std::filesystem::file_size(path());
  const ZipFile zip(path());
  std::filesystem::resize_file(path(), 1000);
  EXPECT_THAT(
      error_message<StorageError>([&] { zip.read("a"); }),
      HasSubstr("it ends at byte 1000 but had " + std::to_string(size) + " bytes when it was opened"));
  EXPECT_ERROR(ZipFile(path() + ".missing"), StorageError, "No such file or directory");
  EXPECT_ERROR(ZipFile(std::filesystem::path(path()).parent_path().string()), StorageError,
               "it is a directory, not a regular file");
}

}  // namespace
}  // namespace penstock
