// Malicious archives: deep nesting, unknown enum values, files that change while being read, and paths that
// are not regular files.
#include "base/io/zip.h"
#include "graph/pt2/fields.h"
#include "graph/pt2/import.h"
#include "support/error_message.h"
#include "support/program.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>

namespace penstock::graph {
namespace {

using test::archive;
using test::TempDir;
using ::testing::HasSubstr;

TEST(GraphMalformedArchive, RejectsDeepTreeSpecs) {
  const std::string deep(200'000, '[');
  EXPECT_THAT(test::error_message([&] { pt2_structure(deep, {}, "spec"); }),
              HasSubstr("spec: lists and objects are nested deeper"));
  // In the context of a node, which is JSON inside a string. If it is nested too deeply, it counts as a name,
  // which is not valid for a dict.
  const auto dict_error = [](std::size_t depth) {
    const std::string context = std::string(depth, '[') + std::string(depth, ']');
    const std::string spec =
        R"([1, {"type": "builtins.dict", "context": ")" + context + R"(", "children_spec": []}])";
    return test::error_message([&] { pt2_structure(spec, {}, "spec"); });
  };
  EXPECT_EQ(dict_error(100), "no error");
  EXPECT_THAT(dict_error(200'000), HasSubstr("dict keys must be integers or strings"));
  // Nested nodes.
  std::string nodes = R"({"type": null, "context": null, "children_spec": []})";
  for (int i = 0; i < 100; ++i)
    nodes = R"({"type": "builtins.tuple", "context": "null", "children_spec": [)" + nodes + "]}";
  EXPECT_THAT(test::error_message([&] { pt2_structure("[1, " + nodes + "]", {}, "spec"); }),
              HasSubstr("too deep"));
}

//! The program of an archive with one text replaced by another.
std::string import_changed(const std::string& name, const std::string& from, const std::string& to) {
  const ZipFile zip(archive(name));
  const auto bytes = zip.read("models/model.json");
  std::string program(bytes.begin(), bytes.end());
  const std::size_t at = program.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  program.replace(at, from.size(), to);
  return test::error_message([&] {
    WeightLocations locations;
    for (const std::string folder : {"weights", "constants"}) {
      const std::string index = "data/" + folder + "/model_" + folder + "_config.json";
      read_weight_locations(parse_json(zip.read(index), index), "data/" + folder + "/", index, locations);
    }
    to_string(import_program(parse_json(std::string_view(program), "program"), locations));
  });
}

TEST(GraphMalformedArchive, RejectsDeepPrograms) {
  EXPECT_THAT(
      import_changed("mlp.pt2", "\"nodes\":", "\"extra\": " + std::string(200'000, '[') + ", \"nodes\":"),
      HasSubstr("nested deeper"));
}

TEST(GraphMalformedArchive, RejectsUnknownEnumValues) {
  ASSERT_EQ(import_changed("mixed.pt2", "\"as_scalar_type\": 7", "\"as_int\": 6"), "no error");
  EXPECT_THAT(import_changed("mixed.pt2", "\"as_scalar_type\": 7", "\"as_int\": 1000"),
              HasSubstr("ScalarType"));
  EXPECT_THAT(import_changed("mixed.pt2", "\"as_scalar_type\": 7", "\"as_int\": -1"),
              HasSubstr("ScalarType"));
}

TEST(GraphMalformedArchive, RejectsFileThatShrinks) {
  const TempDir dir;
  std::filesystem::copy_file(archive("mlp.pt2"), dir / "a.pt2");
  const Pt2Archive open(dir / "a.pt2");
  std::filesystem::resize_file(dir / "a.pt2", 100);
  EXPECT_THAT(test::error_message([&] { open.load(open.graph().slots); }),
              HasSubstr("bytes when it was opened"));
}

TEST(GraphMalformedArchive, OpensOnlyRegularFiles) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = dir / "s";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto opened = [&](const std::string& file) { return test::error_message([&] { Pt2Archive{file}; }); };
  EXPECT_THAT(opened(dir / "fifo"), HasSubstr("it is a FIFO, not a regular file"));
  EXPECT_THAT(opened(path), HasSubstr("it is a socket, not a regular file"));
  EXPECT_THAT(opened("/dev/zero"), HasSubstr("it is a device, not a regular file"));
  EXPECT_THAT(opened(dir.path()), HasSubstr("it is a directory, not a regular file"));
  ::close(socket);
}

}  // namespace
}  // namespace penstock::graph
