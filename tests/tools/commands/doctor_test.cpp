// `penstock doctor`: devices, the choice of a backend, and the report.
#include "support/program.h"
#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(ToolDoctor, TellsDevicesAndBackend) {
  const auto done = run_program({PENSTOCK_TOOL, "doctor"});
  EXPECT_THAT(done.out, AllOf(ContainsRegex("(ok|note) +driver "), ContainsRegex("(ok|note) +nccl "),
                              ContainsRegex("ok +devices "), ContainsRegex("backends +gloo.*; auto means "),
                              HasSubstr("penstock can be built with 2.13, 2.14, 2.15)")));
}

TEST(ToolDoctor, WritesReportWithoutSecrets) {
  const TempDir dir;
  const std::string file = dir / "doctor.txt";
  setenv("PENSTOCK_JOB_SECRET", "xyzzy", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  const auto done = run_program({PENSTOCK_TOOL, "doctor", "--report", file});
  unsetenv("PENSTOCK_JOB_SECRET");
  unsetenv("NCCL_DEBUG");
  EXPECT_THAT(done.out, HasSubstr("the report is in " + file));
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(text, AllOf(HasSubstr("NCCL_DEBUG=WARN\n"), HasSubstr("PENSTOCK_JOB_SECRET=(not shown)"),
                          HasSubstr("round trip"), HasSubstr("TORCH_VERSION="), Not(HasSubstr("xyzzy"))));
}

}  // namespace
}  // namespace penstock::test
