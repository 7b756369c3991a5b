// The functions of the fake NCCL that libtorch calls.
#include "communicator.h"
#include "stream.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>

namespace {

using fake_cuda::stream_of;

enum Operation : std::uint64_t {
  kPointToPoint = 1,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll
};

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

struct Kernel {
  ncclComm* communicator;
  cudaStream_t stream;
  std::function<void()> run;
};
thread_local int group_depth = 0;
thread_local std::vector<Kernel> grouped;

ncclResult_t launch(ncclComm* communicator, cudaStream_t stream, std::function<void()> run) {
  if (communicator->is_aborted()) return ncclInvalidUsage;
  if (group_depth > 0) {
    grouped.push_back({communicator, stream, std::move(run)});
  } else {
    stream_of(stream).add(std::move(run));
  }
  return ncclSuccess;
}

template <class T>
void reduce(char* to, const char* from, std::size_t count, ncclRedOp_t operation) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    const T result = operation == ncclMax    ? std::max(a, b)
                     : operation == ncclMin  ? std::min(a, b)
                     : operation == ncclProd ? static_cast<T>(a * b)
                                             : static_cast<T>(a + b);
    std::memcpy(to + i * sizeof(T), &result, sizeof(T));
  }
}

template <class T>
void divide(char* data, std::size_t count, int by) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    value = static_cast<T>(value / static_cast<T>(by));
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
}

//! Calls `call.template operator()<T>()` with the C++ type.
template <class Call>
void with_type(ncclDataType_t type, const Call& call) {
  switch (type) {
    case ncclFloat32:
      return call.template operator()<float>();
    case ncclFloat64:
      return call.template operator()<double>();
    case ncclInt64:
      return call.template operator()<std::int64_t>();
    case ncclInt32:
      return call.template operator()<std::int32_t>();
    case ncclUint8:
      return call.template operator()<std::uint8_t>();
    default:
      std::fprintf(stderr, "fake NCCL: no reduction of type %d\n", type);
  }
}

//! Reduces rows, one per rank, in rank order.
std::vector<char> reduced(const std::vector<const char*>& rows, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t operation) {
  std::vector<char> result(rows[0], rows[0] + count * size_of(type));
  with_type(type, [&]<class T>() {
    for (std::size_t row = 1; row < rows.size(); ++row) reduce<T>(result.data(), rows[row], count, operation);
    if (operation == ncclAvg) divide<T>(result.data(), count, static_cast<int>(rows.size()));
  });
  return result;
}

//! The data of all ranks, `size` bytes each. Rank 0 collects and distributes it. `finish` gets it on every
//! rank.
ncclResult_t collective(ncclComm* communicator, cudaStream_t stream, const void* data, std::size_t size,
                        Operation operation, std::function<void(const std::vector<const char*>&)> finish) {
  return launch(communicator, stream, [=] {
    const int ranks = communicator->size(), me = communicator->rank();
    std::vector<char> all(size * static_cast<std::size_t>(ranks));
    const auto row = [&](int rank) { return all.data() + size * static_cast<std::size_t>(rank); };
    std::memcpy(row(me), data, size);
    const std::uint64_t distribute = operation + 100U;
    if (me == 0) {
      for (int rank = 1; rank < ranks; ++rank)
        if (!communicator->receive(rank, row(rank), size, operation)) return;
      for (int rank = 1; rank < ranks; ++rank)
        if (!communicator->send(rank, all.data(), all.size(), distribute)) return;
    } else if (!communicator->send(0, row(me), size, operation) ||
               !communicator->receive(0, all.data(), all.size(), distribute)) {
      return;
    }
    std::vector<const char*> rows;
    for (int rank = 0; rank < ranks; ++rank) rows.push_back(row(rank));
    finish(rows);
  });
}

ncclResult_t create(ncclComm_t* communicator, int size, const ncclUniqueId& id, int rank) {
  auto* const made = new ncclComm(id.internal, size, rank);  // never freed: its kernels may outlive it
  if (!made->connect()) return ncclSystemError;
  *communicator = made;
  return ncclSuccess;
}

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "fake-nccl-%d-%u", getpid(), std::random_device()());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return create(communicator, size, id, rank);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* /*config*/) {
  return create(communicator, size, id, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int /*count*/,
                                      ncclUniqueId* ids, ncclConfig_t* /*config*/) {
  return create(communicator, size, ids[0], rank);
}
ncclResult_t ncclCommFinalize(ncclComm_t /*communicator*/) {
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (communicator != nullptr) communicator->abort();
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return ncclCommDestroy(communicator);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = communicator->error();
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
  *count = communicator->size();
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = communicator->rank();
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t error) {
  return error == ncclSuccess       ? "no error"
         : error == ncclRemoteError ? "remote process exited or there was a network error"
                                    : "error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t /*communicator*/) {
  return "";
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
// The kernels of a group on one stream run at the same time.
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  std::vector<Kernel> kernels = std::exchange(grouped, {});
  while (!kernels.empty()) {
    const cudaStream_t stream = kernels.front().stream;
    const auto others = std::stable_partition(kernels.begin(), kernels.end(),
                                              [&](const Kernel& kernel) { return kernel.stream == stream; });
    std::vector<Kernel> together(kernels.begin(), others);
    kernels.erase(kernels.begin(), others);
    stream_of(stream).add([together] {
      std::vector<std::thread> threads;
      for (const Kernel& kernel : together) threads.emplace_back(kernel.run);
      for (std::thread& thread : threads) thread.join();
    });
  }
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int to,
                      ncclComm_t communicator, cudaStream_t stream) {
  return launch(communicator, stream,
                [=] { communicator->send(to, data, count * size_of(type), kPointToPoint); });
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int from, ncclComm_t communicator,
                      cudaStream_t stream) {
  return launch(communicator, stream,
                [=] { communicator->receive(from, data, count * size_of(type), kPointToPoint); });
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return collective(communicator, stream, from, count * size_of(type), kAllReduce,
                    [=](const std::vector<const char*>& rows) {
                      const std::vector<char> result = reduced(rows, count, type, operation);
                      std::memcpy(to, result.data(), result.size());
                    });
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t communicator, cudaStream_t stream) {
  return collective(communicator, stream, from, count * size_of(type), kReduce,
                    [=](const std::vector<const char*>& rows) {
                      if (communicator->rank() != root) return;
                      const std::vector<char> result = reduced(rows, count, type, operation);
                      std::memcpy(to, result.data(), result.size());
                    });
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return collective(communicator, stream, from, size, kBroadcast,
                    [=](const std::vector<const char*>& rows) { std::memcpy(to, rows[index(root)], size); });
}
ncclResult_t ncclBcast(void* data, std::size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                       cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, communicator, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return collective(communicator, stream, from, size, kAllGather, [=](const std::vector<const char*>& rows) {
    std::memcpy(to, rows[0], size * rows.size());
  });
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return collective(communicator, stream, from, size * index(communicator->size()), kReduceScatter,
                    [=](const std::vector<const char*>& rows) {
                      std::vector<const char*> shards;
                      for (const char* const row : rows)
                        shards.push_back(row + size * index(communicator->rank()));
                      const std::vector<char> result = reduced(shards, count, type, operation);
                      std::memcpy(to, result.data(), result.size());
                    });
}
ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t count, ncclDataType_t type,
                          ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return collective(communicator, stream, from, size * index(communicator->size()), kAllToAll,
                    [=](const std::vector<const char*>& rows) {
                      for (std::size_t rank = 0; rank < rows.size(); ++rank)
                        std::memcpy(static_cast<char*>(to) + size * rank,
                                    rows[rank] + size * index(communicator->rank()), size);
                    });
}

}  // extern "C"
