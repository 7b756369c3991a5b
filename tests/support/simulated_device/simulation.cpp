// The state of all simulated devices.
#include "simulation.h"

#include <algorithm>
#include <atomic>

namespace penstock::test::simulated {
namespace {

std::atomic<Simulation*> started{nullptr};
thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::vector<c10::StreamId> streams_of_thread;  // by device; the default stream if missing

// The addresses of the first byte of a tensor and after its last byte.
std::pair<const char*, const char*> bytes_of(const at::Tensor& tensor) {
  std::int64_t elements = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto item = static_cast<std::int64_t>(tensor.itemsize());
  const auto* first = static_cast<const char*>(tensor.storage().data()) + tensor.storage_offset() * item;
  return {first, first + elements * item};
}

std::string describe(const Access& next, const Access& earlier) {
  const std::string place = " on " + to_string(stream_at(next.moment.stream));
  std::string text = next.operation + place + (next.write ? " writes" : " reads") + " bytes that " +
                     earlier.operation + " on " + to_string(stream_at(earlier.moment.stream)) +
                     (earlier.write ? " wrote" : " read") + ", without a wait between them";
  if (earlier.before_free) text += "; the memory was freed meanwhile: the tensor needs record_stream";
  return text;
}

}  // namespace

Simulation::Simulation(const Options& chosen)
    : options(chosen), memory(chosen.devices, chosen.bytes_per_device), blocks(memory, chosen.devices) {}

Simulation& simulation() {
  Simulation* const state = started.load();
  TORCH_CHECK(state != nullptr, "call simulated::enable() before the first use of cuda");
  return *state;
}

bool is_enabled() {
  return started.load() != nullptr;
}

void start_simulation(const Options& options) {
  started = new Simulation(options);
}

c10::DeviceIndex current_device() {
  return device_of_thread;
}

void set_current_device(c10::DeviceIndex device) {
  device_of_thread = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  const auto at = static_cast<std::size_t>(device);
  const c10::StreamId id = at < streams_of_thread.size() ? streams_of_thread[at] : 0;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
}

void set_current_stream(const c10::Stream& stream) {
  const auto at = static_cast<std::size_t>(stream.device_index());
  if (streams_of_thread.size() <= at) streams_of_thread.resize(at + 1);
  streams_of_thread[at] = stream.id();
}

void check_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < simulation().options.devices,
              "CUDA error: invalid device ordinal: cuda:", static_cast<int>(device), " of ",
              static_cast<int>(simulation().options.devices), " simulated devices");
}

Moment launch(c10::DeviceIndex device) {
  Simulation& state = simulation();
  const StreamIndex stream = index_of(current_stream(device));
  const std::lock_guard lock(state.mutex);
  return state.clocks.launch(stream);
}

void record_access(const at::Tensor& tensor, bool write, const std::string& operation, Moment moment) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  Simulation& state = simulation();
  const auto [first, last] = bytes_of(tensor);
  const std::lock_guard lock(state.mutex);
  AccessHistory* const history =
      tensor.is_cuda() ? &state.blocks.at(state.memory.offset_of(first)).history : state.pinned.find(first);
  if (history == nullptr) return;
  Access access{.begin = reinterpret_cast<std::size_t>(first),
                .end = reinterpret_cast<std::size_t>(last),
                .moment = moment,
                .write = write,
                .operation = operation};
  for (const Access& earlier : history->add(access, state.clocks.of(moment.stream)))
    state.races.push_back({operation, earlier.operation, describe(access, earlier)});
}

void record_race(Race race) {
  Simulation& state = simulation();
  const std::lock_guard lock(state.mutex);
  state.races.push_back(std::move(race));
}

void host_observed(const VectorClock& clock, bool orders) {
  Simulation& state = simulation();
  std::vector<PendingCopy> done;
  {
    const std::lock_guard lock(state.mutex);
    if (orders) state.clocks.host_wait(clock);
    done = state.pinned.take_done(clock);
  }
  for (const PendingCopy& copy : done) finish(copy);
}

void synchronize_host(const VectorClock& clock, c10::DeviceIndex device, const std::string& cause,
                      bool orders) {
  Simulation& state = simulation();
  {
    const std::lock_guard lock(state.mutex);
    state.host_syncs.push_back({device, std::this_thread::get_id(), cause});
  }
  host_observed(clock, orders);
}

void synchronize_stream(const c10::Stream& stream, const std::string& cause) {
  Simulation& state = simulation();
  VectorClock clock;
  {
    const std::lock_guard lock(state.mutex);
    clock = state.clocks.of(index_of(stream));
  }
  synchronize_host(clock, stream.device_index(), cause);
}

std::string to_string(const c10::Stream& stream) {
  return "stream " + std::to_string(stream.id()) + " of cuda:" + std::to_string(stream.device_index());
}

}  // namespace penstock::test::simulated
