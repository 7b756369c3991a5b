// Opens the weights of a model, in any format, like a checkpoint: `Checkpoint::load` then fills the pieces of
// every rank, in any topology.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/rename.h>

#include <filesystem>
#include <vector>

namespace penstock::checkpoint {

//! Opens one of:
//! - a safetensors file;
//! - a directory with `model.safetensors.index.json` and the files that it lists, or that index file, as
//!   Hugging Face stores large models;
//! - a directory with `model.safetensors`;
//! - a checkpoint, or a directory of checkpoints, of which it takes the newest complete one: its parameters
//!   and buffers.
//!
//! Reads only headers. Renames the tensors by the rules. Elements of safetensors files have no checksums.
//! Throws UsageError if the path is none of these, a rule matches no tensor, or two tensors get the same
//! name; CheckpointError if the index does not match its files.
Checkpoint open_weights(const std::filesystem::path& path, const std::vector<RenameRule>& rules = {});

}  // namespace penstock::checkpoint
