// Copying of elements from the pieces that files hold to the pieces that a rank asks for.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <functional>

namespace penstock {

//! Gives the open file of a piece, checked to hold it.
using PieceFile = std::function<const SafetensorsFile&(const StoredTensor::StoredPiece& piece)>;

//! Fills `local`, the given part of the stored tensor, from whatever pieces hold it; adds to the report's
//! bytes.
void read_part(const StoredTensor& stored, const PieceFile& file_of, const Part& part,
               const at::Tensor& local, LoadReport& report);

}  // namespace penstock
