// Keeps the numbers of a run and serves them.
#include "train/display/dashboard.h"

#include "base/json.h"
#include "base/text.h"
#include "train/display/dashboard_page.h"

#include <penstock/base/error.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace penstock::tool {
namespace {

constexpr char kDashboardMark = '\x1d';
constexpr std::size_t kMaxLine = 900'000;  //!< the launcher splits lines over 1 MiB
constexpr std::size_t kMaxSteps = 20'000;  //!< then every second step is dropped; a chart has fewer pixels

// The step of a JSON object that starts with it: {"step":7,…
std::int64_t step_of_json(const std::string& json) {
  return std::atoll(json.c_str() + std::strlen("{\"step\":"));
}

// The number after `name=` in the query of a target; 0 if there is none.
std::size_t query_number(std::string_view target, const std::string& name) {
  for (const std::string& start : {"?" + name + "=", "&" + name + "="}) {
    const std::size_t at = target.find(start);
    if (at != std::string_view::npos)
      return std::strtoull(std::string(target.substr(at + start.size())).c_str(), nullptr, 10);
  }
  return 0;
}

void append_objects(JsonWriter& json, const std::vector<std::string>& objects, std::size_t from) {
  json.begin_array();
  for (std::size_t i = from; i < objects.size(); ++i) json.raw(objects[i]);
  json.end_array();
}

}  // namespace

std::string dashboard_line(DashboardLine kind, std::string_view content) {
  if (content.size() > kMaxLine) return {};
  std::string line{kDashboardMark, static_cast<char>(kind)};
  line += content;
  std::replace(line.begin(), line.end(), '\n', ' ');  // only between the elements of an SVG
  return line;
}

bool DashboardData::take(std::string_view line) {
  if (line.size() < 2 || line[0] != kDashboardMark) return false;
  const std::string content(line.substr(2));
  const std::lock_guard lock(mutex_);
  switch (static_cast<DashboardLine>(line[1])) {
    case DashboardLine::Begin:
      begin(content);
      break;
    case DashboardLine::Step:
      steps_.push_back(content);
      if (steps_.size() <= kMaxSteps) break;
      for (std::size_t i = 0; 2 * i < steps_.size(); ++i) std::swap(steps_[i], steps_[2 * i]);
      steps_.resize((steps_.size() + 1) / 2);
      ++generation_;
      break;
    case DashboardLine::Validation:
      validations_.push_back(content);
      break;
    case DashboardLine::Timeline:
      timeline_ = content;
      ++timelines_;
      break;
  }
  return true;
}

// After a restart, the run repeats the steps after its last checkpoint.
void DashboardData::begin(std::string_view content) {
  info_ = content;
  const std::string name = "\"first_step\":";
  const std::size_t at = info_.find(name);
  const std::int64_t first = at == std::string::npos ? 1 : std::atoll(info_.c_str() + at + name.size());
  for (auto* objects : {&steps_, &validations_})
    std::erase_if(*objects, [&](const std::string& object) { return step_of_json(object) >= first; });
  ++generation_;
}

std::string DashboardData::json(std::size_t from, std::size_t generation) const {
  const bool known = generation == generation_ && from <= steps_.size();
  JsonWriter out;
  out.begin_object().key("info").raw(info_);
  out.field("generation", static_cast<std::int64_t>(generation_));
  out.field("from", static_cast<std::int64_t>(known ? from : 0));
  out.field("timelines", static_cast<std::int64_t>(timelines_)).key("steps");
  append_objects(out, steps_, known ? from : 0);
  out.key("validations");
  append_objects(out, validations_, 0);
  return out.end_object().text();
}

std::optional<Content> DashboardData::find(std::string_view target) const {
  const std::string_view path = path_of(target);
  if (path == "/" || path == "/index.html") return Content{"text/html", std::string(kDashboardPage)};
  const std::lock_guard lock(mutex_);
  if (path == "/data.json")
    return Content{"application/json",
                   json(query_number(target, "from"), query_number(target, "generation"))};
  if (path == "/timeline.svg" && !timeline_.empty()) return Content{"image/svg+xml", timeline_};
  return std::nullopt;
}

Dashboard::Dashboard()
    : server_([this](std::string_view target) { return data_.find(target); }, std::nullopt),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_.number() < 0) throw Error(std::string("cannot create an event: ") + std::strerror(errno));
  // Signals go to the thread of the launcher.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { server_.serve(stop_); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Dashboard::~Dashboard() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.number(), &one, sizeof one);
  thread_.join();
}

}  // namespace penstock::tool
