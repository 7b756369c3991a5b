// Loads an archive as a torch::nn module.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/graph/exported_module.h>
#include <penstock/graph/pt2.h>

#include <cerrno>

namespace penstock::graph {

ExportedModule load_module(const std::filesystem::path& file, std::optional<torch::Device> device) {
  if (!std::filesystem::exists(file)) {
    throw StorageError("the archive " + quote(file.string(), 200) + " does not exist", ENOENT,
                       "write it in Python with torch.export.save(torch.export.export(model, args), file)");
  }
  const Pt2Archive archive(file);
  ExportedModule module(archive.graph(), archive.load(archive.graph().slots));
  if (device) module->to(*device);
  return module;
}

}  // namespace penstock::graph
