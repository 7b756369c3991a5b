// The memory is an anonymous file that ranks open through the /proc entry of its owner.
#include "train/display/progress_board.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace penstock::tool {
namespace {

constexpr std::size_t kLine = 128;
constexpr const char* kBoardVariable = "PENSTOCK_PROGRESS_BOARD";

}  // namespace

ProgressBoard::ProgressBoard(int ranks) : ranks_(ranks) {
  file_ = memfd_create("penstock-progress", MFD_CLOEXEC);
  const std::size_t size = kLine * static_cast<std::size_t>(ranks);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(size)) != 0)
    throw Error("cannot allocate shared memory for the progress of the ranks");
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) throw Error("cannot allocate shared memory for the progress of the ranks");
  memory_ = static_cast<char*>(memory);
}

ProgressBoard::~ProgressBoard() {
  if (memory_ != nullptr) munmap(memory_, kLine * static_cast<std::size_t>(ranks_));
  if (file_ >= 0) close(file_);
}

std::map<std::string, std::string> ProgressBoard::environment() const {
  return {{kBoardVariable, str_cat("/proc/", getpid(), "/fd/", file_)}};
}

std::string ProgressBoard::of(Rank rank) const {
  if (rank.value < 0 || rank.value >= ranks_) return {};
  const char* const line = memory_ + kLine * rank.index();
  return {line, strnlen(line, kLine)};
}

void ProgressBoard::clear() {
  std::memset(memory_, 0, kLine * static_cast<std::size_t>(ranks_));
}

RankProgress::RankProgress(Rank rank) {
  const std::size_t index = rank.index();
  const char* const path = std::getenv(kBoardVariable);
  if (path == nullptr) return;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  const off_t size = lseek(file, 0, SEEK_END);
  if (size >= static_cast<off_t>(kLine * (index + 1))) {
    void* const memory =
        mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) {
      size_ = static_cast<std::size_t>(size);
      memory_ = static_cast<char*>(memory);
      line_ = memory_ + kLine * index;
    }
  }
  close(file);
}

RankProgress::~RankProgress() {
  if (memory_ != nullptr) munmap(memory_, size_);
}

void RankProgress::write(std::optional<std::int64_t> step, const std::string& what) {
  const std::string text = step ? str_cat("step ", *step, ", ", what) : what;
  std::strncpy(line_, text.c_str(), kLine - 1);
}

void RankProgress::report(std::optional<std::int64_t> step, std::string_view phase) {
  if (line_ != nullptr) write(step, std::string(phase));
}

void RankProgress::report(std::optional<std::int64_t> step, const schedule::Action& action) {
  if (line_ == nullptr) return;
  write(step, str_cat("stage ", action.stage().value, ", action ", to_string(action)));
}

}  // namespace penstock::tool
