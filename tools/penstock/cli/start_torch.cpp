// Runs penstock-torch. `start_torch` replaces this process (execv, as git does), so signals, standard streams
// and the exit code need no forwarding.
#include "cli/start_torch.h"

#include "base/text.h"
#include "cli/libtorch.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace penstock::tool {
namespace {

constexpr const char* kTorchTool = "penstock-torch";

//! Returns only if the program cannot be started.
void exec_program(const std::string& program, const std::string& command,
                  const std::vector<std::string>& args) {
  std::vector<std::string> line{program, command};
  line.insert(line.end(), args.begin(), args.end());
  std::vector<char*> argv;
  argv.reserve(line.size() + 1);
  for (std::string& arg : line) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
}

[[noreturn]] void cannot_start(const std::string& command, const std::string& program, int reason) {
  throw Error(
      "penstock " + command + " needs libtorch and is part of a second program, " + quote(program, 200) +
          ", which cannot be started: " + std::strerror(reason),
      {},
      "install the package penstock-torch, or build with PENSTOCK_TORCH_SIDE=ON and install both programs "
      "in the same directory");
}

//! The path of the penstock-torch in `directory`, ready to be started.
std::string torch_program(const std::filesystem::path& directory, const std::string& command) {
  std::string program = (directory / kTorchTool).string();
  if (access(program.c_str(), X_OK) != 0) cannot_start(command, program, errno);
  expose_libtorch(directory, command);
  return program;
}

}  // namespace

void start_torch(const Command& command, const std::vector<std::string>& args) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  // In penstock-torch itself, a missing handler is a bug. Executing it again would loop forever.
  if (command.home != Home::Torch || self.filename() == kTorchTool) {
    throw Error("the command " + quote(command.name) + " has no handler in " +
                quote(self.filename().string()));
  }
  const std::string name(command.name);
  const std::string program = torch_program(self.parent_path(), name);
  exec_program(program, name, args);
  cannot_start(name, program, errno);
}

TorchOutput output_of_torch(const std::string& command, const std::vector<std::string>& args) {
  const std::string program =
      torch_program(std::filesystem::read_symlink("/proc/self/exe").parent_path(), command);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
  const pid_t child = fork();
  if (child < 0) throw Error(std::string("cannot fork: ") + std::strerror(errno));
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    exec_program(program, command, args);
    _exit(127);
  }
  close(ends[1]);
  TorchOutput output;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) != 0;) {
    if (got > 0) output.text.append(buffer.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return output;
}

}  // namespace penstock::tool
