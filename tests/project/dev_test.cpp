// `./dev` on machines that lack something, played by stand-ins for the system's programs at the front of
// PATH.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A checkout that holds nothing but `dev`, and a folder of stand-ins.
class Dev : public testing::Test {
 protected:
  Dev() {
    std::filesystem::create_directory(dir_ / "bin");
    std::filesystem::copy(PENSTOCK_SOURCE_DIR "/dev", dir_ / "dev");
    // Every package is there but ninja and CLI11's.
    stand_in("dpkg-query",
             "for p in \"$@\"; do case $p in -*|ninja-build|libcli11-dev) ;; *) echo \"ii $p\";; esac; done");
    stand_in("apt-get", "echo \"$@\" >> " + (dir_ / "apt.log"));
  }

  void stand_in(const std::string& name, const std::string& script) {
    const std::string path = dir_ / ("bin/" + name);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  Outcome dev(const std::vector<std::string>& words, std::vector<std::string> settings = {}) {
    settings.push_back("PATH=" + (dir_ / "bin") + ":" + std::getenv("PATH"));
    std::vector<std::string> line{dir_ / "dev"};
    line.insert(line.end(), words.begin(), words.end());
    return run_program(line, settings);
  }

  std::string apt_log() const { return slurp(dir_ / "apt.log"); }

  TempDir dir_;
};

TEST_F(Dev, APlainUserIsToldTheOneLine) {
  stand_in("id", "echo 1000");
  const Outcome outcome = dev({"test"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("\nhint: sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends "
                        "ninja-build libcli11-dev'\n"));
  EXPECT_THAT(apt_log(), IsEmpty());
}

TEST_F(Dev, RootInstallsOnlyWhatIsMissing) {
  stand_in("id", "echo 0");
  // It goes on to look for libtorch, and this one is none.
  const Outcome outcome = dev({"build"}, {"PENSTOCK_TORCH=" + dir_.path()});
  EXPECT_EQ(apt_log(), "update\ninstall -y --no-install-recommends ninja-build libcli11-dev\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has no share/cmake/Torch"));
}

TEST_F(Dev, AFailedInstallationShowsWhy) {
  stand_in("id", "echo 0");
  stand_in("apt-get", "echo 'the mirror is gone'; exit 100");
  const Outcome outcome = dev({"build"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the mirror is gone"));
  EXPECT_THAT(outcome.err, HasSubstr("dev: error: the installation failed"));
}

TEST_F(Dev, AVirtualEnvironmentIsMadeWhereNoTorchIsFound) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  // A Python without torch, whose environments have a pip that says what it was asked for and fails.
  stand_in("python3",
           "[ \"$1\" = - ] && exit 1\n"
           "mkdir -p .venv/bin && printf '#!/bin/sh\\necho \"asked: $*\"; exit 1\\n' > .venv/bin/pip && "
           "chmod +x .venv/bin/pip");
  const Outcome outcome = dev({"build"}, {"PENSTOCK_TORCH="});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("installing torch 2.13.0 into .venv"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / ".venv/bin/pip"));
  EXPECT_THAT(outcome.err, HasSubstr("hint: install it elsewhere and set PENSTOCK_TORCH"));
}

TEST_F(Dev, BadUsageExitsWithTwo) {
  EXPECT_EQ(dev({"tset"}).code, 2);
  EXPECT_EQ(dev({"sanitize", "everything"}).code, 2);
  EXPECT_EQ(dev({"help"}).code, 0);
  EXPECT_THAT(dev({"help"}).out, HasSubstr("usage: ./dev COMMAND"));
}

TEST(Mutate, ChoosesTheSameMutantsForASeedAndKnowsItsEquivalentOnes) {
  const auto mutate = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"python3", PENSTOCK_SOURCE_DIR "/tests/mutation/mutate.py"});
    return run_program(words);
  };
  const Outcome first = mutate({"base", "--list", "--count", "9", "--seed", "3"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 3 * 9) << first.out;
  EXPECT_EQ(mutate({"base", "--list", "--count", "9", "--seed", "3"}).out, first.out);
  EXPECT_NE(mutate({"base", "--list", "--count", "9", "--seed", "4"}).out, first.out);
  const Outcome check = mutate({"--check"});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
  EXPECT_EQ(mutate({"nothing", "--list"}).code, 2);
}

}  // namespace
}  // namespace penstock::test
