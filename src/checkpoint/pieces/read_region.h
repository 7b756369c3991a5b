// Copies elements from the stored pieces, or from a full tensor, to the requested pieces.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <functional>

namespace penstock::checkpoint {

//! Returns the open file of a stored piece, after checking that it contains the piece.
using PieceFile = std::function<const SafetensorsFile&(const StoredTensor::StoredPiece& piece)>;

//! Where the elements of stored tensors are read.
struct PieceSource {
  PieceFile file_of;
  bool has_checksums = true;
};

//! Fills `local`, which is the region `part` of the stored tensor, from the stored pieces. Adds to the byte
//! counts of the report.
void read_part(const StoredTensor& stored, const PieceSource& source, const Region& part,
               const at::Tensor& local, LoadReport& report);

//! Fills `local`, which is the region `part` of `full`, from a tensor in memory. Casts the elements.
void copy_part(const at::Tensor& full, const Region& part, const at::Tensor& local);

}  // namespace penstock::checkpoint
