// The built-in GPT on a simulated device.
#include "simulated_device_test.h"
#include "support/same_bits.h"

#include <penstock/models/gpt.h>

#include <torch/torch.h>

namespace penstock::test {
namespace {

class DevicesModels : public SimulatedDeviceTest {};

models::GptOptions gpt_options(models::PositionKind positions) {
  return {.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .width = 16, .positions = positions};
}

models::Gpt make_gpt(const models::GptOptions& options, c10::Device device) {
  models::Gpt gpt(options);
  models::initialize(*gpt, options, 3);
  gpt->to(device);
  return gpt;
}

TEST_F(DevicesModels, GptComputesLogitsOfCpu) {
  const at::Tensor tokens = torch::arange(12).remainder(11).view({2, 6});
  for (const auto positions : {models::PositionKind::Rotary, models::PositionKind::Learned}) {
    const models::GptOptions options = gpt_options(positions);
    const at::Tensor expected = make_gpt(options, c10::kCPU)->forward(tokens);
    const at::Tensor logits = make_gpt(options, kCuda1)->forward(tokens.to(kCuda1));
    EXPECT_EQ(logits.device(), kCuda1);
    EXPECT_TRUE(at::allclose(logits.cpu(), expected, 1e-5, 1e-6));
  }
}

TEST_F(DevicesModels, InitialValuesAreThoseOfCpu) {
  const models::GptOptions options = gpt_options(models::PositionKind::Learned);
  models::Gpt expected(options), gpt(options);
  gpt->to(kCuda0);
  models::initialize(*expected, options, 5);
  models::initialize(*gpt, options, 5);
  for (const auto& item : expected->named_parameters())
    EXPECT_TRUE(same_bits(gpt->named_parameters()[item.key()].cpu(), item.value())) << item.key();
}

TEST_F(DevicesModels, PositionTablesFollowDeviceOnly) {
  const models::GptOptions options = gpt_options(models::PositionKind::Rotary);
  models::Gpt gpt = make_gpt(options, kCuda0);
  EXPECT_TRUE(gpt->named_buffers().is_empty());  // not stored
  gpt->to(kCuda1);
  gpt->to(torch::kDouble);
  gpt->to(c10::Device(c10::kCPU), torch::kFloat);
  const at::Tensor tokens = torch::arange(6).view({1, 6});
  EXPECT_TRUE(same_bits(gpt->forward(tokens), make_gpt(options, c10::kCPU)->forward(tokens)));
}

TEST_F(DevicesModels, SamplesTextOfCpu) {
  for (const auto positions : {models::PositionKind::Rotary, models::PositionKind::Learned}) {
    const models::GptOptions options = gpt_options(positions);
    models::Gpt host = make_gpt(options, c10::kCPU), gpt = make_gpt(options, kCuda0);
    for (const double temperature : {0.0, 0.9}) {
      const models::SampleOptions how{.tokens = 20, .temperature = temperature, .top = 5, .seed = 2};
      EXPECT_EQ(models::sample(*gpt, {1, 2, 3}, how), models::sample(*host, {1, 2, 3}, how));
    }
  }
}

}  // namespace
}  // namespace penstock::test
