// A minimal reader of the safetensors files that make_archives.py and python_reference.py write.
#pragma once

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>

namespace penstock::test {

inline std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() < 8) throw std::runtime_error("cannot read " + path);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const std::map<std::string, at::ScalarType> dtypes = {{"F32", at::kFloat},
                                                        {"F64", at::kDouble},
                                                        {"I64", at::kLong},
                                                        {"BF16", at::kBFloat16},
                                                        {"BOOL", at::kBool}};
  std::map<std::string, at::Tensor> tensors;
  const nlohmann::json index = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, entry] : index.items()) {
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    at::Tensor tensor = at::empty(shape, dtypes.at(entry["dtype"].get<std::string>()));
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    if (tensor.numel() > 0)
      std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header + begin, tensor.nbytes());
    tensors.emplace(name, tensor);
  }
  return tensors;
}

inline std::string archive(const std::string& name) {
  std::string path = PENSTOCK_SOURCE_DIR "/tests/graph/archives/";
  return path.append(name);
}

}  // namespace penstock::test
