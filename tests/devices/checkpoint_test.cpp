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

#include <algorithm>
#include <thread>

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
