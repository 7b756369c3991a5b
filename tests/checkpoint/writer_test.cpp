// The checkpoint writer: asynchronous saves, one at a time, retention, errors, and the choice of the
// checkpoint to resume from.
#include "checkpoint/commit/access.h"
#include "checkpoint/commit/host_copies.h"
#include "checkpoint/commit/manifest.h"
#include "faulty_files.h"
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/error_message.h"
#include "support/process_ranks.h"
#include "support/program.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <future>

namespace penstock::checkpoint {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Piece> model_at(std::int64_t step) {
  return {full_piece("weight", at::full({100}, static_cast<double>(step)))};
}

std::vector<std::int64_t> steps_in(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const CheckpointLocation& location : list_checkpoints(directory)) {
    if (location.complete) steps.push_back(location.step);
  }
  return steps;
}

void flip_byte(const std::string& path, std::size_t at) {
  std::string bytes = slurp(path);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 0x10);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(CheckpointWriter, KeepsLastCheckpoints) {
  const TempDir dir;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    CheckpointWriter writer(dir / "new/place", world.group(), {.keep = 2});
    for (std::int64_t step = 10; step <= 50; step += 10) writer.save(step, model_at(step));
    writer.wait();
    CHECK_THAT(writer.last_complete() == 50);
  });
  EXPECT_THAT(steps_in(dir / "new/place"), ElementsAre(40, 50));
}

TEST(CheckpointWriter, ReturnsBeforeWritingAndTensorsMayChange) {
  const TempDir dir;
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  HookedFiles files([&](const std::string& operation, const std::string&) {
    if (operation == "create") gate.wait();
  });
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer = Access::writer(dir.path(), world.group(), {}, files);
    const std::vector<Piece> pieces = model_at(1);
    writer.save(1, pieces);
    CHECK_THAT(!writer.last_complete());  // no file can exist yet
    pieces[0].local.fill_(99);
    go.set_value();
    writer.wait();
    CHECK_THAT(writer.last_complete() == 1);
  });
  EXPECT_TRUE(at::equal(Checkpoint(dir / checkpoint_name(1)).read("weight"), at::ones({100})));
}

TEST(CheckpointWriter, TensorsMayHaveOtherShapesAndTypesInNextSave) {
  const TempDir dir;
  const std::vector<at::Tensor> values{at::arange(6.0).view({2, 3}), at::arange(6.0).view({3, 2}),
                                       at::arange(6).view({3, 2}), at::arange(6).view({3, 2}).add_(1)};
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group(), {.keep = 4});
    for (std::size_t i = 0; i < values.size(); ++i)
      writer.save(static_cast<std::int64_t>(i), {full_piece("weight", values[i])});
    writer.wait();
  });
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor read = Checkpoint(dir / checkpoint_name(static_cast<std::int64_t>(i))).read("weight");
    EXPECT_TRUE(read.dtype() == values[i].dtype() && at::equal(read, values[i])) << i;
  }
}

TEST(CheckpointHostCopies, UseTheirMemoryAgain) {
  HostCopies copies;
  std::vector<at::Tensor> first{at::full({1000}, 1.0), at::full({7}, 2)};
  copies.start(first);
  const void* const memory = first[0].const_data_ptr();
  std::vector<at::Tensor> second{at::full({1000}, 3.0), at::full({8}, 4)};
  const at::Tensor source = second[0];
  copies.start(second);
  EXPECT_EQ(second[0].const_data_ptr(), memory);
  EXPECT_NE(source.const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(second[0], at::full({1000}, 3.0)) && at::equal(second[1], at::full({8}, 4)));
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(second[0].getIntrusivePtr());
  first.clear();
  second.clear();
  EXPECT_FALSE(watched.expired());
  copies.expect({source});  // makes no copies
  EXPECT_TRUE(watched.expired());
}

TEST(CheckpointWriter, NeverWritesTwoCheckpointsConcurrently) {
  const TempDir dir;
  std::atomic<int> under_way{0}, most{0};
  HookedFiles files([&](const std::string& operation, const std::string& path) {
    if (operation == "make" && path.ends_with(".incomplete")) most = std::max(most.load(), ++under_way);
    if (operation == "rename" && !path.ends_with(".removing")) --under_way;
  });
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer = Access::writer(dir.path(), world.group(), {}, files);
    for (int step = 1; step <= 20; ++step) writer.save(step, model_at(step));
  });
  EXPECT_EQ(most, 1);
  EXPECT_THAT(steps_in(dir.path()), ElementsAre(18, 19, 20));
}

TEST(CheckpointWriter, WritesSynchronouslyIfCopyWouldBeTooLarge) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group(), {.copy_limit = 399});
    writer.save(1, model_at(1));
    CHECK_THAT(writer.last_complete() == 1);
  });
}

TEST(CheckpointWriter, ReplicasShareWork) {
  const TempDir dir;
  comm::run_thread_ranks(4, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group());
    std::vector<Piece> pieces;
    for (int i = 0; i < 8; ++i) pieces.push_back(full_piece("layer." + std::to_string(i), at::ones({1000})));
    writer.save(1, pieces);
    writer.wait();
  });
  const Checkpoint checkpoint(dir / checkpoint_name(1));
  ASSERT_EQ(checkpoint.files().size(), 4U);
  for (const StoredFile& file : checkpoint.files()) EXPECT_LT(file.bytes, 2 * 4000 + 400) << file.name;
}

TEST(CheckpointWriter, ErrorsSurfaceAtNextCallOnEveryRankAndNextSaveWorks) {
  const TempDir dir;
  // Fails every operation of a save once.
  for (int refused = 0; refused < 12; ++refused) {
    std::atomic<int> count{0};
    HookedFiles files([&](const std::string&, const std::string& path) {
      if (path.find(checkpoint_name(2)) != std::string::npos && count++ == refused)
        throw StorageError("no room for " + path, ENOSPC);
    });
    bool failed = false;
    comm::run_thread_ranks(2, [&](comm::World& world) {
      CheckpointWriter writer = Access::writer(dir.path(), world.group(), {}, files);
      writer.save(1, model_at(1));
      writer.save(2, model_at(2));
      try {
        writer.wait();
      } catch (const StorageError& error) {
        if (world.rank().value == 0) failed = true;
        CHECK_SAME(error.code(), ENOSPC);
        CHECK_THAT(std::string(error.what()).find("no room for") != std::string::npos);
        CHECK_THAT(std::string(error.what()).find("free space on that disk") != std::string::npos);
        CHECK_THAT(std::string(error.what()).find("(rank ") != std::string::npos);
        CHECK_THAT(writer.last_complete() == 1);
        CHECK_SAME(find_resume_point(dir.path()).checkpoint.step(), 1);
      }
      writer.wait();  // the error is reported once
      writer.save(3, model_at(3));
      writer.wait();
    });
    EXPECT_EQ(failed, count > refused) << refused;
    const std::vector<std::int64_t> expected =
        failed ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{1, 2, 3};
    EXPECT_EQ(steps_in(dir.path()), expected) << refused;
    for (const CheckpointLocation& location : list_checkpoints(dir.path()))
      EXPECT_TRUE(location.complete) << location.path;
    fs::remove_all(dir.path());
  }
}

TEST(CheckpointWriter, ReportsFileSizeLimitAndRemovedDirectory) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir / "a", world.group(), {.asynchronous = false});
    writer.save(1, model_at(1));
    signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{300, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int code = 0;
    try {
      writer.save(2, model_at(2));
    } catch (const StorageError& error) {
      code = error.code();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_SAME(code, EFBIG);
    CHECK_SAME(find_resume_point(dir / "a").checkpoint.step(), 1);

    HookedFiles files([&](const std::string& operation, const std::string& path) {
      if (operation == "finish" && path.ends_with("manifest.json")) fs::remove_all(dir / "b");
    });
    CheckpointWriter other = Access::writer(dir / "b", world.group(), {.asynchronous = false}, files);
    try {
      other.save(1, model_at(1));
    } catch (const StorageError& error) {
      code = error.code();
    }
    CHECK_SAME(code, ENOENT);
  });
}

// A disk that is really full, and one that is really read-only. Mounting such a small disk needs root.
const test::RankFunction full_disk("full_disk", [] {
  const std::string directory = std::getenv("PENSTOCK_TEST_DIRECTORY");
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", directory.c_str(), "tmpfs", 0, "size=64k") != 0) {
    return 77;
  }
  comm::World world = comm::init();
  CheckpointWriter writer(directory, world.group(), {.asynchronous = false});
  writer.save(1, model_at(1));
  int full = 0, read_only = 0;
  try {
    writer.save(2, {full_piece("weight", at::ones({50000}))});
  } catch (const StorageError& error) {
    full = error.code();
  }
  const bool intact = find_resume_point(directory).checkpoint.step() == 1 &&
                      list_directory(directory).size() == 2;  // and run.lock
  writer.save(3, model_at(3));
  mount("none", directory.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=64k");
  try {
    writer.save(4, model_at(4));
  } catch (const StorageError& error) {
    read_only = error.code();
  }
  const bool still = find_resume_point(directory).checkpoint.step() == 3;
  std::printf("%d %d %d %d\n", full, intact, read_only, still);
  return 0;
});

TEST(CheckpointWriter, ReportsFullAndReadOnlyDiskAndKeepsCheckpoints) {
  const TempDir dir;
  const auto done = run_program({fs::read_symlink("/proc/self/exe").string()},
                                {"PENSTOCK_TEST_RANKS=full_disk", "PENSTOCK_TEST_DIRECTORY=" + dir.path()});
  if (done.code == 77) GTEST_SKIP() << "only root can mount a small disk";
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, std::to_string(ENOSPC) + " 1 " + std::to_string(EROFS) + " 1\n");
}

TEST(CheckpointVerify, DetectsEveryFlippedByte) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter(dir.path(), world.group()).save(1, {full_piece("w", at::ones({7}))});
  });
  const std::string path = dir / checkpoint_name(1);
  EXPECT_TRUE(Checkpoint(path).verify().empty());
  for (const std::string& name : list_directory(path)) {
    const std::string file = path + "/" + name;
    for (std::size_t at = 0; at < slurp(file).size(); ++at) {
      flip_byte(file, at);
      bool noticed = false;
      try {
        noticed = has_errors(Checkpoint(path).verify());
      } catch (const CheckpointError&) {
        noticed = true;
      }
      EXPECT_TRUE(noticed) << name << " byte " << at;
      flip_byte(file, at);
    }
  }
  EXPECT_TRUE(Checkpoint(path).verify().empty());
  std::ofstream(path + "/stray") << "x";
  EXPECT_EQ(to_string(Checkpoint(path).verify()), "warning: stray: does not belong to the checkpoint\n");
}

TEST(CheckpointLoad, DetectsDamagedElements) {
  const TempDir dir;
  comm::run_thread_ranks(
      1, [&](comm::World& world) { CheckpointWriter(dir.path(), world.group()).save(1, model_at(1)); });
  const std::string file = dir / (checkpoint_name(1) + "/shard-00000-of-00001.safetensors");
  flip_byte(file, slurp(file).size() - 5);
  EXPECT_ERROR(Checkpoint(dir / checkpoint_name(1)).load(model_at(2)), CheckpointError,
               "is damaged: its checksum does not match");
}

TEST(CheckpointManifest, DamageIsAnErrorAndNeverEscapesDirectory) {
  Manifest manifest{.step = 3, .notes = {{"a", "b\n\"c\""}}, .files = {{"shard", 10, 5}}};
  manifest.tensors.push_back(
      {"w", "", PieceKind::Parameter, at::kFloat, {2, 2}, {"v"}, {{0, "w", Box{{0, 0}, {2, 2}}, 7}}});
  const std::string text = manifest_text(manifest);
  EXPECT_EQ(manifest_text(parse_manifest(text, "m")), text);
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    for (const std::string& wrong : {damaged, text.substr(0, at)}) {
      EXPECT_THAT(
          error_message<ParseError>([&] { parse_manifest(wrong, "m"); }),
          testing::AnyOf(HasSubstr("is not a checkpoint manifest"), HasSubstr("checksum does not match")));
    }
  }
  const auto refused = [&](auto change) {
    Manifest lying = manifest;
    change(lying);
    try {
      parse_manifest(manifest_text(lying), "m");
      return std::string();
    } catch (const ParseError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refused([](Manifest& m) { m.files[0].name = "../x"; }), HasSubstr("is not a valid file name"));
  EXPECT_THAT(refused([](Manifest& m) { m.files[0].name = "a/b"; }), HasSubstr("is not a valid file name"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].pieces[0].file = 1; }), HasSubstr("there is no file 1"));
  EXPECT_THAT(refused([](Manifest& m) {
                m.tensors[0].pieces[0].region = Box{{0, 1}, {2, 2}};
              }),
              HasSubstr("is outside the tensor"));
  EXPECT_THAT(refused([](Manifest& m) {
                m.tensors[0].pieces[0].region = FlatRange{0, 3};
              }),
              HasSubstr("1 of its elements are in no file"));
  EXPECT_THAT(refused([](Manifest& m) {
                m.tensors[0].shape = {1LL << 40, 1LL << 40};
              }),
              HasSubstr("the shape is not valid"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].aliases = {"w"}; }), HasSubstr("duplicate tensor "));
  EXPECT_THAT(refused([](Manifest& m) { m.step = -1; }), HasSubstr("the step is negative"));
}

TEST(CheckpointResume, UsesNewestCompleteCheckpointAndReportsSkippedOnes) {
  const TempDir dir;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group(), {.keep = std::nullopt});
    for (std::int64_t step = 1; step <= 5; ++step) {
      const FlatRange half{world.rank().value * 50, world.rank().value * 50 + 50};
      writer.save(step, {{.name = "weight",
                          .shape = {100},
                          .local = at::full({50}, static_cast<double>(step)),
                          .region = half}});
    }
    writer.wait();
  });
  fs::rename(dir / checkpoint_name(5), dir / (checkpoint_name(5) + ".incomplete"));
  flip_byte(dir / (checkpoint_name(4) + "/shard-00001-of-00002.safetensors"), 200);
  fs::remove(dir / (checkpoint_name(3) + "/manifest.json"));
  fs::create_directory(dir / "step-banana");
  const auto expect_second = [](const ResumePoint& found) {
    CHECK_SAME(found.checkpoint.step(), 2);
    CHECK_SAME(found.skipped.size(), 3U);
    CHECK_THAT(found.skipped[0].starts_with("step-00000005.incomplete: its write did not complete"));
    CHECK_THAT(found.skipped[1].starts_with("step-00000004: shard-00001-of-00002.safetensors is damaged"));
    CHECK_THAT(found.skipped[2].find("has no manifest.json") != std::string::npos);
  };
  expect_second(find_resume_point(dir.path()));
  comm::run_thread_ranks(
      3, [&](comm::World& world) { expect_second(find_resume_point(dir.path(), world.group())); });
  // A run that resumes from step 2 replaces the skipped checkpoints as it reaches them, and removes nothing
  // newer.
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group(), {.keep = 1});
    writer.save(3, model_at(3));
    writer.wait();
    CHECK_SAME(find_resume_point(dir.path()).checkpoint.step(), 3);
    writer.save(4, model_at(4));
    writer.wait();
    CHECK_SAME(find_resume_point(dir.path()).checkpoint.step(), 4);
  });
  EXPECT_THAT(list_directory(dir.path()), ElementsAre("run.lock", "step-00000004", "step-banana"));
}

TEST(CheckpointResume, ReportsMissingCompleteCheckpoint) {
  const TempDir dir;
  EXPECT_ERROR(find_resume_point(dir.path()), CheckpointError, "there is no complete checkpoint in");
  EXPECT_ERROR(find_resume_point(dir / "missing"), CheckpointError, "there is no complete checkpoint in");
  fs::create_directory(dir / "step-00000009.incomplete");
  try {
    find_resume_point(dir.path());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no complete checkpoint in '" + dir.path() + "'"));
    EXPECT_THAT(error.what(), HasSubstr("step-00000009.incomplete: its write did not complete"));
  }
  comm::run_thread_ranks(2, [&](comm::World& world) {
    try {
      find_resume_point(dir.path(), world.group());
      CHECK_THAT(false);
    } catch (const CheckpointError&) {
    }
  });
}

}  // namespace
}  // namespace penstock::checkpoint
