// Conventions that all commands share, tested through the real binary.
#include "support/program.h"

#include <penstock/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace penstock {
namespace {

using test::Outcome;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// The commands listed in the help.
std::vector<std::string> listed_commands() {
  const std::string help = test::penstock({"--help"}).out;
  const std::string rows = help.substr(help.find("Commands:\n") + 10);
  std::vector<std::string> names;
  const std::regex row("(^|\n)  ([a-z]+) ");
  for (std::sregex_iterator it(rows.begin(), rows.end(), row), end; it != end; ++it)
    names.push_back((*it)[2]);
  return names;
}

TEST(ToolCli, VersionMatchesLibrary) {
  const Outcome outcome = test::penstock({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "penstock " + version() + "\n");
  EXPECT_EQ(test::penstock({"--version", "--json"}).out, "{\"penstock\":\"" + version() + "\"}\n");
  const Outcome extra = test::penstock({"--version", "--jsn"});
  EXPECT_EQ(extra.code, 2);
  EXPECT_THAT(extra.err, HasSubstr("--version does not take '--jsn'"));
}

TEST(ToolCli, HelpListsExitCodesAndEnvironment) {
  EXPECT_THAT(
      test::penstock({"--help"}).out,
      testing::AllOf(HasSubstr("\nExit code: 0 success, 1 failure or a negative result, 2 incorrect usage, "
                               "130 or 143 stopped by Ctrl-C or SIGTERM.\n"),
                     HasSubstr("NO_COLOR"), HasSubstr("PENSTOCK_LOG")));
}

TEST(ToolCli, EveryCommandHasHelpWithExample) {
  const std::vector<std::string> names = listed_commands();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const Outcome outcome = test::penstock({name, "--help"});
    EXPECT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("Example:\n  penstock " + name)) << name;
    EXPECT_THAT(outcome.out, HasSubstr("--json")) << name;
    EXPECT_EQ(test::penstock({"help", name}).out, outcome.out);
  }
}

// Scripts depend on these options.
TEST(ToolCli, KeepsDocumentedOptions) {
  const std::string over =
      "--ranks --pp --tp --dp --schedule --stages-per-rank --microbatches --split --stages --balance "
      "--backend --device ";
  const std::map<std::string, std::string> promised{
      {"schedule", "--list --ranks --stages-per-rank --microbatches --lowered --as -o"},
      {"validate", "--microbatches"},
      {"simulate", "--ranks --stages-per-rank --microbatches --costs --as"},
      {"plan", "--ranks --microbatches --costs --model --memory-cap"},
      {"studio", "--port --no-open --output"},
      {"inspect", "--split --stages"},
      {"eval", over + "--input --output --quiet --verbose"},
      {"train", over + "--data --no-shuffle --steps --batch --seq --optimizer --lr --weight-decay --loss "
                       "--loss-output --grad-clip --seed --sharding --checkpoint --checkpoint-every --resume "
                       "--max-restarts --log-json --timeline --trace --config --dry-run --quiet --verbose"},
      {"run", "--ranks --nodes --node-rank --rendezvous --max-restarts --log-dir --quiet --verbose"},
      {"checkpoint", ""},
      {"doctor", ""}};
  for (const auto& [command, options] : promised) {
    const std::string help = test::penstock({command, "--help"}).out;
    std::istringstream words(options + " --json --help");
    for (std::string option; words >> option;) {
      EXPECT_TRUE(std::regex_search(help, std::regex("\n  (-[a-z],)?" + option + "[ ,\n]")))
          << command << " " << option;
    }
  }
  const std::string train = test::penstock({"train", "--help"}).out;
  for (const char* choices : {"--device cpu|cuda|auto", "--optimizer adamw|adam|sgd", "--balance params|time",
                              "--loss cross_entropy|mse", "--sharding none|optimizer|gradients|full"})
    EXPECT_THAT(train, HasSubstr(choices));
}

TEST(ToolCli, HasSameCommandsAsItsPage) {
  const std::string page = test::slurp(PENSTOCK_SOURCE_DIR "/docs/tool.md");
  const std::vector<std::string> names = listed_commands();
  const std::regex line("\nbuild/release/bin/penstock ([a-z]+) ");
  std::set<std::string> shown;
  for (std::sregex_iterator it(page.begin(), page.end(), line), end; it != end; ++it) shown.insert((*it)[1]);
  EXPECT_THAT(shown, testing::UnorderedElementsAreArray(names));
}

TEST(ToolCompletion, OffersCommandsOptionsAndValues) {
  const auto complete = [](std::vector<std::string> words) {
    words.insert(words.begin(), "__complete");
    const Outcome outcome = test::penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(complete({"sch"}), "schedule\n");
  EXPECT_EQ(complete({"schedule", "--micro"}), "--microbatches\n");
  EXPECT_EQ(complete({"schedule", "1F1B", "--as", "s"}), "svg\n");
  EXPECT_EQ(complete({"train", "--optimizer", "s"}), "sgd\n");  // an option of penstock-torch
  EXPECT_EQ(complete({"completion", ""}), "bash\nzsh\nfish\n");
  EXPECT_EQ(complete({"schedule", "1F1B", "--as=s"}), "--as=svg\n");
  EXPECT_EQ(complete({"train", "--dry"}), "--dry-run\n");
  EXPECT_EQ(complete({"schedule", "--output", "x"}), "");  // the shell offers files
  EXPECT_EQ(complete({"schedule", "1F1"}), "1F1B\n");
  EXPECT_EQ(complete({"schedule", "1F1B", "Int"}), "");  // it takes one name
  EXPECT_EQ(complete({"schedule", "--ranks", "4", "GP"}), "GPipe\n");
  EXPECT_EQ(complete({"schedule", "--as", "=", "svg", "GP"}), "GPipe\n");  // --as=svg, split by bash
  EXPECT_EQ(complete({"simulate", "1F1B", "a"}), "all\n");
  EXPECT_EQ(complete({"train", "model.pt2", "--schedule", "Dual"}), "DualPipeV\n");
  EXPECT_EQ(complete({"train", "--schedule=Au"}), "--schedule=Auto\n");
  EXPECT_EQ(complete({"plan", "--schedules", "1F1B,Dual"}), "1F1B,DualPipeV\n");
  EXPECT_EQ(complete({"eval", "--schedule", "GP"}), "GPipe\n");
  EXPECT_EQ(complete({"checkpoint", ""}), "inspect\nverify\nconvert\n");
  EXPECT_EQ(complete({"checkpoint", "verify", ""}), "");
  EXPECT_EQ(complete({"help", "sch"}), "schedule\n");
  EXPECT_EQ(complete({"he"}), "help\n");
  EXPECT_EQ(complete({"--v"}), "--version\n");
  EXPECT_EQ(complete({"-"}), "--help\n--version\n-h\n");
  EXPECT_THAT(complete({"schedule", "-"}), testing::AllOf(HasSubstr("--output\n"), HasSubstr("\n-h\n-o\n")));
  EXPECT_EQ(complete({"run", "--ranks", "2", "--", "program", "-"}), "");  // options of the program
  EXPECT_EQ(complete({"nothing", "--"}), "");
  EXPECT_THAT(test::penstock({"completion", "bash", "--json"}).out, StartsWith("{\"script\":\"# Completion"));
}

TEST(ToolCli, DrawsPicturesOfDocuments) {
  EXPECT_EQ(test::penstock({"simulate", "ZB1P", "--ranks", "4", "--microbatches", "6", "--as", "svg"}).out,
            test::slurp(PENSTOCK_SOURCE_DIR "/docs/images/zb1p.svg"));
  EXPECT_EQ(test::penstock({"simulate", "1F1B", "--ranks", "4", "--microbatches", "6", "--as", "svg"}).out,
            test::slurp(PENSTOCK_SOURCE_DIR "/docs/images/1f1b.svg"));
}

TEST(ToolCli, UnknownCommandSuggestsNearest) {
  const Outcome outcome = test::penstock({"versoin"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(outcome.err,
            "penstock: error: unknown command 'versoin'\nhint: did you mean penstock version?\n");
  EXPECT_EQ(test::penstock({}).code, 2);
  EXPECT_THAT(test::penstock({"--frobnicate"}).err, HasSubstr("unknown option '--frobnicate'"));
}

TEST(ToolCli, UnknownOptionSuggestsNearest) {
  const Outcome outcome = test::penstock({"version", "--jsn"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "penstock: error: version does not take '--jsn'\nhint: did you mean --json?\n");
}

TEST(ToolCli, ReportsFullDisk) {
  const Outcome outcome = test::run_program({"sh", "-c", PENSTOCK_TOOL " --help > /dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("penstock: error: cannot write to standard output"));
}

TEST(ToolCli, DoesNotLoadLibtorch) {
  const Outcome outcome = test::run_program({"ldd", PENSTOCK_TOOL});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("libc.so"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("torch")));
}

TEST(ToolCli, StartsTorchProgramNextToItself) {
  const Outcome outcome = test::penstock({"version", "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("{\"penstock\":\"" + version() +
                                      "\",\"libtorch\":\"" PENSTOCK_BUILT_WITH_TORCH "."));
}

TEST(ToolCli, TrainStartsRanks) {
  const Outcome outcome = test::penstock({"train", "--ranks", "3", "--json", "--steps", "1", "--layers", "1",
                                          "--width", "8", "--heads", "1", "--seq", "4", "--batch", "4"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("{\"step\":1,"));
  EXPECT_EQ(test::penstock({"train", "--ranks", "0"}).code, 2);
}

TEST(ToolCli, EvalAndRunCanBeQuietOrVerbose) {
  const test::TempDir dir;
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp", output = dir / "y.safetensors";
  const std::vector<std::string> eval{"eval",     archive + ".pt2", "--input", archive + ".safetensors",
                                      "--output", output,           "--ranks", "2"};
  const auto with = [](std::vector<std::string> words, const std::string& flag) {
    words.insert(words.begin() + 1, flag);
    return test::penstock(words);
  };
  const Outcome quiet = with(eval, "-q");
  EXPECT_EQ(quiet.code, 0) << quiet.err;
  EXPECT_EQ(quiet.out, "written to " + output + "\n");
  EXPECT_THAT(with(eval, "--verbose").err, HasSubstr("penstock[1] info: joined a world of 2\n"));
  const std::vector<std::string> run{"run", "--ranks", "1", "--", "printenv", "PENSTOCK_LOG"};
  EXPECT_EQ(with(run, "-v").out, "[0] info\n");
  const std::vector<std::string> logged{"run", "--log-dir", dir / "logs", "true"};
  EXPECT_EQ(with(logged, "--quiet").out, "");
  for (const auto& words : {eval, run}) {
    const Outcome both = with(words, "-qv");
    EXPECT_EQ(both.code, 2);
    EXPECT_THAT(both.err, HasSubstr("--quiet and --verbose are mutually exclusive"));
  }
}

TEST(ToolCli, ReportsMissingTorchProgram) {
  const test::TempDir dir;
  std::filesystem::copy(PENSTOCK_TOOL, dir / "penstock");
  const Outcome outcome = test::run_program({dir / "penstock", "version"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("penstock: error: penstock version needs libtorch"));
  EXPECT_THAT(outcome.err, HasSubstr("\nhint: "));
}

// A copy of `penstock` next to a stand-in for penstock-torch, which prints LD_LIBRARY_PATH.
class ToolLibtorch : public testing::Test {
 protected:
  ToolLibtorch() {
    std::filesystem::copy(PENSTOCK_TOOL, dir_ / "penstock");
    write("penstock-torch", "#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\n");
    std::filesystem::permissions(dir_ / "penstock-torch", std::filesystem::perms::owner_all);
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  Outcome version(const std::string& torch, const std::string& library_path = "") {
    return test::run_program({dir_ / "penstock", "version"},
                             {"PENSTOCK_TORCH=" + torch, "LD_LIBRARY_PATH=" + library_path});
  }
  test::TempDir dir_;
};

TEST_F(ToolLibtorch, IsTheOneOfTheBuildByDefault) {
  EXPECT_EQ(version("").out, "\n");
  EXPECT_EQ(version("", "/some/where").out, "/some/where\n");
}

TEST_F(ToolLibtorch, IsSelectedByVariable) {
  write("torch/lib/libtorch_cpu.so", "");
  const std::string libraries = dir_ / "torch/lib";
  EXPECT_EQ(version(dir_ / "torch").out, libraries + "\n");
  EXPECT_EQ(version(dir_ / "torch", "/some/where").out, libraries + ":/some/where\n");
  write("torch/share/cmake/Torch/TorchConfigVersion.cmake",
        "set(PACKAGE_VERSION \"" PENSTOCK_BUILT_WITH_TORCH ".1\")\n");
  EXPECT_EQ(version(dir_ / "torch").out, libraries + "\n");
}

TEST_F(ToolLibtorch, OfOtherVersionOrMissingIsAnError) {
  const Outcome missing = version(dir_ / "torch");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("it has no lib/libtorch_cpu.so\nhint: set PENSTOCK_TORCH to"));
  write("torch/lib/libtorch_cpu.so", "");
  write("torch/share/cmake/Torch/TorchConfigVersion.cmake", "set(PACKAGE_VERSION \"2.12.1\")\n");
  const Outcome old = version(dir_ / "torch");
  EXPECT_EQ(old.code, 1);
  EXPECT_THAT(old.err, HasSubstr("is libtorch 2.12.1, but penstock needs " PENSTOCK_BUILT_WITH_TORCH
                                 "\nhint: set PENSTOCK_TORCH to"));
}

TEST(ToolCli, TorchProgramDoesNotRunPlanCommands) {
  EXPECT_EQ(test::run_program({PENSTOCK_TOOL "-torch", "no-such"}).code, 2);
}

}  // namespace
}  // namespace penstock
