// The version of libtorch.
#include <penstock/torch_version.h>

#include <ATen/Version.h>
#include <torch/version.h>

#include <string_view>

namespace penstock {
namespace {

// libtorch states its version only in this text, as `…, TORCH_VERSION=2.13.0, …`.
std::string read_version() {
  const std::string settings = at::show_config();
  const std::string_view key = "TORCH_VERSION=";
  const std::size_t at = settings.find(key);
  if (at == std::string::npos) return TORCH_VERSION;  // of the headers
  const std::size_t begin = at + key.size();
  return settings.substr(begin, settings.find_first_of(", \n", begin) - begin);
}

}  // namespace

std::string torch_version() {
  static const std::string version = read_version();
  return version;
}

}  // namespace penstock
