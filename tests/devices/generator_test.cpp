// Random numbers on simulated devices.
#include "simulated_device_test.h"
#include "support/same_bits.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace penstock::test {
namespace {

class DevicesGenerator : public SimulatedDeviceTest {
 protected:
  static at::Generator generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }
  static at::Tensor draw(c10::Device device) { return torch::randn({6}, device).cpu(); }
};

TEST_F(DevicesGenerator, StateIsPerDevice) {
  generator(kCuda0).set_current_seed(3);
  generator(kCuda1).set_current_seed(3);
  const at::Tensor first = draw(kCuda0), second = draw(kCuda0);
  EXPECT_FALSE(same_bits(first, second));
  EXPECT_TRUE(same_bits(draw(kCuda1), first));
  generator(kCuda0).set_current_seed(4);
  EXPECT_TRUE(same_bits(draw(kCuda1), second));
  EXPECT_FALSE(same_bits(draw(kCuda0), first));
}

TEST_F(DevicesGenerator, StateIsRestorable) {
  torch::manual_seed(5);
  (void)draw(kCuda0);
  const at::Tensor state = generator(kCuda0).get_state();
  EXPECT_EQ(state.nbytes(), 16u);  // as of CUDA's generator: seed and offset
  const at::Tensor expected = draw(kCuda0);
  const at::Tensor dropped = torch::dropout(torch::ones({50}, kCuda0), 0.5, true).cpu();
  generator(kCuda0).set_state(state);
  EXPECT_TRUE(same_bits(draw(kCuda0), expected));
  EXPECT_TRUE(same_bits(torch::dropout(torch::ones({50}, kCuda0), 0.5, true).cpu(), dropped));
}

TEST_F(DevicesGenerator, OffsetSelectsNumbers) {
  generator(kCuda0).set_current_seed(5);
  (void)draw(kCuda0);
  const std::uint64_t offset = generator(kCuda0).get_offset();
  EXPECT_GT(offset, 0u);
  const at::Tensor expected = draw(kCuda0);
  EXPECT_GT(generator(kCuda0).get_offset(), offset);
  generator(kCuda0).set_offset(offset);
  EXPECT_TRUE(same_bits(draw(kCuda0), expected));
  EXPECT_THROW(generator(kCuda0).set_offset(offset + 1), c10::Error);
}

TEST_F(DevicesGenerator, DoesNotUseGeneratorOfCpu) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const at::Tensor ones = torch::ones({20}, kCuda0);
  (void)torch::randn({20}, kCuda0);
  (void)torch::rand_like(ones);
  (void)torch::randint(9, {20}, kCuda0);
  (void)torch::randperm(20, kCuda0);
  (void)torch::dropout(ones, 0.5, true);
  const at::Tensor qkv = ones.view({1, 1, 5, 4});
  (void)at::scaled_dot_product_attention(qkv, qkv, qkv, {}, 0.5);
  (void)torch::bernoulli(ones * 0.5);
  (void)torch::multinomial(ones, 3);
  ones.normal_();
  EXPECT_TRUE(same_bits(at::detail::getDefaultCPUGenerator().get_state(), before));
  EXPECT_THROW(ones.normal_(0, 1, at::detail::getDefaultCPUGenerator()), c10::Error);
}

TEST_F(DevicesGenerator, OwnGeneratorIsIndependent) {
  at::Generator own = at::globalContext().defaultGenerator(kCuda0).clone();
  own.set_current_seed(8);
  generator(kCuda0).set_current_seed(8);
  const at::Tensor expected = draw(kCuda0);
  const std::uint64_t offset = generator(kCuda0).get_offset();
  EXPECT_TRUE(same_bits(torch::empty({6}, kCuda0).normal_(0, 1, own).cpu(), expected));
  EXPECT_EQ(generator(kCuda0).get_offset(), offset);
}

TEST_F(DevicesGenerator, DropoutKeepsExpectedFraction) {
  generator(kCuda0).set_current_seed(1);
  const at::Tensor kept = torch::dropout(torch::ones({10000}, kCuda0), 0.25, true).cpu();
  EXPECT_NEAR(kept.mean().item<double>(), 1, 0.03);
  EXPECT_TRUE(((kept == 0) | (kept - 1 / 0.75).abs().lt(1e-6)).all().item<bool>());
}

}  // namespace
}  // namespace penstock::test
