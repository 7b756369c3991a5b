// Checkpoints of tensors on simulated devices.
#include "simulated_device_test.h"
#include "support/mesh_ranks.h"
#include "support/same_bits.h"
#include "support/temp_dir.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

namespace penstock::test {
namespace {

using checkpoint::CheckpointWriter;
using checkpoint::Piece;

class DevicesCheckpoint : public SimulatedDeviceTest {};

std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    pieces.push_back(checkpoint::full_piece("tensor." + std::to_string(i), tensors[i]));
  return pieces;
}

std::vector<at::Tensor> tensors_on(c10::Device device) {
  std::vector<at::Tensor> tensors;
  for (unsigned i = 0; i < 4; ++i) tensors.push_back(numbers({50, 3 + i}, i).to(device));
  tensors.push_back(numbers({4, 6}, 9).to(device).t());  // not contiguous
  return tensors;
}

// `save` starts copies to pinned memory and returns. Tensors may change at once, on the same stream.
TEST_F(DevicesCheckpoint, SaveDoesNotBlockAndTensorsMayChange) {
  for (const bool own_stream : {false, true}) {
    const TempDir dir;
    comm::run_thread_ranks(
        2,
        [&](comm::World& world) {
          std::optional<c10::StreamGuard> stream;
          if (own_stream)
            stream.emplace(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(world.device()));
          const std::vector<at::Tensor> tensors = tensors_on(world.device());
          CheckpointWriter writer(dir.path(), world.group());
          simulated::clear_records();
          writer.save(1, pieces_of(tensors));
          const auto here = std::this_thread::get_id();
          for (const simulated::HostSync& sync : simulated::host_syncs())
            EXPECT_NE(sync.thread, here) << sync.cause;
          for (const at::Tensor& tensor : tensors) tensor.fill_(99);
          writer.wait();
          const std::vector<at::Tensor> loaded = tensors_on(world.device());
          for (const at::Tensor& tensor : loaded) tensor.zero_();
          const checkpoint::Checkpoint saved(dir / "step-00000001");
          saved.load(pieces_of(loaded), world.group());
          const std::vector<at::Tensor> expected = tensors_on(c10::kCPU);
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(same_bits(loaded[i].cpu().contiguous(), expected[i].contiguous())) << i;
        },
        {.device = c10::kCUDA});
  }
}

void expect_saved(const std::filesystem::path& path, const std::vector<at::Tensor>& expected) {
  const std::vector<at::Tensor> loaded = tensors_on(c10::kCPU);
  for (const at::Tensor& tensor : loaded) tensor.zero_();
  checkpoint::Checkpoint(path).load(pieces_of(loaded));
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(loaded[i].contiguous(), expected[i].contiguous())) << i;
}

// Without the option, `save` itself lets the stream wait.
TEST_F(DevicesCheckpoint, ChangesWaitForOverlappedCopies) {
  const simulated::UnorderedEventWaits unordered;
  for (const auto& [overlap, waits] : {std::pair{false, false}, {true, true}, {true, false}}) {
    const TempDir dir;
    comm::run_thread_ranks(1, [&](comm::World& world) {
      const std::vector<at::Tensor> tensors = tensors_on(kCuda1);
      CheckpointWriter writer(dir.path(), world.group(), {.overlap_copies = overlap});
      settle();
      writer.save(1, pieces_of(tensors));
      for (const at::Tensor& tensor : tensors) (void)tensor.sum();  // reads need no wait
      EXPECT_THAT(take_races(), testing::IsEmpty());
      if (waits) writer.wait_for_copies();
      for (const at::Tensor& tensor : tensors) tensor.fill_(99);
      writer.wait();
      if (overlap && !waits) {
        EXPECT_THAT(take_races(), testing::AllOf(testing::SizeIs(tensors.size()),
                                                 testing::Each("aten::fill_ after aten::copy_")));
      } else {
        EXPECT_THAT(take_races(), testing::IsEmpty());
      }
    });
    expect_saved(dir / "step-00000001", tensors_on(c10::kCPU));
  }
}

// The memory of a tensor that is freed during its copy is not used again before the copy ends.
TEST_F(DevicesCheckpoint, TensorsMayBeFreedDuringCopies) {
  const simulated::UnorderedEventWaits unordered;
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    std::vector<at::Tensor> tensors = tensors_on(kCuda1);
    CheckpointWriter writer(dir.path(), world.group(), {.overlap_copies = true});
    settle();
    at::accelerator::emptyCache();
    const void* const data = tensors.back().const_data_ptr();
    writer.save(1, pieces_of(tensors));
    tensors.pop_back();
    const at::Tensor next = torch::zeros({4, 6}, kCuda1);
    EXPECT_EQ(next.const_data_ptr(), data);
    writer.wait();
  });
  expect_saved(dir / "step-00000001", tensors_on(c10::kCPU));
}

// Each save uses the pinned memory of the one before.
TEST_F(DevicesCheckpoint, SavesInARowHaveTheirOwnValues) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    const std::vector<at::Tensor> tensors = tensors_on(kCuda1);
    CheckpointWriter writer(dir.path(), world.group(), {.keep = std::nullopt, .overlap_copies = true});
    for (int step = 1; step <= 4; ++step) {
      writer.wait_for_copies();
      for (const at::Tensor& tensor : tensors) tensor.add_(1);
      writer.save(step, pieces_of(tensors));
    }
    writer.wait();
  });
  for (int step = 1; step <= 4; ++step) {
    std::vector<at::Tensor> expected = tensors_on(c10::kCPU);
    for (const at::Tensor& tensor : expected)
      for (int i = 0; i < step; ++i) tensor.add_(1);
    expect_saved(dir / checkpoint::checkpoint_name(step), expected);
  }
}

// Above the limit, the background thread reads device memory, after the work of the caller's stream. It
// copies a tensor while it writes the one before.
TEST_F(DevicesCheckpoint, SaveWithoutCopiesWaitsForStream) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    const c10::StreamGuard stream(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(kCuda1));
    const std::vector<at::Tensor> tensors = tensors_on(kCuda1);
    CheckpointWriter writer(dir.path(), world.group(), {.copy_limit = 1});
    for (const at::Tensor& tensor : tensors) tensor.add_(1);
    simulated::clear_records();
    writer.save(3, pieces_of(tensors));
    for (const simulated::HostSync& sync : simulated::host_syncs()) EXPECT_EQ(sync.cause, "event");
    for (const at::Tensor& tensor : tensors) tensor.fill_(99);
    const std::vector<at::Tensor> loaded = tensors_on(c10::kCPU), expected = tensors_on(c10::kCPU);
    checkpoint::Checkpoint(dir / "step-00000003").load(pieces_of(loaded));
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(loaded[i].contiguous(), (expected[i] + 1).contiguous())) << i;
  });
}

}  // namespace
}  // namespace penstock::test
