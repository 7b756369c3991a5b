// Prints step lines and draws the progress bar.
#include "train/display/train_display.h"

#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/terminal.h"
#include "train/display/dashboard.h"
#include "train/rank/resume_changes.h"

#include <penstock/view/drawing.h>
#include <penstock/view/render.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <sstream>

namespace penstock::tool {
namespace {

constexpr char kDisplayMark = '\x1e';
constexpr const char* kDisplayVariable = "PENSTOCK_TRAIN_DISPLAY";
constexpr const char* kGivenVariable = "PENSTOCK_TRAIN_GIVEN";
constexpr const char* kQuiet = " quiet";

std::string clock_text(double seconds) {
  const auto total = std::llround(seconds);
  if (total < 3600) return formatted("%lld:%02lld", total / 60, total % 60);
  return formatted("%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
}

std::string numbers_of(const train::StepRecord& record) {
  return formatted("loss %.4f  grad %.3g  lr %.3g  %.0f %s/s  bubble %.0f%%", record.loss, record.grad_norm,
                   record.rate, record.tokens_per_second.value_or(record.examples_per_second),
                   record.tokens_per_second ? "tokens" : "examples", 100 * record.bubble);
}

class Display : public train::Observer {
 public:
  explicit Display(DisplayOptions options) : options_(std::move(options)), mode_(options_.mode) {}

  void on_resume(const std::map<std::string, std::string>& notes) override {
    const auto stored = notes.find("config");
    if (stored == notes.end()) return;
    for (const std::string& line : changed_settings(stored->second, options_.config, options_.given))
      on_message(line);
  }

  void on_begin(const train::RunInfo& info) override {
    info_ = info;
    send_begin();
    seconds_ = 0;
    if (options_.quiet || mode_ == DisplayMode::Json) return;
    say(info.model + "; " + info.schedule + " over " + counted(info.stages, "stage"));
    if (info.first_step == 1) return;
    say(str_cat("loaded the checkpoint of step ", info.first_step - 1, "; ") +
        (info.first_step > info.steps ? str_cat("nothing is left to train (--steps ", info.steps, ")")
                                      : str_cat("training continues from step ", info.first_step)));
  }

  void on_step(const train::StepRecord& record) override {
    send(DashboardLine::Step, [&] { return to_json(record); });
    if (options_.quiet) return;
    if (mode_ == DisplayMode::Json) return say(to_json(record));
    // The first step is slow and not representative, so the average starts at the second.
    seconds_ = seconds_ == 0 || record.step <= info_.first_step + 1 ? record.seconds
                                                                    : 0.9 * seconds_ + 0.1 * record.seconds;
    const double left = seconds_ * static_cast<double>(info_.steps - record.step);
    const std::string position = str_cat("step ", record.step, "/", info_.steps);
    const std::string tail = record.skipped ? "  not finite: skipped" : "";
    if (mode_ == DisplayMode::Plain) return say(position + "  " + numbers_of(record) + tail);
    constexpr std::int64_t width = 24;
    const auto full = static_cast<std::size_t>(width * record.step / std::max<std::int64_t>(info_.steps, 1));
    std::string bar = std::string(full, '=') + (full < width ? ">" : "");
    bar.resize(width, ' ');
    say(kDisplayMark +
        ("[" + bar + "] " + position + "  " + clock_text(left) + " left  " + numbers_of(record) + tail));
  }

  void on_timeline(std::int64_t step, const schedule::Timeline& timeline) override {
    send(DashboardLine::Timeline, [&] {
      view::Drawing drawing = view::draw(std::span(&timeline, 1), view::TimeUnit::Seconds);
      drawing.title = str_cat(info_.schedule, ": step ", step, ", measured");
      return to_svg(drawing);
    });
  }

  void on_evaluation(std::int64_t step, double loss) override {
    JsonWriter json;
    const std::string text =
        json.begin_object().field("step", step).field("validation_loss", loss).end_object().text();
    send(DashboardLine::Validation, [&] { return text; });
    if (options_.quiet) return;
    if (mode_ == DisplayMode::Json) return say(text);
    say(formatted("step %lld  validation loss %.4f", static_cast<long long>(step), loss));
  }

  void on_checkpoint(std::int64_t step, const std::filesystem::path& path) override {
    if (!options_.quiet && mode_ == DisplayMode::Plain)
      say(str_cat("step ", step, "  checkpoint ", path.string()));
  }

  void on_message(const std::string& text) override {
    if (options_.quiet && options_.unimportant.contains(text)) return;
    if (mode_ == DisplayMode::Json) {
      JsonWriter json;
      return say(json.begin_object().field("note", text).end_object().text());
    }
    say(text);
  }

 private:
  static void say(const std::string& line) { print(line + "\n"); }

  template <class Content>
  void send(DashboardLine kind, const Content& content) const {
    if (!options_.dashboard) return;
    const std::string line = dashboard_line(kind, content());
    if (!line.empty()) say(line);
  }
  void send_begin() const {
    send(DashboardLine::Begin, [&] {
      JsonWriter json;
      json.begin_object().field("model", info_.model).field("schedule", info_.schedule);
      json.field("stages", info_.stages).field("first_step", info_.first_step).field("steps", info_.steps);
      return json.end_object().text();
    });
  }

  DisplayOptions options_;
  DisplayMode mode_;
  train::RunInfo info_;
  double seconds_ = 0;
};

}  // namespace

void set_display(comm::LaunchOptions& launch, const DisplayOptions& options) {
  std::string text = options.mode == DisplayMode::Json       ? "json"
                     : options.mode == DisplayMode::Terminal ? "terminal"
                                                             : "plain";
  if (options.quiet) text += kQuiet;
  launch.environment[kDisplayVariable] = text;
  launch.environment[kGivenVariable] = join(std::vector(options.given.begin(), options.given.end()), " ");
}

DisplayOptions display_from_environment() {
  const char* const text = std::getenv(kDisplayVariable);
  const std::string_view given = text == nullptr ? "plain" : text;
  DisplayOptions options;
  if (given.starts_with("json")) options.mode = DisplayMode::Json;
  if (given.starts_with("terminal")) options.mode = DisplayMode::Terminal;
  options.quiet = given.ends_with(kQuiet);
  const char* const settings = std::getenv(kGivenVariable);
  std::istringstream words(settings == nullptr ? "" : settings);
  for (std::string word; words >> word;) options.given.insert(word);
  return options;
}

std::unique_ptr<train::Observer> make_display(const DisplayOptions& options) {
  return std::make_unique<Display>(options);
}

void LineDrawer::draw(Rank rank, comm::OutputStream stream, std::string_view line) {
  if (!line.empty() && line.front() == kDisplayMark) {
    const auto room = static_cast<std::size_t>(std::max(terminal_width().value_or(80) - 1, 20));
    print("\r\x1b[K" + std::string(line.substr(1, room)));
    bar_shown_ = true;
    return;
  }
  finish();
  const bool is_error = stream == comm::OutputStream::Err;
  if (is_error && line.starts_with("penstock[")) {  // a line of the log, which names the rank itself
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  } else if (is_error) {
    std::fprintf(stderr, "[%d] %.*s\n", rank.value, static_cast<int>(line.size()), line.data());
  } else {
    print(std::string(line) + "\n");
  }
}

void LineDrawer::finish() {
  if (bar_shown_) print("\n");
  bar_shown_ = false;
}

}  // namespace penstock::tool
