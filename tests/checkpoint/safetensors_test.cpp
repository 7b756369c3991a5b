// Safetensors files: reads what Python wrote, writes what Python would write, and rejects inconsistent
// headers.
#include "checkpoint/safetensors/header.h"
#include "support/counted_tensors.h"
#include "support/error_message.h"
#include "support/program.h"
#include "support/same_bits.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/error.h>
#include <penstock/checkpoint/safetensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

namespace penstock::checkpoint {
namespace {

using test::counted;
using test::error_message;
using test::same_bits;
using test::slurp;
using test::TempDir;
using testing::HasSubstr;

const std::vector<at::ScalarType> kDtypes = {at::kDouble,
                                             at::kFloat,
                                             at::kHalf,
                                             at::kBFloat16,
                                             at::kLong,
                                             at::kInt,
                                             at::kShort,
                                             at::kChar,
                                             at::kByte,
                                             at::kBool,
                                             at::kUInt16,
                                             at::kUInt32,
                                             at::kUInt64,
                                             at::kFloat8_e4m3fn,
                                             at::kFloat8_e5m2,
                                             at::kFloat8_e4m3fnuz,
                                             at::kFloat8_e5m2fnuz,
                                             at::kFloat8_e8m0fnu,
                                             at::kComplexFloat};

const std::vector<std::string> kPythonNames = {
    "float64",         "float32",         "float16",        "bfloat16",      "int64",
    "int32",           "int16",           "int8",           "uint8",         "bool",
    "uint16",          "uint32",          "uint64",         "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "complex64"};

std::string python_file(const std::string& name) {
  return std::string(PENSTOCK_SOURCE_DIR "/tests/checkpoint/files/") + name + ".safetensors";
}

//! The expected content of each file written by make_files.py.
std::map<std::string, at::Tensor> all_dtypes() {
  std::map<std::string, at::Tensor> tensors;
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    tensors.emplace("a." + kPythonNames[i], counted({2, 3}, kDtypes[i]));
  return tensors;
}
std::map<std::string, at::Tensor> shapes() {
  return {{"scalar", counted({}, at::kFloat)},
          {"empty", counted({0, 3}, at::kFloat)},
          {"deep", counted({1, 2, 1, 3, 1}, at::kShort)},
          {"byte", counted({7}, at::kByte)},
          {"odd name /\\ \t", counted({5}, at::kBool)}};
}

void expect_holds(const std::string& path, const std::map<std::string, at::Tensor>& expected) {
  const SafetensorsFile file(path);
  EXPECT_EQ(file.entries().size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(same_bits(file.load(name), tensor)) << name;
  }
}

TEST(CheckpointSafetensors, ReadsEveryDtypeAndShapeWrittenByPython) {
  expect_holds(python_file("all_dtypes"), all_dtypes());
  expect_holds(python_file("shapes"), shapes());
  expect_holds(python_file("none"), {});
  EXPECT_EQ(SafetensorsFile(python_file("all_dtypes")).metadata(),
            (SafetensorsMetadata{{"format", "pt, \xc3\xa9 \"quoted\"\n"}}));
}

TEST(CheckpointSafetensors, WritesSameBytesAsPython) {
  const TempDir dir;
  save_safetensors(dir / "a", all_dtypes(), {{"format", "pt, \xc3\xa9 \"quoted\"\n"}});
  EXPECT_EQ(slurp(dir / "a"), slurp(python_file("all_dtypes")));
  save_safetensors(dir / "b", shapes());
  EXPECT_EQ(slurp(dir / "b"), slurp(python_file("shapes")));
  save_safetensors(dir / "c", {});
  EXPECT_EQ(slurp(dir / "c"), slurp(python_file("none")));
}

TEST(CheckpointSafetensors, WritesAnyStridesAndReplacesFilesAtomically) {
  const TempDir dir;
  const at::Tensor base = at::randn({6, 8});
  const std::map<std::string, at::Tensor> tensors = {{"transposed", base.t()},
                                                     {"expanded", base.select(0, 1).expand({3, 8})},
                                                     {"strided", base.slice(1, 1, 8, 3)}};
  save_safetensors(dir / "a", {{"old", base}});
  save_safetensors(dir / "a", tensors);
  expect_holds(dir / "a", tensors);
  EXPECT_EQ(std::system(("test \"$(ls " + dir.path() + ")\" = a").c_str()), 0) << "other files remain";
}

TEST(CheckpointSafetensors, RejectsFileThatShrinks) {
  const TempDir dir;
  save_safetensors(dir / "a", {{"w", at::arange(100000, at::kFloat)}});
  const SafetensorsFile file(dir / "a");
  std::filesystem::resize_file(dir / "a", 5000);
  try {
    file.load("w");
    FAIL() << "it was read";
  } catch (const StorageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it ends at byte 5000 but had "));
  }
}

TEST(CheckpointSafetensors, ReadsOnlyRegularFiles) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  const auto open_error = [](const std::string& path) {
    return error_message<StorageError>([&] { SafetensorsFile{path}; });
  };
  EXPECT_THAT(open_error(dir / "fifo"), HasSubstr("it is a FIFO, not a regular file"));
  EXPECT_THAT(open_error(dir.path()), HasSubstr("it is a directory, not a regular file"));
  EXPECT_THAT(open_error("/dev/zero"), HasSubstr("it is a device, not a regular file"));
}

TEST(CheckpointSafetensors, ReadsOnlyRequestedBytes) {
  const TempDir dir;
  save_safetensors(dir / "a", {{"w", at::arange(1000, at::kInt)}});
  const SafetensorsFile file(dir / "a");
  std::vector<std::int32_t> part(3);
  file.read(file.entry("w"), 500 * 4, {reinterpret_cast<std::uint8_t*>(part.data()), 12});
  EXPECT_THAT(part, testing::ElementsAre(500, 501, 502));
  EXPECT_ERROR(file.read(file.entry("w"), 3998, {reinterpret_cast<std::uint8_t*>(part.data()), 12}),
               UsageError, "cannot read 12 bytes at offset 3998");
}

//! The error for a file with this header and number of data bytes, or "no error".
std::string header_error(const std::string& header, std::size_t data, std::uint64_t length = 0) {
  const TempDir dir;
  std::string bytes(8, '\0');
  const std::uint64_t size = length != 0 ? length : header.size();
  std::memcpy(bytes.data(), &size, 8);
  std::ofstream(dir / "a", std::ios::binary) << bytes << header << std::string(data, '\1');
  return error_message<ParseError>([&] {
    const SafetensorsFile file(dir / "a");
    for (const auto& entry : file.entries()) file.load(entry.name);
  });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
         offsets + "]}";
}

TEST(CheckpointSafetensors, RejectsInconsistentHeaders) {
  const std::string a = entry("a", "F32", "2", "0,8");
  EXPECT_EQ(header_error("{" + a + "}", 8), "no error");
  EXPECT_EQ(header_error("{" + a + "}   \n", 8), "no error");
  EXPECT_EQ(header_error("{" + entry("b", "U8", "1", "8,9") + "," + a + "}", 9), "no error")
      << "any order, any alignment";
  EXPECT_EQ(header_error("{\"__metadata__\":{}," + a + "}", 8), "no error");

  EXPECT_THAT(header_error("{" + a + "}", 8, 1ULL << 63), HasSubstr("longer than the format allows"));
  EXPECT_THAT(header_error("{" + a + "}", 8, 500), HasSubstr("beyond the end of the file"));
  EXPECT_THAT(header_error(" {" + a + "}", 8), HasSubstr("does not begin with {"));
  EXPECT_THAT(header_error("{" + a + "} x", 8), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{" + a, 8), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{" + a + "}", 7), HasSubstr("lies at bytes 0 to 8"));
  EXPECT_THAT(header_error("{" + a + "}", 9), HasSubstr("the tensors end at byte 8, the file has 9"));
  EXPECT_THAT(header_error("{" + a + "," + a + "}", 8), HasSubstr("duplicate tensor 'a'"));
  EXPECT_THAT(header_error("{" + a + "," + entry("b", "F32", "1", "4,8") + "}", 8), HasSubstr("overlaps"));
  EXPECT_THAT(header_error("{" + a + "," + entry("b", "F32", "1", "12,16") + "}", 16),
              HasSubstr("leaves a gap"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "2", "8,0") + "}", 8), HasSubstr("lies at bytes 8 to 0"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "3", "0,8") + "}", 8),
              HasSubstr("does not match its dtype and shape"));
  EXPECT_THAT(header_error("{" + entry("a", "F33", "2", "0,8") + "}", 8), HasSubstr("dtype 'F33'"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "-2", "0,8") + "}", 8), HasSubstr("a negative number"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "2.0", "0,8") + "}", 8), HasSubstr("not an integer"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "99999999999999999999", "0,8") + "}", 8),
              HasSubstr("too large"));
  EXPECT_THAT(header_error("{" + entry("a", "U8", "9223372036854775808", "0,8") + "}", 8),
              HasSubstr("has a size of"));
  // Sizes whose product is 8 only because of integer overflow.
  EXPECT_THAT(header_error("{" + entry("a", "U8", "4294967296,4294967296,8", "0,8") + "}", 8),
              HasSubstr("does not match its dtype and shape"));
  EXPECT_THAT(header_error("{" + entry("a", "F64", "2305843009213693953", "0,8") + "}", 8),
              HasSubstr("does not match its dtype and shape"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "0,9223372036854775807", "0,0") + "}", 0),
              HasSubstr("does not match its dtype and shape"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "2", "0") + "}", 8),
              HasSubstr("fewer than two data_offsets"));
  EXPECT_THAT(header_error("{" + entry("a", "F32", "2", "0,8,8") + "}", 8),
              HasSubstr("more than two data_offsets"));
  EXPECT_THAT(header_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8), HasSubstr("lacks one of"));
  EXPECT_THAT(header_error("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 8),
              HasSubstr("two fields 'dtype'"));
  EXPECT_THAT(header_error("{\"a\":{\"type\":\"F32\"}}", 8), HasSubstr("a field 'type'"));
  EXPECT_THAT(header_error("{\"a\":[]}", 8), HasSubstr("a list where the format does not allow it"));
  EXPECT_THAT(header_error("{\"__metadata__\":{\"k\":1}," + a + "}", 8),
              HasSubstr("a number where the format does not allow it"));
  EXPECT_THAT(header_error("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + a + "}", 8),
              HasSubstr("duplicate __metadata__ key 'k'"));
  EXPECT_THAT(header_error(std::string("{\"\xff\":") + "1}", 8), HasSubstr("not valid JSON"));
  EXPECT_EQ(header_error("{" + entry("a", "BOOL", "2", "0,2") + "}", 2), "no error");
  std::string sizes = "1";
  for (int i = 0; i < 100000; ++i) sizes += ",1";
  EXPECT_THAT(header_error("{" + entry("a", "U8", sizes, "0,1") + "}", 1), HasSubstr("too many dims"));
  EXPECT_THAT(header_error("{\"a\":" + std::string(1000000, '{'), 0),
              testing::AnyOf(HasSubstr("not valid JSON"), HasSubstr("none")));
}

TEST(CheckpointSafetensors, RejectsInvalidBools) {
  const TempDir dir;
  save_safetensors(dir / "a", {{"mask", at::ones({4}, at::kBool)}});
  std::string bytes = slurp(dir / "a");
  bytes[bytes.size() - 2] = 7;
  std::ofstream(dir / "a", std::ios::binary) << bytes;
  const SafetensorsFile file(dir / "a");
  EXPECT_ERROR(file.load("mask"), ParseError, "has dtype bool, but its element 2 is");
}

TEST(CheckpointSafetensors, ReportsFilesThatCannotBeOpenedOrWritten) {
  const TempDir dir;
  EXPECT_ERROR(SafetensorsFile(dir / "missing"), StorageError, "No such file or directory");
  EXPECT_ERROR(SafetensorsFile{dir.path()}, StorageError, "it is a directory, not a regular file");
  std::ofstream(dir / "short") << "1234";
  EXPECT_ERROR(SafetensorsFile(dir / "short"), ParseError, "too short to be a safetensors file");
  EXPECT_ERROR(save_safetensors(dir / "no/such/place", {}), StorageError, "No such file or directory");
  const at::Tensor one = at::ones({1});
  EXPECT_ERROR(save_safetensors(dir / "a", {{"__metadata__", one}}), UsageError,
               "cannot have the name __metadata__");
  EXPECT_ERROR(save_safetensors(dir / "a", {{"\xff", one}}), UsageError, "is not UTF-8");
  EXPECT_ERROR(save_safetensors(dir / "a", {{"c", at::ones({1}, at::kComplexDouble)}}), UsageError,
               "does not support dtype");
  EXPECT_ERROR(save_safetensors(dir / "a", {{"u", at::Tensor()}}), UsageError,
               "is undefined, sparse or quantized");
  save_safetensors(dir / "b", {{"weight", one}});
  try {
    SafetensorsFile(dir / "b").load("wieght");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean weight?"));
  }
}

}  // namespace
}  // namespace penstock::checkpoint
