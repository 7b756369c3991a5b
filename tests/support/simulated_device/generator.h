// The random generator of a device.
#pragma once

#include <ATen/core/Generator.h>

namespace penstock::test::simulated {

//! Has a seed and an offset, like libtorch's CUDA generator. Each kernel draws from a CPU generator that is
//! seeded by both, and advances the offset.
class SimulatedGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimulatedGenerator(c10::DeviceIndex device);

  void set_current_seed(std::uint64_t seed) override;
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  //! The generator for the next kernel. Locks the mutex of this generator.
  at::Generator next();

 private:
  SimulatedGenerator* clone_impl() const override;

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

//! Creates a generator on first use. It lives until the process ends.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace penstock::test::simulated
