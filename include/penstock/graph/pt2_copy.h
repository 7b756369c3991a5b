// Copies an archive with other weights, for Python's `torch.export.load` and for every reader of archives.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>

namespace penstock::graph {

//! Returns the new value of a parameter or buffer by its name; an undefined tensor keeps the stored value.
using NewWeight = std::function<at::Tensor(const std::string& name)>;

//! Copies the archive to `target`, which it replaces, with new values of parameters and buffers of the
//! state_dict. Values are cast to the dtypes of the archive. Everything else keeps its bytes. Throws
//! UsageError if a value has another shape, ParseError if the archive is damaged, StorageError if a file
//! cannot be read or written.
void copy_archive(const std::filesystem::path& archive, const std::filesystem::path& target,
                  const NewWeight& new_weight);

}  // namespace penstock::graph
