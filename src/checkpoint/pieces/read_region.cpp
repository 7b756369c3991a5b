// Stored and requested regions both consist of chunks, that is, row-major boxes. The intersection of a stored
// and a requested chunk is a box whose rows are contiguous bytes in the file.
#include "checkpoint/pieces/read_region.h"

#include "base/io/crc32.h"
#include "base/text.h"
#include "checkpoint/pieces/regions.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/checkpoint/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

namespace penstock::checkpoint {
namespace {

//! Rows with smaller gaps than this are read in one call, including the gaps: a call costs about as much.
constexpr std::uint64_t kMaxGapBytes = 4096;
constexpr std::uint64_t kMaxSpanBytes = 1 << 20;

//! The offsets of the rows of `part` in `box`, in elements of the box. Each row has `length` contiguous
//! elements.
struct Runs {
  std::vector<std::int64_t> begins;
  std::int64_t length = 1;
};

Runs runs_of(const Box& box, const Box& part) {
  Runs runs;
  const std::size_t dims = box.lengths.size();
  // Dim `outer` and all later dims are contiguous: `part` spans all of the later ones completely.
  std::size_t outer = dims;
  while (outer > 0) {
    --outer;
    runs.length *= part.lengths[outer];
    if (part.lengths[outer] != box.lengths[outer]) break;
  }
  std::vector<std::int64_t> strides(dims, 1);
  for (std::size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * box.lengths[d];
  std::int64_t base = 0;
  for (std::size_t d = 0; d < dims; ++d) base += (part.offsets[d] - box.offsets[d]) * strides[d];
  std::vector<std::int64_t> index(outer, 0);
  while (true) {
    std::int64_t begin = base;
    for (std::size_t d = 0; d < outer; ++d) begin += index[d] * strides[d];
    runs.begins.push_back(begin);
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == part.lengths[d - 1]) index[--d] = 0;
    if (d == 0) return runs;
  }
}

//! Reads the rows consecutively into `target`.
void read_runs(const SafetensorsFile& file, const SafetensorsEntry& entry, const Runs& runs,
               std::int64_t offset, std::uint64_t element, std::uint8_t* target, LoadReport& report) {
  const std::uint64_t length = static_cast<std::uint64_t>(runs.length) * element;
  const auto offset_of = [&](std::size_t i) {
    return static_cast<std::uint64_t>(runs.begins[i] + offset) * element;
  };
  std::vector<std::uint8_t> span;
  for (std::size_t i = 0; i < runs.begins.size();) {
    std::size_t next = i + 1;
    while (next < runs.begins.size() && offset_of(next) - offset_of(next - 1) - length <= kMaxGapBytes &&
           offset_of(next) + length - offset_of(i) <= kMaxSpanBytes) {
      ++next;
    }
    const std::uint64_t bytes = offset_of(next - 1) + length - offset_of(i);
    if (next == i + 1) {
      file.read(entry, offset_of(i), {target, length});
    } else {
      span.resize(bytes);
      file.read(entry, offset_of(i), span);
      for (std::size_t j = i; j < next; ++j) {
        std::memcpy(target + (j - i) * length, span.data() + (offset_of(j) - offset_of(i)), length);
      }
    }
    report.bytes_read += bytes;
    target += (next - i) * length;
    i = next;
  }
}

//! Returns the view of `part` in the tensor that contains `chunk`.
at::Tensor region_of(const at::Tensor& local, const Region& local_part, const Chunk& chunk, const Box& part) {
  at::Tensor region = local;
  if (std::holds_alternative<FlatRange>(local_part)) {
    region = local.view({-1}).narrow(0, chunk.offset, numel_of(chunk.box.lengths)).view(chunk.box.lengths);
  }
  for (std::size_t d = 0; d < part.lengths.size(); ++d) {
    region =
        region.narrow(static_cast<std::int64_t>(d), part.offsets[d] - chunk.box.offsets[d], part.lengths[d]);
  }
  return region;
}

//! Fills `region`, the elements of `box`, from the chunk `held` of a stored piece.
void read_box(const StoredTensor& stored, const StoredTensor::StoredPiece& piece, const PieceSource& source,
              const Chunk& held, const Box& box, const at::Tensor& region, LoadReport& report) {
  const SafetensorsFile& file = source.file_of(piece);
  const bool direct = region.is_contiguous() && region.is_cpu() && region.scalar_type() == stored.dtype;
  const at::Tensor staging = direct ? region : at::empty(box.lengths, at::TensorOptions(stored.dtype));
  auto* bytes = static_cast<std::uint8_t*>(staging.mutable_data_ptr());
  const SafetensorsEntry& entry = file.entry(piece.key);
  read_runs(file, entry, runs_of(held.box, box), held.offset, c10::elementSize(stored.dtype), bytes, report);
  if (source.has_checksums && staging.nbytes() == entry.nbytes() &&
      crc32c({bytes, staging.nbytes()}) != piece.crc32c) {
    throw CheckpointError(
        quote(file.path().string(), 200) + ": " + piece.key + " is damaged: its checksum does not match", {},
        "use an older checkpoint; `penstock checkpoint verify` lists all damage");
  }
  check_bools(stored.dtype, {bytes, staging.nbytes()},
              quote(file.path().string(), 200) + ": tensor " + piece.key);
  if (!direct) region.copy_(staging);
  report.bytes_used += staging.nbytes();
}

}  // namespace

void read_part(const StoredTensor& stored, const PieceSource& source, const Region& part,
               const at::Tensor& local, LoadReport& report) {
  const at::NoGradGuard no_grad;
  std::vector<Region> parts;
  for (const auto& piece : stored.pieces) parts.push_back(piece.region);
  const std::vector<RegionChunk> held = sorted_chunks(parts, stored.shape);
  for (const Chunk& wanted : chunks_of(part, stored.shape)) {
    std::vector<Box> missing = {wanted.box};
    for (const RegionChunk& chunk : held) {
      if (missing.empty()) break;
      std::vector<Box> rest;
      for (Box& box : missing) {
        const std::optional<Box> both = intersection(box, chunk.chunk.box);
        subtract(std::move(box), chunk.chunk.box, rest);
        if (!both) continue;
        const auto& piece = stored.pieces[chunk.part];
        read_box(stored, piece, source, chunk.chunk, *both, region_of(local.detach(), part, wanted, *both),
                 report);
      }
      missing = std::move(rest);
    }
  }
}

void copy_part(const at::Tensor& full, const Region& part, const at::Tensor& local) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> shape = full.sizes().vec();
  for (const Chunk& chunk : chunks_of(part, shape)) {
    at::Tensor source = full;
    for (std::size_t d = 0; d < shape.size(); ++d)
      source = source.narrow(static_cast<std::int64_t>(d), chunk.box.offsets[d], chunk.box.lengths[d]);
    region_of(local.detach(), part, chunk, chunk.box).copy_(source);
  }
}

}  // namespace penstock::checkpoint
