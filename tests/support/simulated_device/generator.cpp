// The random generator of a device.
#include "generator.h"

#include "simulation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>

namespace penstock::test::simulated {
namespace {

// Offsets count single numbers, and a Philox block has four of them.
constexpr std::uint64_t kOffsetStep = 4;

using StateWords = std::array<std::uint64_t, 2>;

// The finalizer of SplitMix64: neighboring inputs give unrelated seeds.
std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace

SimulatedGenerator::SimulatedGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

void SimulatedGenerator::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

std::uint64_t SimulatedGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void SimulatedGenerator::set_offset(std::uint64_t offset) {
  TORCH_CHECK(offset % kOffsetStep == 0, "offset must be a multiple of 4");
  offset_ = offset;
}

void SimulatedGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == sizeof(StateWords), "RNG state is wrong size");
  StateWords words{};
  std::memcpy(words.data(), state.data(), sizeof words);
  seed_ = words[0];
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> SimulatedGenerator::get_state() const {
  const StateWords words{seed_, offset_};
  at::Tensor state = at::empty({static_cast<std::int64_t>(sizeof words)}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), words.data(), sizeof words);
  return state.getIntrusivePtr();
}

at::Generator SimulatedGenerator::next() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t seed = mix_bits(mix_bits(seed_) ^ offset_);
  offset_ += kOffsetStep;
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

SimulatedGenerator* SimulatedGenerator::clone_impl() const {
  auto* const copy = new SimulatedGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* const generators = new std::deque<at::Generator>;
  const c10::DeviceIndex wanted = device < 0 ? current_device() : device;
  check_device(wanted);
  const std::lock_guard lock(mutex);
  while (generators->size() <= static_cast<std::size_t>(wanted))
    generators->push_back(
        at::make_generator<SimulatedGenerator>(static_cast<c10::DeviceIndex>(generators->size())));
  return (*generators)[static_cast<std::size_t>(wanted)];
}

}  // namespace penstock::test::simulated
