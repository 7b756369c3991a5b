// The blocks of device memory: which bytes are in use, and by whom they were accessed.
#pragma once

#include "access_history.h"
#include "device_memory.h"
#include "simulated_device.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace penstock::test::simulated {

struct Block {
  std::size_t size = 0;
  StreamIndex stream = 0;  //!< the stream that was current when the block was allocated
  std::size_t used = 0;    //!< bytes that the tensor needs, at most `size`; 0 if the block is free
  std::vector<StreamIndex> recorded_streams;  //!< of `Tensor::record_stream`
  AccessHistory history;
};

//! Like libtorch's CUDA allocator, keeps a free block for the stream that it was allocated on, and gives it
//! out again without waiting for other streams. A tensor that another stream uses without `record_stream` can
//! therefore be overwritten; the history of the block shows this as a race.
class DeviceBlocks {
 public:
  DeviceBlocks(const DeviceMemory& memory, c10::DeviceIndex devices);

  //! Returns the offset of a block of at least `size` bytes, or nothing if the device is full.
  std::optional<std::size_t> take(c10::DeviceIndex device, StreamIndex stream, std::size_t size);
  void release(std::size_t offset);

  //! The block in use that contains the offset.
  Block& at(std::size_t offset);

  //! Gives free blocks back, after a wait for all work on the device.
  void empty_cache(c10::DeviceIndex device);

  const MemoryUse& use(c10::DeviceIndex device) const { return use_[static_cast<std::size_t>(device)]; }
  void reset_peak(c10::DeviceIndex device);

 private:
  std::optional<std::size_t> take_cached(StreamIndex stream, std::size_t size);
  std::optional<std::size_t> take_new(c10::DeviceIndex device, std::size_t size);
  void give_back(std::size_t offset, std::size_t size);
  c10::DeviceIndex device_of(std::size_t offset) const;

  const DeviceMemory& memory_;
  std::map<std::size_t, Block> blocks_;                                        // by offset
  std::map<StreamIndex, std::set<std::pair<std::size_t, std::size_t>>> free_;  // size and offset
  std::vector<std::map<std::size_t, std::size_t>> unused_;                     // per device, offset -> size
  std::vector<MemoryUse> use_;
};

}  // namespace penstock::test::simulated
