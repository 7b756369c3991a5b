// Random number generators by key. Every operator with a generator argument gets a second kernel under a
// dispatch key that libtorch reserves for modes of other libraries and does not use itself. A scope enables
// that key for its thread, and the kernel passes the scope's generator if the caller gave none. All other
// operators fall through at no cost, and a scope without random operations never creates a generator.
// Some operators of devices, such as native_dropout, always draw from the default generator of the device:
// while one of them is launched, that generator has the state of the scope's. docs/adr/0007 discusses the
// alternatives.
#include "runtime/stage/random_scope_state.h"

#include <penstock/tensor/dtensor.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::runtime {
namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local RandomScope::Impl* current_scope = nullptr;

// One step of splitmix64: adjacent keys give unrelated seeds.
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = state + value + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

}  // namespace

std::uint64_t RandomKey::mixed() const {
  std::uint64_t state = mix(0, seed);
  state = mix(state, step);
  state = mix(state, static_cast<std::uint64_t>(stage.value));
  state = mix(state, static_cast<std::uint64_t>(microbatch.value));
  return mix(state, replica);
}

struct RandomScope::Impl {
  explicit Impl(const RandomKey& k) : key(k), outer(current_scope), mode(kMode) { current_scope = this; }
  ~Impl() { current_scope = outer; }

  at::Generator& generator(at::Device device) {
    std::optional<at::Generator>& found = generators[{device.type(), device.index()}];
    if (!found) {
      // On other devices: a clone of the default generator, with a new seed.
      found = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(key.mixed())
                              : at::globalContext().defaultGenerator(device).clone();
      if (!device.is_cpu()) found->set_current_seed(key.mixed());
    }
    return *found;
  }

  RandomKey key;
  std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::optional<at::Generator>> generators;
  Impl* outer;
  c10::impl::IncludeDispatchKeyGuard mode;
};

namespace {

// A device without an index is the current one.
at::Device with_index(at::Device device) {
  if (device.is_cpu()) return at::kCPU;
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Device device_of(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined())
      return with_index(arguments[i].toTensor().device());
    if (arguments[i].isDevice()) return with_index(arguments[i].toDevice());
  }
  return at::kCPU;
}

bool any_distributed(const c10::IValue* arguments, std::size_t count) {
  return std::any_of(arguments, arguments + count, [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && tensor::is_dtensor(value.toTensor());
  });
}

// Gives the default generator of a device the seed and offset of another one. On destruction, the other one
// gets the new offset, and the default one its old state. Launches of ranks that share a device take turns.
class LentState {
 public:
  LentState(at::Device device, at::Generator& own)
      : lock_(mutex_of(device)), default_(at::globalContext().defaultGenerator(device)), own_(own) {
    const std::scoped_lock locks(default_.mutex());
    seed_ = default_.current_seed();
    offset_ = default_.get_offset();
    set(default_, own_.current_seed(), own_.get_offset());
  }
  ~LentState() {
    const std::scoped_lock locks(default_.mutex());
    own_.set_offset(default_.get_offset());
    set(default_, seed_, offset_);
  }
  LentState(const LentState&) = delete;
  LentState& operator=(const LentState&) = delete;

 private:
  static std::mutex& mutex_of(at::Device device) {
    static std::mutex all;
    static std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::mutex> mutexes;
    const std::scoped_lock lock(all);
    return mutexes[{device.type(), device.index()}];
  }
  static void set(at::Generator& generator, std::uint64_t seed, std::uint64_t offset) {
    generator.set_current_seed(seed);
    generator.set_offset(offset);
  }

  std::unique_lock<std::mutex> lock_;
  at::Generator default_;
  at::Generator& own_;
  std::uint64_t seed_ = 0, offset_ = 0;
};

// For an operator that draws numbers but has no argument for a generator. The sharding rules of distributed
// tensors replace it by operators that have one.
void with_lent_state(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const c10::IValue* const arguments = stack->data() + (stack->size() - count);
  const at::Device device = device_of(schema, arguments);
  if (current_scope == nullptr || device.is_cpu() || device.is_meta() || any_distributed(arguments, count))
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode), stack);
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);
  const LentState lent(device, current_scope->generator(device));
  op.callBoxed(stack);
}

void with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  c10::IValue* const arguments = stack->data() + (stack->size() - count);
  for (std::size_t i = 0; current_scope != nullptr && i < count; ++i) {
    if (schema.arguments()[i].name() == "generator" && arguments[i].isNone()) {
      arguments[i] = current_scope->generator(device_of(schema, arguments));
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);
  op.callBoxed(stack);
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

// Operators that consist of others need no kernel here. Attention on the CPU has no dropout.
bool hides_generator(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) && !takes_generator(op.schema()) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.operator_name().name.ends_with("_for_cpu");
}

class Registration {
 public:
  Registration()
      : others_(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__),
        random_(torch::Library::IMPL, "aten", kMode, __FILE__, __LINE__) {
    others_.fallback(torch::CppFunction::makeFallthrough());
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != std::optional<std::string_view>("aten")) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      const std::string text =
          name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      if (takes_generator(op->schema())) {
        random_.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&with_generator>());
      } else if (hides_generator(*op)) {
        random_.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&with_lent_state>());
      }
    }
  }

 private:
  torch::Library others_, random_;
};

}  // namespace

RandomScope::RandomScope(const RandomKey& key) {
  static const Registration once;
  impl_ = std::make_unique<Impl>(key);
}

RandomScope::~RandomScope() = default;

std::optional<RandomScopeState> random_scope_state() {
  if (current_scope == nullptr) return std::nullopt;
  RandomScopeState state{current_scope->key, {}};
  for (const auto& [device, generator] : current_scope->generators)
    if (generator) state.generators.emplace(device, generator->clone());
  return state;
}

void set_random_scope_state(const RandomScopeState& state) {
  current_scope->key = state.key;
  current_scope->generators.clear();
  for (const auto& [device, generator] : state.generators)
    current_scope->generators[device] = generator.clone();
}

}  // namespace penstock::runtime
