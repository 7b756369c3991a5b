// Replaces this process, as git does for its commands: signals, standard streams and the exit code need no
// passing on.
#include "start_torch.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace penstock::tool {
namespace {

constexpr const char* kTorchTool = "penstock-torch";

}  // namespace

void start_torch(const Command& command, const std::vector<std::string>& words) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  // In penstock-torch itself a missing handler is our mistake; starting it again would go on for ever.
  if (command.home != Home::Torch || self.filename() == kTorchTool) {
    throw Error("the command " + quote(command.name) + " has no code in " + quote(self.filename().string()));
  }
  const std::string program = (self.parent_path() / kTorchTool).string();
  std::vector<std::string> line{program, std::string(command.name)};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> argv;
  argv.reserve(line.size() + 1);
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  const std::string reason = std::strerror(errno);
  throw Error("penstock " + std::string(command.name) + " needs libtorch and lives in a second program, " +
                  quote(program, 200) + ", which cannot be started: " + reason,
              {}, "build with PENSTOCK_TORCH_SIDE=ON and install both programs side by side");
}

}  // namespace penstock::tool
