// A CUDA runtime without a device: memory is host memory, streams are threads, kernels do nothing. libtorch's
// kernels are replaced by computations on the host (../host_kernels.cpp). FAKE_CUDA_DEVICES is the number of
// devices (8).
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#undef cudaGetDeviceProperties
#undef cudaGetDriverEntryPointByVersion

namespace fake_cuda {
namespace {

constexpr std::size_t kMemory = std::size_t{8} << 30U;
constexpr std::size_t kAlignment = 512;

int device_count() {
  const char* const asked = std::getenv("FAKE_CUDA_DEVICES");
  return asked == nullptr ? 8 : std::atoi(asked);
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

struct Block {
  std::size_t size = 0;
  int device = 0;
};

// Never destroyed: libtorch frees memory and queries streams during exit.
struct State {
  std::mutex mutex;
  std::map<int, Stream*> defaults;
  std::vector<Stream*> streams;
  std::map<const char*, Block> blocks;

  Stream* add_stream(int device) { return streams.emplace_back(new Stream(device)); }
};

State& state() {
  static auto* const instance = new State;
  return *instance;
}

// The number of the last record that was issued, and of the last one that the stream reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  long issued = 0, reached = 0;
  std::chrono::steady_clock::time_point time;

  void wait(long number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= number; });
  }
};

Event& event_of(cudaEvent_t handle) {
  return *reinterpret_cast<Event*>(handle);
}

cudaError_t allocate(void** memory, std::size_t size, bool on_device) {
  *memory = std::aligned_alloc(kAlignment, (size / kAlignment + 1) * kAlignment);
  if (*memory == nullptr) return fail(cudaErrorMemoryAllocation);
  if (!on_device) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  state().blocks[static_cast<const char*>(*memory)] = {size, current_device};
  return cudaSuccess;
}

struct LaunchConfiguration {
  dim3 grid, block;
  std::size_t shared = 0;
  void* stream = nullptr;
};
thread_local LaunchConfiguration launch_configuration;

}  // namespace

Stream& stream_of(cudaStream_t handle) {
  if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
    return *reinterpret_cast<Stream*>(handle);
  const std::lock_guard lock(state().mutex);
  Stream*& found = state().defaults[current_device];
  if (found == nullptr) found = state().add_stream(current_device);
  return *found;
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

// Devices.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "fake device");
  properties->major = 9;
  properties->totalGlobalMem = kMemory;
  properties->multiProcessorCount = 8;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = properties->sharedMemPerBlockOptin = 49152;
  properties->sharedMemPerMultiprocessor = 200000;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  for (int i = 0; i < 3; ++i) {
    properties->maxThreadsDim[i] = i == 2 ? 64 : 1024;
    properties->maxGridSize[i] = i == 0 ? 2147483647 : 65535;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 8;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* value, int /*device*/, int /*peer*/) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *total = kMemory;
  *available = kMemory / 4 * 3;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* /*symbol*/, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorInvalidValue;
}

// Errors.
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "fakeCudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "error of the fake CUDA runtime";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

// Memory.
cudaError_t cudaMalloc(void** memory, std::size_t size) {
  return allocate(memory, size, true);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t size, cudaStream_t /*stream*/) {
  return allocate(memory, size, true);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t size, unsigned /*flags*/) {
  return allocate(memory, size, false);
}
cudaError_t cudaFree(void* memory) {
  {
    const std::lock_guard lock(state().mutex);
    state().blocks.erase(static_cast<const char*>(memory));
  }
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t /*stream*/) {
  return cudaFree(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -1;
  const auto* const address = static_cast<const char*>(memory);
  const std::lock_guard lock(state().mutex);
  const auto next = state().blocks.upper_bound(address);
  if (next == state().blocks.begin()) return cudaSuccess;
  const auto& [start, block] = *std::prev(next);
  if (address >= start + block.size) return cudaSuccess;
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = block.device;
  attributes->devicePointer = const_cast<void*>(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  stream_of(stream).add([=] { std::memcpy(to, from, size); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int /*to_device*/, const void* from, int /*from_device*/,
                                std::size_t size, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind /*kind*/) {
  stream_of(nullptr).drain();
  std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t size, cudaStream_t stream) {
  stream_of(stream).add([=] { std::memset(memory, value, size); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t size) {
  cudaMemsetAsync(memory, value, size, nullptr);
  stream_of(nullptr).drain();
  return cudaSuccess;
}

// Streams. They are never destroyed; libtorch takes them from a pool.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  const std::lock_guard lock(state().mutex);
  *stream = reinterpret_cast<cudaStream_t>(state().add_stream(current_device));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t /*stream*/, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).drain();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(state().mutex);
    streams = state().streams;
  }
  for (Stream* const stream : streams)
    if (stream->device() == current_device) stream->drain();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* /*graph*/,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, std::size_t* /*count*/) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
  return cudaSuccess;
}

// Events. They may be destroyed while a stream still refers to them, so they are not freed.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  Event& recorded = event_of(event);
  long number = 0;
  {
    const std::lock_guard lock(recorded.mutex);
    number = ++recorded.issued;
  }
  stream_of(stream).add([&recorded, number] {
    {
      const std::lock_guard lock(recorded.mutex);
      recorded.reached = std::max(recorded.reached, number);
      recorded.time = std::chrono::steady_clock::now();
    }
    recorded.changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  Event& awaited = event_of(event);
  long number = 0;
  {
    const std::lock_guard lock(awaited.mutex);
    number = awaited.issued;
  }
  stream_of(stream).add([&awaited, number] { awaited.wait(number); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Event& queried = event_of(event);
  const std::lock_guard lock(queried.mutex);
  return queried.reached >= queried.issued ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Event& awaited = event_of(event);
  long number = 0;
  {
    const std::lock_guard lock(awaited.mutex);
    number = awaited.issued;
  }
  awaited.wait(number);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(event_of(end).time - event_of(start).time).count();
  return cudaSuccess;
}

// Kernels: registered and never run.
cudaError_t cudaLaunchKernel(const void* /*function*/, dim3 /*grid*/, dim3 /*block*/, void** /*arguments*/,
                             std::size_t /*shared*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* /*kernel*/, dim3 /*grid*/, dim3 /*block*/, void** /*arguments*/,
                               std::size_t /*shared*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* /*configuration*/, const void* /*function*/,
                                void** /*arguments*/) {
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*function*/) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* /*function*/, int /*size*/,
                                                          std::size_t /*shared*/) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* /*function*/,
                                                                   int /*size*/, std::size_t /*shared*/,
                                                                   unsigned /*flags*/) {
  *blocks = 1;
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
char __cudaInitModule(void** /*handle*/) {
  return 0;
}
void __cudaRegisterFunction(void** /*handle*/, const char* /*host*/, char* /*device*/, const char* /*name*/,
                            int /*limit*/, uint3* /*thread*/, uint3* /*block*/, dim3* /*block_size*/,
                            dim3* /*grid_size*/, int* /*warp*/) {}
void __cudaRegisterVar(void** /*handle*/, char* /*host*/, char* /*device*/, const char* /*name*/,
                       int /*external*/, std::size_t /*size*/, int /*constant*/, int /*global*/) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  launch_configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = launch_configuration.grid;
  *block = launch_configuration.block;
  *shared = launch_configuration.shared;
  *static_cast<void**>(stream) = launch_configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}

}  // extern "C"
