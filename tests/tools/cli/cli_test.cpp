// Conventions that all commands share, tested through the real binary.
#include "support/program.h"

#include <penstock/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
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
      {"eval", over + "--input --output"},
      {"train", over + "--data --no-shuffle --steps --batch --seq --optimizer --lr --weight-decay --loss "
                       "--loss-output --grad-clip --seed --sharding --checkpoint --checkpoint-every --resume "
                       "--max-restarts --log-json --timeline --trace --config"},
      {"run", "--ranks --nodes --node-rank --rendezvous --max-restarts --log-dir"},
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
  for (const char* choices : {"--device cpu|cuda|auto", "--optimizer adamw|sgd", "--balance params|time",
                              "--loss cross_entropy|mse", "--sharding none|full"})
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
  EXPECT_EQ(complete({"train", "--optimizer", ""}), "adamw\nsgd\n");  // an option of penstock-torch
  EXPECT_EQ(complete({"completion", ""}), "bash\nzsh\nfish\n");
  EXPECT_EQ(complete({"schedule", "--output", "x"}), "");  // the shell offers files
  EXPECT_EQ(complete({"nothing", "--"}), "");
}

TEST(ToolCompletion, WorksInBash) {
  const std::string script =
      "source <(" PENSTOCK_TOOL " completion bash); COMP_WORDS=(" PENSTOCK_TOOL
      " schedule --stages); COMP_CWORD=2; _penstock; echo \"${COMPREPLY[@]}\"; complete -p penstock";
  const Outcome outcome = test::run_program({"bash", "-c", script});
  EXPECT_EQ(outcome.out, "--stages-per-rank\ncomplete -o default -F _penstock penstock\n") << outcome.err;
}

TEST(ToolCli, DrawsPictureOfReadme) {
  EXPECT_EQ(test::penstock({"simulate", "ZB1P", "--ranks", "4", "--microbatches", "6", "--as", "svg"}).out,
            test::slurp(PENSTOCK_SOURCE_DIR "/docs/images/zb1p.svg"));
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
  EXPECT_THAT(outcome.out, StartsWith("{\"penstock\":\"" + version() + "\",\"libtorch\":\"2.13."));
}

TEST(ToolCli, TrainStartsRanks) {
  const Outcome outcome = test::penstock({"train", "--ranks", "3", "--json", "--steps", "1", "--layers", "1",
                                          "--width", "8", "--heads", "1", "--seq", "4", "--batch", "4"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("{\"step\":1,"));
  EXPECT_EQ(test::penstock({"train", "--ranks", "0"}).code, 2);
}

TEST(ToolCli, ReportsMissingTorchProgram) {
  const test::TempDir dir;
  std::filesystem::copy(PENSTOCK_TOOL, dir / "penstock");
  const Outcome outcome = test::run_program({dir / "penstock", "version"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("penstock: error: penstock version needs libtorch"));
  EXPECT_THAT(outcome.err, HasSubstr("\nhint: "));
}

TEST(ToolCli, TorchProgramDoesNotRunPlanCommands) {
  EXPECT_EQ(test::run_program({PENSTOCK_TOOL "-torch", "no-such"}).code, 2);
}

}  // namespace
}  // namespace penstock
