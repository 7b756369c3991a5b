// Starts the process of a rank.
#include "comm/launch/child_process.h"

#include "base/io/storage_error.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

extern char** environ;

namespace penstock::comm {
namespace {

Fd open_output(const std::string& path) {
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) throw_storage_error("write", path, errno);
  return file;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!extra.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : extra) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

ChildProcess start_child(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment, rlim_t time_limit,
                         const std::string& out_path, const std::string& err_path) {
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  auto [failure_read, failure_write] = make_pipe();  // closed by exec, or carries errno if exec fails
  if (!out_path.empty()) out_write = open_output(out_path);
  if (!err_path.empty()) err_write = open_output(err_path);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_storage_error("open", "/dev/null", errno);
  for (const Fd* const pipe : {&out_read, &err_read}) {
    if (fcntl(pipe->get(), F_SETFL, O_NONBLOCK) != 0)
      throw CommError("cannot set up the output of a rank: " + errno_text(errno));
  }

  // Allocate all memory before the fork: the child of a multithreaded process may only make system calls.
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables = merged_environment(environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(variables);
  rlimit limit{};
  const bool has_limit = getrlimit(RLIMIT_RTTIME, &limit) == 0;
  limit.rlim_cur = time_limit;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw CommError("cannot start the process of a rank: " + errno_text(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent has already exited
    if (has_limit) setrlimit(RLIMIT_RTTIME, &limit);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
    if (dup2(null.get(), STDIN_FILENO) >= 0 && dup2(out_write.get(), STDOUT_FILENO) >= 0 &&
        dup2(err_write.get(), STDERR_FILENO) >= 0)
      execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const auto written = write(failure_write.get(), &error, sizeof error);
    _exit(127);
  }
  setpgid(pid, pid);
  failure_write.reset();
  ChildProcess child;
  child.pid = pid;
  int error = 0;
  if (read(failure_read.get(), &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    throw UsageError("cannot start " + quote(command.at(0), 200) + ": " + std::strerror(error), {},
                     "check the path of the program");
  }
  child.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  child.out = std::move(out_read);
  child.err = std::move(err_read);
  return child;
}

}  // namespace penstock::comm
