// Random number generators by key. Every operator with a generator argument gets a second kernel under a
// dispatch key that libtorch reserves for modes of other libraries and does not use itself. A scope enables
// that key for its thread, and the kernel passes the scope's generator if the caller gave none. All other
// operators fall through at no cost, and a scope without random operations never creates a generator.
// docs/adr/0007 discusses the alternatives.
#include <penstock/runtime/random.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <vector>

namespace penstock::runtime {
namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local RandomScope::Impl* current = nullptr;

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
  explicit Impl(const RandomKey& k) : key(k), outer(current), mode(kMode) { current = this; }
  ~Impl() { current = outer; }

  at::Generator& generator(at::Device device) {
    std::optional<at::Generator>& found = generators[device.type()];
    if (!found) {
      // On other devices: a clone of the default generator, with a new seed.
      found = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(key.mixed())
                              : at::globalContext().defaultGenerator(device).clone();
      if (!device.is_cpu()) found->set_current_seed(key.mixed());
    }
    return *found;
  }

  RandomKey key;
  std::map<at::DeviceType, std::optional<at::Generator>> generators;
  Impl* outer;
  c10::impl::IncludeDispatchKeyGuard mode;
};

namespace {

at::Device device_of(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined()) return arguments[i].toTensor().device();
    if (arguments[i].isDevice()) return arguments[i].toDevice();
  }
  return at::kCPU;
}

void with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  c10::IValue* const arguments = stack->data() + (stack->size() - count);
  for (std::size_t i = 0; current != nullptr && i < count; ++i) {
    if (schema.arguments()[i].name() == "generator" && arguments[i].isNone()) {
      arguments[i] = current->generator(device_of(schema, arguments));
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
      if (!op || !takes_generator(op->schema())) continue;
      const std::string text =
          name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      random_.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&with_generator>());
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

}  // namespace penstock::runtime
