// Runs `./dev` on simulated machines that lack something: fake system programs come first in PATH.
#include "support/lines.h"
#include "support/program.h"
#include "support/pseudo_terminal.h"

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

// A checkout that contains only `dev` and its scripts, and a folder of fake programs.
class ProjectDev : public testing::Test {
 protected:
  ProjectDev() {
    std::filesystem::create_directory(dir_ / "bin");
    std::filesystem::copy(PENSTOCK_SOURCE_DIR "/dev", dir_ / "dev");
    std::filesystem::create_directory(dir_ / "tools");
    std::filesystem::copy(PENSTOCK_SOURCE_DIR "/tools/dev", dir_ / "tools/dev");
    // Every package is installed except ninja and CLI11.
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

TEST_F(ProjectDev, PrintsInstallCommandWithoutRoot) {
  stand_in("id", "echo 1000");
  const Outcome outcome = dev({"test"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("\nhint: sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends "
                        "ninja-build libcli11-dev'\n"));
  EXPECT_THAT(apt_log(), IsEmpty());
}

// The fast compiler is installed along with required packages, unless the user chose a compiler or apt lacks
// it. Alone it is not required.
TEST_F(ProjectDev, InstallCommandIncludesFastCompiler) {
  stand_in("id", "echo 1000");
  stand_in("apt-cache", "[ \"$*\" = 'show clang-19' ]");
  const auto install = [](const std::string& packages) {
    return HasSubstr("apt-get install -y --no-install-recommends " + packages + "'\n");
  };
  const auto without = [&](const std::string& packages) {
    stand_in("dpkg-query",
             "for p in \"$@\"; do case $p in -*|" + packages + ") ;; *) echo \"ii $p\";; esac; done");
  };
  without("ninja-build|clang-19");
  for (const char* command : {"train", "test", "bench", "docs", "build"})
    EXPECT_THAT(dev({command}, {"CXX="}).err, install("ninja-build clang-19")) << command;
  EXPECT_THAT(dev({"build", "debug"}, {"CXX="}).err, install("ninja-build clang-19"));
  EXPECT_THAT(dev({"build", "thread"}, {"CXX="}).err, install("ninja-build"));
  EXPECT_THAT(dev({"test"}, {"CXX=g++"}).err, install("ninja-build"));
  std::filesystem::create_directories(dir_ / "build/release");
  std::ofstream(dir_ / "build/release/build.ninja").flush();  // configured before, with its compiler
  EXPECT_THAT(dev({"test"}, {"CXX="}).err, install("ninja-build"));
  std::filesystem::remove_all(dir_ / "build");
  stand_in("apt-cache", "exit 100");
  EXPECT_THAT(dev({"test"}, {"CXX="}).err, install("ninja-build"));
  stand_in("apt-cache", "exit 0");
  without("clang-19");
  EXPECT_THAT(dev({"build"}, {"CXX=", "PENSTOCK_TORCH=" + dir_.path()}).err,
              HasSubstr("has no share/cmake/Torch"));
  EXPECT_THAT(apt_log(), IsEmpty());
}

TEST_F(ProjectDev, RootInstallsOnlyMissingPackages) {
  stand_in("id", "echo 0");
  // It then searches for libtorch and finds an invalid one.
  const Outcome outcome = dev({"build"}, {"PENSTOCK_TORCH=" + dir_.path()});
  EXPECT_EQ(apt_log(), "update\ninstall -y --no-install-recommends ninja-build libcli11-dev\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has no share/cmake/Torch"));
}

// The commands without libtorch need neither Gloo's headers nor GoogleTest.
TEST_F(ProjectDev, TorchFreeToolNeedsFewPackages) {
  stand_in("dpkg-query", "exit 1");
  stand_in("id", "echo 1000");
  const auto asked = [&](const std::string& preset) { return dev({"build", preset}).err; };
  EXPECT_THAT(asked("tool"),
              HasSubstr("--no-install-recommends g++ cmake ninja-build python3 nlohmann-json3-dev "
                        "libcli11-dev libtomlplusplus-dev'\n"));
  EXPECT_THAT(asked("plan"), testing::AllOf(HasSubstr(" libgtest-dev "), Not(HasSubstr("libgloo-dev"))));
  EXPECT_THAT(asked("release"), HasSubstr(" libgloo-dev "));
}

// What a slow test needs is not skipped for want of a package.
TEST_F(ProjectDev, SlowTierNeedsWhatItsTestsUse) {
  stand_in("dpkg-query", "exit 1");
  stand_in("id", "echo 1000");
  const std::string fast = dev({"test"}).err, slow = dev({"test", "--slow"}).err;
  for (const char* package : {"debootstrap", "openmpi-bin", "mpich", "slurm-wlm", "munge", "strace", "zsh",
                              "fish", "man-db", "groff", "emscripten", "clang-16"}) {
    EXPECT_THAT(slow, HasSubstr(std::string(" ") + package));
    EXPECT_THAT(fast, Not(HasSubstr(std::string(" ") + package)));
  }
}

// `sleep` returns at once here. The installation ends only after something was reported.
TEST_F(ProjectDev, ReportsWhileItInstalls) {
  stand_in("id", "echo 0");
  stand_in("sleep", "while [ ! -e started ]; do :; done\n[ ! -e slept ] || : > reported\n: > slept");
  stand_in("apt-get", "echo 'Unpacking ninja-build ...'; : > started; while [ ! -e reported ]; do :; done");
  const Outcome outcome = dev({"build"}, {"PENSTOCK_TORCH=" + dir_.path()});
  EXPECT_THAT(outcome.err, HasSubstr("\ndev: 10 s: Unpacking ninja-build ...\n"));
}

// A Python of this checkout whose torch has version 2.13.
TEST_F(ProjectDev, RunsPythonThatHasLibtorch) {
  const std::string bin = dir_ / "env/bin", torch = dir_ / "env/lib/python3/site-packages/torch";
  std::filesystem::create_directories(bin);
  std::filesystem::create_directories(torch + "/share/cmake/Torch");
  std::filesystem::create_directory_symlink(torch, dir_ / "link");
  stand_in("../env/bin/python3", "case $1 in -) echo " + torch + ";; -c) ;; *) echo in $PWD: $@;; esac");
  const Outcome outcome = run_program({"sh", "-c", "cd " + bin + " && ../../dev python export.py 'a b'"},
                                      {"PENSTOCK_TORCH=" + (dir_ / "link")});
  EXPECT_EQ(outcome.out, "in " + bin + ": export.py a b\n") << outcome.err;
  std::filesystem::remove(bin + "/python3");
  stand_in("python3", "exit 1");
  const Outcome none = dev({"python", "export.py"}, {"PENSTOCK_TORCH=" + torch});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("dev: error: no Python here has the libtorch in " + torch + "\nhint: "));
}

// Which libtorch it takes, which build that is, and why.
TEST_F(ProjectDev, NamesLibtorch) {
  stand_in("id", "echo 0");
  stand_in("cmake", "exit 1");
  const std::string torch = dir_ / "torch";
  std::filesystem::create_directories(torch + "/share/cmake/Torch");
  std::filesystem::create_directories(torch + "/lib");
  const auto said = [&] { return dev({"build"}, {"PENSTOCK_TORCH=" + torch}).err; };
  const std::string end = " in " + torch + ", because PENSTOCK_TORCH names it\n";
  std::ofstream(torch + "/build-version") << "2.15.0+cpu\n";
  EXPECT_THAT(said(), HasSubstr("dev: using libtorch 2.15.0+cpu, a CPU build" + end));
  std::ofstream(torch + "/version.py") << "__version__ = '2.14.0+cu130'\ncuda: Optional[str] = '13.0'\n";
  std::ofstream(torch + "/lib/libtorch_cuda.so").flush();
  EXPECT_THAT(said(), HasSubstr("dev: using libtorch 2.14.0+cu130, a CUDA 13.0 build" + end));
}

TEST_F(ProjectDev, ShowsReasonOfFailedInstallation) {
  stand_in("id", "echo 0");
  stand_in("apt-get", "echo 'the mirror is gone'; exit 100");
  const Outcome outcome = dev({"build"});
  EXPECT_EQ(outcome.code, 1);
  // What is being installed is said before the work starts.
  const auto announced = outcome.err.find("dev: installing 2 Debian packages ");
  ASSERT_NE(announced, std::string::npos) << outcome.err;
  EXPECT_THAT(outcome.err.substr(announced, outcome.err.find('\n', announced) - announced),
              testing::EndsWith(": ninja-build libcli11-dev"));
  EXPECT_GT(outcome.err.find("the mirror is gone"), announced);
  EXPECT_THAT(outcome.err, HasSubstr("the mirror is gone"));
  EXPECT_THAT(outcome.err, HasSubstr("dev: error: the installation failed"));
}

// A machine without torch, whose virtual environments use `script` as pip; the arguments are logged to
// pip.log.
class ProjectDevInstallsTorch : public ProjectDev {
 protected:
  Outcome build_with_pip(const std::string& script) {
    stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
    stand_in("pip", "echo \"$@\" >> " + (dir_ / "pip.log") + "\n" + script);
    stand_in("python3",
             "[ \"$1\" = - ] && exit 1\nmkdir -p .venv/bin && cp " + (dir_ / "bin/pip") + " .venv/bin/pip");
    return dev({"build"}, {"PENSTOCK_TORCH="});
  }
  std::string asked() const { return slurp(dir_ / "pip.log"); }
};

TEST_F(ProjectDevInstallsTorch, UsesCpuBuildIfAvailable) {
  const Outcome outcome = build_with_pip("exit 0");
  EXPECT_THAT(outcome.err, HasSubstr("installing torch 2.13.0+cpu into .venv if pip finds it (0.2 GB)"));
  EXPECT_THAT(asked(), HasSubstr(" torch==2.13.0+cpu\n"));
  EXPECT_THAT(asked(), Not(HasSubstr("torch==2.13.0\n")));
  // The stand-in for pip installed nothing.
  EXPECT_THAT(outcome.err, HasSubstr("the installed torch is not 2.13.0"));
}

TEST_F(ProjectDevInstallsTorch, AnnouncesSizeOfCudaBuild) {
  const Outcome outcome = build_with_pip(
      "case \"$*\" in *+cpu) echo 'ERROR: No matching distribution found for torch==2.13.0+cpu' >&2;; esac\n"
      "exit 1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("pip finds no CPU build; installing torch 2.13.0, which for Linux is the CUDA build: "
                        "2.7 GB to fetch"));
  EXPECT_THAT(outcome.err, HasSubstr("PIP_EXTRA_INDEX_URL"));
  EXPECT_THAT(asked(), testing::ContainsRegex("torch==2.13.0.cpu\n.* torch==2.13.0\n"));
  EXPECT_THAT(outcome.err, HasSubstr("hint: install it elsewhere and set PENSTOCK_TORCH"));
}

// If a CPU build exists but cannot be downloaded, the large build must not be downloaded instead.
TEST_F(ProjectDevInstallsTorch, ShowsReasonOfFailedCpuInstall) {
  const Outcome outcome = build_with_pip("echo 'ERROR: No space left on device' >&2; exit 1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("No space left on device"));
  EXPECT_THAT(asked(), Not(HasSubstr("torch==2.13.0\n")));
  EXPECT_THAT(outcome.err, HasSubstr("hint: install it elsewhere and set PENSTOCK_TORCH"));
}

// The slow tier simulates other processors through the environment variables of libtorch's libraries.
TEST_F(ProjectDev, TestsWithKernelsOfOtherProcessor) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "exit 0");
  stand_in("ninja", "exit 0");
  stand_in("ctest", "echo \"$ATEN_CPU_CAPABILITY $ONEDNN_MAX_CPU_ISA $MKL_CBWR: $@\"");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const std::vector<std::string> settings{"PENSTOCK_TORCH=" + (dir_ / "torch")};
  EXPECT_THAT(dev({"test", "--cpu", "default", "Gpt"}, settings).out,
              testing::MatchesRegex("default SSE41 COMPATIBLE: .* -LE slow .*-R Gpt\n"));
  EXPECT_THAT(dev({"test", "--cpu", "avx2"}, settings).out, testing::StartsWith("avx2 AVX2 AVX2: "));
}

// If one of these parts fails, so does the command.
TEST_F(ProjectDev, SlowTierIncludesOtherKernelsAndSanitizers) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  for (const char* name : {"ninja", "clang++", "clang++-16", "clang++-19"}) stand_in(name, "exit 0");
  stand_in("cmake", "echo \"$@\" >> " + (dir_ / "cmake.log"));
  const std::string ctest = "line=\"$ATEN_CPU_CAPABILITY: $*\"\necho \"$line\"\n";
  stand_in("ctest", ctest);
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const std::vector<std::string> settings{"PENSTOCK_TORCH=" + (dir_ / "torch"), "ATEN_CPU_CAPABILITY="};
  const Outcome outcome = dev({"test", "--slow"}, settings);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> runs = lines_of(outcome.out);
  const auto expect_run = [&](const std::string& kernels, const std::string& preset,
                              const std::string& selection) {
    EXPECT_THAT(runs,
                testing::Contains(testing::AllOf(testing::StartsWith(kernels + ": "),
                                                 HasSubstr("/build/" + preset + " "), HasSubstr(selection))));
  };
  expect_run("", "release", " -L slow ");
  expect_run("default", "release", " -LE slow|case ");
  expect_run("avx2", "release", " -LE slow|case ");
  expect_run("", "thread", " -L sanitize ");
  expect_run("", "address-undefined", " -L sanitize ");
  const std::string configured = slurp(dir_ / "cmake.log");
  EXPECT_THAT(configured, HasSubstr("--preset thread "));
  EXPECT_THAT(configured, HasSubstr("--preset address-undefined "));
  for (const char* part : {"default:*", "*/build/thread*", "*/build/address-undefined*"}) {
    stand_in("ctest", ctest + "case $line in " + part + ") exit 8;; esac");
    EXPECT_NE(dev({"test", "--slow"}, settings).code, 0) << part;
  }
}

TEST_F(ProjectDev, PackageReportsSizes) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  for (const char* name : {"cmake", "emcmake", "ninja"}) stand_in(name, "exit 0");
  stand_in("cpack",
           "for last in \"$@\"; do :; done; mkdir -p $last && head -c 2048 /dev/zero > $last/penstock.deb");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const Outcome outcome = dev({"package"}, {"PENSTOCK_TORCH=" + (dir_ / "torch")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2.0KB penstock.deb\n"));
  EXPECT_THAT(outcome.err, HasSubstr("the packages are in build/packages"));
}

// A changed source is checked itself, a changed header through a source that includes it. Headers of tests
// are included by their path in tests/ or, in their own folder, by their name.
TEST_F(ProjectDev, LintsWhatChanged) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "exit 0");
  stand_in("clang-tidy", "for file in \"$@\"; do :; done; echo checked $file");
  stand_in(
      "git",
      "case $1 in rev-parse) [ \"$4\" = 'base^{commit}' ];;"
      " diff) printf 'src/a.cpp\\nexamples/e.cpp\\ninclude/penstock/m/h.h\\nsrc/notes.txt\\ntests/m/t.cpp\\n"
      "tests/support/s.h\\ntests/m/own.h\\ntests/m/unused.h\\ntests/project/consumers/c.cpp\\n';; "
      "ls-files) ;; esac");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  std::filesystem::create_directories(dir_ / "src/m");
  std::filesystem::create_directories(dir_ / "tools");
  std::filesystem::create_directories(dir_ / "tests/m");
  std::ofstream(dir_ / "src/m/user.cpp") << "#include <penstock/m/h.h>\n";
  std::ofstream(dir_ / "tests/m/x.cpp") << "#include \"support/s.h\"\n";
  std::ofstream(dir_ / "tests/m/y.cpp") << "#include \"own.h\"\n#include \"support/s.h\"\n";
  const std::vector<std::string> settings{"PENSTOCK_TORCH=" + (dir_ / "torch"), "PENSTOCK_JOBS=1"};
  const Outcome outcome = dev({"lint", "--changed", "base"}, settings);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "checked examples/e.cpp\nchecked src/a.cpp\nchecked src/m/user.cpp\nchecked tests/m/t.cpp\n"
            "checked tests/m/x.cpp\nchecked tests/m/y.cpp\n");
  EXPECT_EQ(dev({"lint", "--changed", "nowhere"}, settings).code, 2);
}

// The exit code 77 lets ctest skip the check; CI must not skip it.
TEST_F(ProjectDev, OtherFormatterIsErrorOnlyInCi) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  for (const char* name : {"clang-format", "clang-format-14"})
    stand_in(name, "echo clang-format version 99.0");
  EXPECT_EQ(dev({"format", "--check"}, {"CI="}).code, 77);
  EXPECT_EQ(dev({"format", "--check"}, {"CI=true"}).code, 1);
}

TEST_F(ProjectDev, NamesSkippedTests) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "exit 0");
  stand_in("ninja", "exit 0");
  stand_in(
      "ctest",
      "while [ \"$1\" != --output-junit ]; do shift; done; mkdir -p \"$(dirname \"$2\")\"\n"
      "cat >\"$2\" <<'END'\n"
      "<testsuite><testcase name=\"fine\"/><testcase name=\"program\"><skipped/>\n"
      "<system-out>[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] Suite.Case\n</system-out></testcase>\n"
      "<testcase name=\"Suite.Other\"><skipped/></testcase></testsuite>\nEND\nexit 8");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const Outcome outcome = dev({"test"}, {"PENSTOCK_TORCH=" + (dir_ / "torch")});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("dev: skipped 2 tests: Suite.Other, program (Suite.Case)\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("dev: error")));
  const Outcome strict =
      dev({"test"}, {"PENSTOCK_TORCH=" + (dir_ / "torch"), "PENSTOCK_ALLOWED_SKIPS=Suite"});
  EXPECT_EQ(strict.code, 1);
  EXPECT_THAT(strict.err, HasSubstr("must not be skipped here: program (Suite.Case)\n"));
}

TEST_F(ProjectDev, TestsTorchFreeHalfWithoutLibtorch) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "echo \"$@\" >> " + (dir_ / "cmake.log"));
  for (const char* name : {"ninja", "ctest", "clang++-99"}) stand_in(name, "exit 0");
  const std::string missing = "PENSTOCK_TORCH=" + (dir_ / "missing");
  EXPECT_NE(dev({"test"}, {missing}).code, 0);
  EXPECT_EQ(dev({"test", "--plan"}, {missing}).code, 0);
  EXPECT_EQ(dev({"test", "--clang"}, {missing, "PENSTOCK_CLANG=clang++-99"}).code, 0);
  const std::string calls = slurp(dir_ / "cmake.log");
  EXPECT_THAT(calls, HasSubstr("--preset plan"));
  EXPECT_THAT(calls, HasSubstr("--preset clang-plan"));
  EXPECT_THAT(calls, Not(HasSubstr("missing")));
}

TEST_F(ProjectDev, BuildsWithOtherClang) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "echo \"$@\" >> " + (dir_ / "cmake.log"));
  stand_in("ninja", "exit 0");
  stand_in("clang++-99", "exit 0");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const std::string torch = "PENSTOCK_TORCH=" + (dir_ / "torch");
  EXPECT_EQ(dev({"build", "clang"}, {torch, "PENSTOCK_CLANG=clang++-99"}).code, 0);
  EXPECT_THAT(slurp(dir_ / "cmake.log"),
              testing::AllOf(HasSubstr("--preset clang -B build/clang-clang++-99 "),
                             HasSubstr("-DCMAKE_CXX_COMPILER=clang++-99")));
  EXPECT_EQ(dev({"build", "clang"}, {torch, "PENSTOCK_CLANG=no-such-clang"}).code, 1);
}

TEST_F(ProjectDev, BuildsWithFastCompilerUnlessOneIsChosen) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "echo \"$@\" >> " + (dir_ / "cmake.log"));
  for (const char* name : {"ninja", "clang++-19", "g++-99"}) stand_in(name, "exit 0");
  std::filesystem::create_directories(dir_ / "torch/share/cmake/Torch");
  const std::string torch = "PENSTOCK_TORCH=" + (dir_ / "torch");
  const auto configuration = [&](const std::vector<std::string>& words, const std::string& compiler) {
    std::filesystem::remove(dir_ / "cmake.log");
    EXPECT_EQ(dev(words, {torch, "CXX=" + compiler}).code, 0);
    return slurp(dir_ / "cmake.log");
  };
  EXPECT_THAT(configuration({"build"}, ""),
              testing::AllOf(HasSubstr("--preset release "), HasSubstr(" -DCMAKE_CXX_COMPILER=clang++-19")));
  EXPECT_THAT(configuration({"build"}, "g++-99"), Not(HasSubstr("COMPILER")));
  EXPECT_THAT(configuration({"build", "thread"}, ""), Not(HasSubstr("COMPILER")));
}

TEST_F(ProjectDev, BuildsOnlyGivenTargets) {
  stand_in("dpkg-query", "for p in \"$@\"; do echo \"ii $p\"; done");
  stand_in("cmake", "exit 0");
  stand_in("ninja", "echo \"$@\" >> " + (dir_ / "ninja.log"));
  const auto built = [&](const std::vector<std::string>& words) {
    std::filesystem::remove(dir_ / "ninja.log");
    EXPECT_EQ(dev(words, {"PENSTOCK_JOBS=3"}).code, 0);
    return slurp(dir_ / "ninja.log");
  };
  EXPECT_THAT(built({"build", "plan", "one_test", "other_test"}),
              testing::EndsWith("-C build/plan -j 3 one_test other_test\n"));
  EXPECT_THAT(built({"build", "plan"}), testing::EndsWith("-C build/plan -j 3\n"));
}

// A build of two steps, which ninja announces in the format that it is told.
TEST_F(ProjectDev, BuildShowsStepsOnTerminal) {
  stand_in("ninja",
           "step() { printf '\\002%s/2\\003 %s\\n' \"$1\" \"$2\"; }\n"
           "step 1 'Building CXX object src/one.o'\n[ \"$1\" = -n ] || echo 'one.cpp: warning: odd'\n"
           "step 2 'Linking CXX executable bin/one'\n[ \"$1\" = -n ] || exit ${NINJA_CODE:-0}\n");
  const auto build = [&](const std::string& code) {
    const char* path = std::getenv("PATH");
    return run_on_terminal({"python3", dir_ / "tools/dev/build_progress.py", "-j", "1"},
                           {"PATH=" + (dir_ / "bin") + ":" + path, "NINJA_CODE=" + code});
  };
  const Outcome outcome = build("0");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  for (const char* text : {"dev: step 1 of 2, 0 s", "one.cpp: warning: odd\r\n", "dev: step 2 of 2, 0 s",
                           "dev: built in 0 s\r\n"})
    EXPECT_THAT(outcome.out, HasSubstr(text));
  const Outcome failed = build("3");
  EXPECT_EQ(failed.code, 3);
  EXPECT_THAT(failed.out, Not(HasSubstr("built")));
}

// The text of a GitHub release, and the checks of its tag.
TEST_F(ProjectDev, PrintsReleaseNotesOfMatchingTag) {
  const auto notes = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"python3", dir_ / "tools/dev/release_notes.py"});
    return run_program(words);
  };
  std::ofstream(dir_ / "CMakeLists.txt") << "project(penstock VERSION 1.2.0 LANGUAGES CXX)\n";
  const auto changelog = [&](const std::string& heading) {
    std::ofstream(dir_ / "CHANGELOG.md")
        << "# Changelog\n\n## [Unreleased]\n\n- later\n\n" + heading +
               "\n\n### Added\n\n- [one](docs/one.md#a), [two](#two), "
               "[three](https://example.com/)\n\n## [1.1.0] - 2026-01-02\n\n- before\n";
  };
  changelog("## [1.2.0] - 2026-02-03");
  const Outcome plain = notes({"v1.2.0"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.out, "### Added\n\n- [one](docs/one.md#a), [two](#two), [three](https://example.com/)\n");
  EXPECT_EQ(
      notes({"v1.2.0", "https://host/tree"}).out,
      "### Added\n\n- [one](https://host/tree/docs/one.md#a), [two](https://host/tree/CHANGELOG.md#two), "
      "[three](https://example.com/)\n");
  for (const char* const tag : {"v1.1.0", "1.2.0", "v1.2.0-rc1"}) {
    const Outcome wrong = notes({tag});
    EXPECT_EQ(wrong.code, 1) << tag;
    EXPECT_THAT(wrong.err, HasSubstr("does not match version 1.2.0 of CMakeLists.txt"));
  }
  for (const char* const heading : {"## [1.2.0]", "## [1.2.0] - soon", "## [1x2.0] - 2026-02-03"}) {
    changelog(heading);
    const Outcome missing = notes({"v1.2.0"});
    EXPECT_EQ(missing.code, 1) << heading;
    EXPECT_THAT(missing.err, HasSubstr("CHANGELOG.md has no entries for version 1.2.0\nhint: "));
  }
}

TEST_F(ProjectDev, BadUsageExitsWithTwo) {
  EXPECT_EQ(dev({"tset"}).code, 2);
  EXPECT_EQ(dev({"sanitize", "everything"}).code, 2);
  EXPECT_EQ(dev({"test", "--cpu", "abacus"}).code, 2);
  EXPECT_EQ(dev({"lint", "--everything"}).code, 2);
  EXPECT_THAT(dev({"tidy", "--everything"}).err, HasSubstr("unknown argument '--everything' of lint"));
  EXPECT_EQ(dev({"help"}).code, 0);
  EXPECT_THAT(dev({"help"}).out, HasSubstr("usage: ./dev COMMAND"));
}

TEST(ProjectMutate, SelectsMutantsBySeedAndSkipsEquivalentOnes) {
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
