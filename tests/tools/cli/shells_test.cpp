// The completion scripts in the real shells. Skipped where a shell is not installed.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kPath =
    "PATH=" + std::filesystem::path(PENSTOCK_TOOL).parent_path().string() + ":" + std::getenv("PATH");

//! A directory with a file that no option or command starts with.
std::string directory_with_file(const TempDir& dir) {
  std::ofstream(dir / "zz_model.csv") << "";
  return dir.path();
}

TEST(ToolShells, BashCompletesCommandsOptionsValuesAndFiles) {
  // `complete -o default` makes readline offer files if the function offers nothing.
  const auto complete = [](const std::string& words, int index) {
    const Outcome outcome =
        run_program({"bash", "-c",
                     "source <(penstock completion bash); COMP_WORDS=(" + words +
                         "); COMP_CWORD=" + std::to_string(index) + "; _penstock; echo \"${COMPREPLY[@]}\""},
                    {kPath});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(complete("penstock sch", 1), "schedule\n");
  EXPECT_EQ(complete("penstock train --dry", 2), "--dry-run\n");
  EXPECT_EQ(complete("penstock run --verb", 2), "--verbose\n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as s", 4), "svg\n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as = s", 5), "svg\n");  // --as=s, split by readline
  EXPECT_EQ(complete("penstock completion ''", 2), "bash zsh fish\n");
  EXPECT_EQ(complete("penstock schedule GP", 2), "GPipe\n");
  EXPECT_EQ(complete("penstock train --schedule Dual", 3), "DualPipeV\n");
  EXPECT_EQ(complete("penstock train --schedule = Dual", 4), "DualPipeV\n");
  EXPECT_EQ(complete("penstock checkpoint ''", 2), "inspect verify convert\n");
  EXPECT_EQ(complete("penstock help sch", 2), "schedule\n");
  EXPECT_EQ(complete("penstock --v", 1), "--version\n");
  EXPECT_THAT(complete("penstock schedule -", 2), HasSubstr(" -o"));
  EXPECT_EQ(complete("penstock validate zz", 2), "\n");
  EXPECT_EQ(
      run_program({"bash", "-c", "source <(penstock completion bash); complete -p penstock"}, {kPath}).out,
      "complete -o default -F _penstock penstock\n");
}

TEST(ToolShells, FishCompletesCommandsOptionsValuesAndFiles) {
  if (!has_program("fish")) GTEST_SKIP() << "fish is not installed";
  const TempDir dir;
  const auto complete = [&](const std::string& line) {
    const Outcome outcome = run_program(
        {"fish", "--no-config", "-c",
         "cd " + directory_with_file(dir) + "; penstock completion fish | source; complete --do-complete='" +
             line + "'"},
        {kPath, "HOME=" + dir.path(), "XDG_CONFIG_HOME=" + dir.path(), "XDG_DATA_HOME=" + dir.path()});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(complete("penstock sch"), "schedule\n");
  EXPECT_EQ(complete("penstock train --dry"), "--dry-run\n");
  EXPECT_EQ(complete("penstock eval --qui"), "--quiet\n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as s"), "svg\n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as=s"), "--as=svg\n");
  EXPECT_EQ(complete("penstock completion "), "bash\nfish\nzsh\n");
  EXPECT_EQ(complete("penstock schedule GP"), "GPipe\n");
  EXPECT_EQ(complete("penstock train --schedule Dual"), "DualPipeV\n");
  EXPECT_EQ(complete("penstock checkpoint "), "convert\ninspect\nverify\n");
  EXPECT_EQ(complete("penstock help sch"), "schedule\n");
  EXPECT_EQ(complete("penstock --v"), "--version\n");
  EXPECT_THAT(complete("penstock schedule -"), HasSubstr("-o\n"));
  EXPECT_THAT(complete("penstock validate zz"), HasSubstr("zz_model.csv"));
  EXPECT_THAT(complete("penstock "), AllOf(HasSubstr("train\n"), Not(HasSubstr("zz_model.csv"))));
}

//! The command line of an interactive zsh after the user has typed `line` and pressed the tab key.
std::string completed_in_zsh(const TempDir& dir, const std::string& load, const std::string& line) {
  std::ofstream(dir / "drive.zsh")
      << "zmodload zsh/zpty || exit 77\n"
         "zpty shell zsh -f -i\n"
         "zpty -w shell 'PS1=; cd "
      << directory_with_file(dir) << "; " << load
      << "; show() { print -r -- \"<$BUFFER>\"; BUFFER=; zle accept-line }; zle -N show; bindkey ^X show; "
         "print REA\"\"DY'\n"
         "zpty -r shell out '*READY*'\n"
         "zpty -w -n shell \"$1\"$'\\t\\x18'\n"
         "zpty -r shell out '*<*>*'\n"
         "print -r -- \"${${out##*<}%%>*}\"\n"
         "zpty -d shell\n";
  const Outcome outcome = run_program({"timeout", "60", "zsh", "-f", dir / "drive.zsh", line},
                                      {kPath, "HOME=" + dir.path(), "ZDOTDIR=" + dir.path(), "TERM=dumb"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  return outcome.out;
}

TEST(ToolShells, ZshCompletesCommandsOptionsValuesAndFiles) {
  if (!has_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  const TempDir dir;
  const auto complete = [&](const std::string& line) {
    return completed_in_zsh(dir, "autoload -U compinit; compinit -u -D; source <(penstock completion zsh)",
                            line);
  };
  EXPECT_EQ(complete("penstock sch"), "penstock schedule \n");
  EXPECT_EQ(complete("penstock train --dry"), "penstock train --dry-run \n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as s"), "penstock schedule 1F1B --as svg \n");
  EXPECT_EQ(complete("penstock schedule 1F1B --as=s"), "penstock schedule 1F1B --as=svg \n");
  EXPECT_EQ(complete("penstock completion b"), "penstock completion bash \n");
  EXPECT_EQ(complete("penstock schedule GP"), "penstock schedule GPipe \n");
  EXPECT_EQ(complete("penstock train --schedule Dual"), "penstock train --schedule DualPipeV \n");
  EXPECT_EQ(complete("penstock checkpoint ver"), "penstock checkpoint verify \n");
  EXPECT_EQ(complete("penstock help sch"), "penstock help schedule \n");
  EXPECT_EQ(complete("penstock --v"), "penstock --version \n");
  EXPECT_EQ(complete("penstock validate zz"), "penstock validate zz_model.csv \n");
}

// The install rules put the script into a directory of $fpath.
TEST(ToolShells, ZshLoadsInstalledScript) {
  if (!has_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  const TempDir dir;
  std::filesystem::create_directory(dir / "functions");
  std::ofstream(dir / "functions/_penstock") << penstock({"completion", "zsh"}).out;
  const std::string load = "fpath=(" + (dir / "functions") + " $fpath); autoload -U compinit; compinit -u -D";
  EXPECT_EQ(completed_in_zsh(dir, load, "penstock sch"), "penstock schedule \n");
  EXPECT_EQ(completed_in_zsh(dir, load, "penstock train --dry"), "penstock train --dry-run \n");
}

}  // namespace
}  // namespace penstock::test
