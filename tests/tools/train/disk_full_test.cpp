// Checkpoints on a disk that becomes full or read-only, or loses its directory during a run. The disk is a
// small one in a mount namespace, which needs root.
#include "tools/train/fault_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr int kNoDisk = 77;

struct DiskRun {
  Outcome outcome;  //!< of the shell; its exit code is that of `penstock train`
  std::vector<std::string> losses;
  std::string verified;  //!< the output of `checkpoint verify` afterwards
};

class ToolTrainDisk : public testing::Test {
 protected:
  //! Trains with its checkpoints on a disk of this many pages. When a line that contains `mark` is printed,
  //! the shell runs `deed`.
  DiskRun train(std::int64_t pages, const std::vector<std::string>& words, const std::string& mark = "\x01",
                const std::string& command = ":") {
    const std::string disk = dir_ / "disk", log = dir_ / "log", home = dir_.path();
    fs::create_directories(disk);
    std::string line = std::string(PENSTOCK_TOOL) +
                       " train --layers=2 --width=8 --heads=1 --seq=6 --batch=4 --microbatches=2 --sample=0 "
                       "--checkpoint=" +
                       disk + "/saved --log-json=" + log;
    for (const std::string& word : words) line += " " + word;
    const std::string script =
        "mount -t tmpfs -o size=" + std::to_string(4 * pages) + "k none " + disk + " || exit " +
        std::to_string(kNoDisk) + "\n{ " + line + "; echo $? > " + home +
        "/code; } | while read -r text; do\n" + "  echo \"$text\"\n  case \"$text\" in *" + mark + "*) " +
        command + ";; esac\ndone\n" + PENSTOCK_TOOL + " checkpoint verify " + disk + "/saved > " + home +
        "/verified 2>&1; echo \"exit $?\" >> " + home + "/verified\nls " + disk + "/saved >> " + home +
        "/verified\nexit $(cat " + home + "/code)";
    DiskRun run;
    run.outcome = run_program({"unshare", "-m", "true"});  // fails without root or inside a chroot
    if (run.outcome.code != 0) {
      run.outcome.code = kNoDisk;
      return run;
    }
    run.outcome = run_program({"unshare", "-m", "sh", "-c", script}, {"TMPDIR=" + home});
    run.losses = losses_of(log);
    run.verified = slurp(home + "/verified");
    return run;
  }
  // The number of pages of one checkpoint.
  std::int64_t pages_of(const std::string& checkpoint) {
    std::int64_t pages = 1;
    for (const auto& entry : fs::directory_iterator(checkpoint))
      pages += 1 + (static_cast<std::int64_t>(entry.file_size()) + 4095) / 4096;
    return pages;
  }

  TempDir dir_;
};

TEST_F(ToolTrainDisk, FullDiskStopsOrSkipsAndKeepsCompleteCheckpoints) {
  const FaultRun fault_free = run_with_faults("", {"--steps=8"}, dir_ / "fault_free");
  ASSERT_EQ(fault_free.outcome.code, 0) << fault_free.outcome.err;
  // Room for one and a half checkpoints: the second does not fit.
  const std::int64_t pages = pages_of(dir_ / "fault_free/saved/step-00000008") * 3 / 2;
  const std::vector<std::string> words{"--steps=8", "--checkpoint-every=2"};
  const DiskRun stops = train(pages, words);
  if (stops.outcome.code == kNoDisk) GTEST_SKIP() << "only root can mount a small disk";
  EXPECT_EQ(stops.outcome.code, 1) << stops.outcome.err;
  EXPECT_THAT(stops.outcome.err,
              AllOf(HasSubstr("step-00000004' was not written"), HasSubstr("No space left on device"),
                    HasSubstr("free space on that disk")));
  EXPECT_LT(stops.losses.size(), 8U);
  EXPECT_THAT(stops.verified,
              AllOf(HasSubstr("exit 0\n"), HasSubstr("step-00000002\n"), Not(HasSubstr("00000004"))));

  std::vector<std::string> warns = words;
  warns.push_back("--on-storage-error=warn");
  const DiskRun continued = train(pages, warns);
  EXPECT_EQ(continued.outcome.code, 0) << continued.outcome.err;
  EXPECT_THAT(continued.outcome.out,
              AllOf(HasSubstr("step-00000004' was not written"), HasSubstr("training continues"),
                    HasSubstr("checkpoint: " + (dir_ / "disk/saved/step-00000002"))));
  EXPECT_EQ(continued.losses, fault_free.losses);
  EXPECT_THAT(continued.verified, AllOf(HasSubstr("exit 0\n"), HasSubstr("step-00000002\n")));
}

TEST_F(ToolTrainDisk, ReadOnlyDiskStopsAndKeepsCompleteCheckpoints) {
  // When the second one is reported, the first is complete: two are never written concurrently.
  const DiskRun run = train(4000, {"--steps=1000000", "--checkpoint-every=40"}, "step-00000080",
                            "until mount -o remount,ro " + (dir_ / "disk") + " 2> /dev/null; do :; done");
  if (run.outcome.code == kNoDisk) GTEST_SKIP() << "only root can mount a small disk";
  EXPECT_EQ(run.outcome.code, 1);
  EXPECT_THAT(run.outcome.err, AllOf(HasSubstr("was not written"), HasSubstr("Read-only file system"),
                                     HasSubstr("use a directory that this user can write to")));
  EXPECT_THAT(run.verified, AllOf(HasSubstr("exit 0\n"), HasSubstr("\nstep-0")));
}

TEST_F(ToolTrainDisk, RemovedDirectoryStopsOrWarnsOnce) {
  const std::string gone = "rm -rf " + (dir_ / "disk/saved");
  const DiskRun stops = train(4000, {"--steps=1000000", "--checkpoint-every=40"}, "step-00000080", gone);
  if (stops.outcome.code == kNoDisk) GTEST_SKIP() << "only root can mount a small disk";
  EXPECT_EQ(stops.outcome.code, 1);
  EXPECT_THAT(stops.outcome.err, AllOf(HasSubstr(dir_ / "disk/saved"), HasSubstr("removed")));
  // The next checkpoint creates the directory again.
  const DiskRun continued =
      train(4000, {"--steps=400", "--checkpoint-every=40", "--on-storage-error=warn"}, "step-00000080", gone);
  EXPECT_EQ(continued.outcome.code, 0) << continued.outcome.err;
  EXPECT_THAT(continued.outcome.out, AllOf(HasSubstr("training continues"), HasSubstr("/step-00000400")));
  EXPECT_EQ(continued.losses.size(), 400U);
  EXPECT_THAT(continued.verified, AllOf(HasSubstr("exit 0\n"), HasSubstr("step-00000400\n")));
}

}  // namespace
}  // namespace penstock::test
