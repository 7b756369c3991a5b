// The playground's interface, compared with the library and with the command-line tool.
#include "api/answer.h"
#include "api/boxes.h"
#include "base/io/json_reader.h"
#include "base/json.h"
#include "support/program.h"
#include "support/temp_dir.h"

#include <penstock/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

extern "C" {
void penstock_answer(const char* request, std::size_t size);
const char* penstock_text();
std::size_t penstock_text_size();
const double* penstock_boxes();
std::size_t penstock_boxes_size();
}

namespace penstock::playground {
namespace {

using testing::HasSubstr;

JsonValue parsed(const std::string& text) {
  return parse_json(text, "the answer");
}
JsonValue ask(const std::string& request) {
  return parsed(answer(request).text);
}
const JsonValue& at(const JsonValue& value, std::string_view name) {
  return field(value, name, "answer");
}
double number(const JsonValue& value, std::string_view name) {
  return *at(value, name).number();
}
std::string text(const JsonValue& value, std::string_view name) {
  return *at(value, name).string();
}
std::string error_of(const std::string& request) {
  const JsonValue answered = ask(request);
  const JsonValue* error = optional_field(answered, "error", "answer");
  return error == nullptr ? "" : text(*error, "message") + " / " + text(*error, "hint");
}

TEST(ToolPlayground, StagesOfRankShareCosts) {
  // Two stages per rank share the times and bytes of a rank.
  const Answer answered = answer(
      R"({"operation":"simulate","ranks":2,"microbatches":3,"source":{"schedule":"Interleaved1F1B","stages_per_rank":2},
          "costs":{"forward":2,"input":4,"weight":6,"activation_bytes":100,"latency":0.25}})");
  plan::Costs costs =
      plan::Costs::uniform(4, {.forward = 1, .input = 2, .weight = 3, .activation_bytes = 50});
  costs.link.latency = 0.25;
  const Simulation expected =
      simulate(make_program(make_schedule("Interleaved1F1B", {2, 2, 3}), SendMode::Buffered), costs);
  const JsonValue json = parsed(answered.text);
  const JsonValue& simulation = at(json, "simulation");
  EXPECT_EQ(number(simulation, "step_time"), expected.step_time);
  EXPECT_EQ(number(simulation, "bubble"), expected.bubble);
  EXPECT_EQ(number(simulation, "peak_memory"), static_cast<double>(expected.peak_memory()));
  EXPECT_EQ(at(simulation, "critical_path").array()->size(), expected.critical_path.size());
}

TEST(ToolPlayground, AcceptsTimePerStage) {
  const JsonValue json = ask(
      R"({"operation":"simulate","ranks":2,"microbatches":1,"source":{"schedule":"GPipe"},
          "costs":{"forward":[1,5],"input":0,"weight":0}})");
  EXPECT_EQ(number(at(json, "simulation"), "step_time"), 6);
  EXPECT_THAT(error_of(R"({"operation":"simulate","ranks":3,"microbatches":1,"source":{"schedule":"GPipe"},
                           "costs":{"forward":[1,5]}})"),
              HasSubstr("forward has 2 values, but there are 3 stages"));
}

TEST(ToolPlayground, BoxesMatchTimeline) {
  const Answer answered = answer(
      R"({"operation":"simulate","ranks":2,"microbatches":2,"source":{"schedule":"1F1B"},"costs":{"latency":0.5}})");
  plan::Costs costs = plan::Costs::uniform(2);
  costs.link.latency = 0.5;
  const Simulation simulation =
      simulate(make_program(make_schedule("1F1B", {2, 1, 2}), SendMode::Buffered), costs);
  std::size_t next = 0;
  for (const auto& rank : simulation.timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (!timed.action.is_compute()) continue;
      ASSERT_LE(next + kFieldsPerBox, answered.boxes.size());
      EXPECT_EQ(answered.boxes[next], static_cast<double>(timed.action.kind()));
      EXPECT_EQ(answered.boxes[next + 1], timed.action.stage().value);
      EXPECT_EQ(answered.boxes[next + 2], timed.action.microbatch().value);
      EXPECT_EQ(answered.boxes[next + 3], timed.start);
      EXPECT_EQ(answered.boxes[next + 4], timed.end - timed.start);
      next += kFieldsPerBox;
    }
  }
  std::size_t expected = 0;
  const JsonValue json = parsed(answered.text);
  const JsonValue& layout = at(json, "layout");
  for (const auto& [key, width] :
       {std::pair{"compute", kFieldsPerBox}, {"communication", kFieldsPerBox}, {"memory", 2}})
    for (const JsonValue& count : *at(layout, key).array())
      expected += static_cast<std::size_t>(*count.integer() * width);
  EXPECT_EQ(answered.boxes.size(), expected);
  EXPECT_GT(answered.boxes.size(), next);
}

TEST(ToolPlayground, ExportedFilesMatchLibrary) {
  const std::string request =
      R"({"operation":"export","ranks":2,"microbatches":4,"source":{"schedule":"ZBVZeroBubble","stages_per_rank":2},
          "costs":{"forward":2,"input":2,"weight":2,"activation_bytes":2},"format":")";
  const Schedule table = make_schedule("ZBVZeroBubble", {2, 2, 4});
  const Program program = make_program(table, SendMode::Buffered);
  const view::Drawing drawing = draw(simulate(program, Costs::uniform(4)), view::TimeUnit::Seconds);
  const auto exported = [&](const std::string& format) {
    return text(ask(request + format + "\"}"), "text");
  };
  EXPECT_EQ(exported("csv"), to_csv(table));
  EXPECT_EQ(exported("lowered"), to_csv(program.draft()));
  EXPECT_EQ(exported("svg"), to_svg(drawing));
  EXPECT_EQ(exported("trace"), to_trace(drawing));
  EXPECT_EQ(text(ask(request + "csv\"}"), "name"), "ZBVZeroBubble.csv");
  EXPECT_THAT(error_of(request + "png\"}"), HasSubstr("unknown format png"));
}

TEST(ToolPlayground, ValidatesFilesLikeTool) {
  const test::TempDir dir;
  const std::string deadlock =
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_"
      "B1\n";
  for (const std::string& csv : {deadlock, std::string("0F0,0B0\n1F0,1B0\n"), std::string("0F0,what\n")}) {
    std::ofstream(dir / "file.csv") << csv;
    const std::string expected =
        test::penstock({"validate", dir / "file.csv", "--json", "--send-mode", "blocking"}).out;
    const std::string request =
        R"({"operation":"validate","send_mode":"blocking","source":{"csv":)" + json_quote(csv) + "}}";
    EXPECT_EQ(answer(request).text + "\n", expected);
  }
  EXPECT_THAT(test::slurp(dir / "file.csv"), HasSubstr("what"));
  const std::string request =
      R"({"operation":"simulate","send_mode":"blocking","source":{"schedule":"a.csv","csv":)" +
      json_quote(deadlock) + "}}";
  EXPECT_THAT(error_of(request), HasSubstr("deadlock"));
}

TEST(ToolPlayground, PlanTimesMatchSimulation) {
  const std::string common = R"("ranks":2,"microbatches":4,"memory_cap":900,
      "costs":{"forward":[3,1,1,1,1,5],"input":8,"weight":[1,2,3,4,5,6],"activation_bytes":150,"parameter_bytes":60,
               "output_bytes":7,"latency":0.1,"bandwidth":50})";
  const JsonValue found = ask(R"({"operation":"plan","stages_per_rank":[1,2],)" + common + "}");
  EXPECT_EQ(number(found, "layers"), 6);
  int compared = 0;
  for (const JsonValue& plan : *at(found, "plans").array()) {
    if (text(plan, "verdict") == "impossible") continue;
    std::string first;
    for (const JsonValue& layer : *at(plan, "first_layer").array())
      first += (first.empty() ? "" : ",") + std::to_string(*layer.integer());
    const JsonValue again =
        ask(R"({"operation":"simulate",)" + common + R"(,"source":{"schedule":")" + text(plan, "schedule") +
            R"(","stages_per_rank":)" + std::to_string(static_cast<int>(number(plan, "stages_per_rank"))) +
            R"(,"recompute":)" + (*at(plan, "recompute").boolean() ? "true" : "false") +
            R"(,"first_layer":[)" + first + "]}}");
    if (optional_field(again, "error", "answer") != nullptr) continue;  // Auto under a cap that nothing fits
    ++compared;
    EXPECT_DOUBLE_EQ(number(at(again, "simulation"), "step_time"), number(plan, "step_time"))
        << text(plan, "schedule");
    if (text(plan, "schedule") != "Auto") {
      EXPECT_EQ(number(at(again, "simulation"), "peak_memory"), number(plan, "peak_memory"))
          << text(plan, "schedule");
    }
  }
  EXPECT_GT(compared, 20);
}

// The planner's layers are the stages of a pipeline with as many stages.
TEST(ToolPlayground, PlansMatchTool) {
  const test::TempDir dir;
  const std::vector<std::string> models{
      R"({"forward":[3,1,1,1,1,5],"input":8,"weight":[1,2,3,4,5,6],"activation_bytes":150,"parameter_bytes":60,
          "output_bytes":7,"latency":0.1,"bandwidth":50,"overlap":0.5})",
      R"({"forward":1,"input":2,"weight":1.5,"activation_bytes":[400,100,100,100,100,100],"weight_bytes":30})"};
  for (const std::string& costs : models) {
    for (const char* const mode : {"buffered", "blocking"}) {
      const std::string common = std::string(R"("ranks":2,"microbatches":4,"memory_cap":500,"send_mode":")") +
                                 mode + R"(","costs":)" + costs + "}";
      SCOPED_TRACE(common);
      std::string file = text(
          ask(R"({"operation":"export","format":"costs","source":{"schedule":"LoopedBFS","stages_per_rank":3},)" +
              common),
          "text");
      for (std::size_t from = 0; (from = file.find("[[stages]]", from)) != std::string::npos;)
        file.replace(from, 10, "[[layers]]");
      std::ofstream(dir / "costs.toml") << file;
      const test::Outcome tool = test::penstock(
          {"plan", "--ranks", "2", "--microbatches", "4", "--stages-per-rank", "1,2", "--memory-cap", "500",
           "--send-mode", mode, "--costs", dir / "costs.toml", "--json"});
      ASSERT_FALSE(tool.out.empty()) << tool.err;
      const std::string plans = tool.out.substr(0, tool.out.size() - 1);  // without the line end
      EXPECT_EQ(answer(R"({"operation":"plan","stages_per_rank":[1,2],)" + common).text,
                R"({"layers":6,"plans":)" + plans + "}");
      EXPECT_THAT(plans, HasSubstr(R"("verdict":"best")"));
      EXPECT_THAT(plans, HasSubstr("does not fit"));
    }
  }
}

TEST(ToolPlayground, AutoReturnsTable) {
  const JsonValue json = ask(
      R"({"operation":"simulate","ranks":3,"microbatches":6,"memory_cap":3,"source":{"schedule":"Auto"}})");
  const plan::AutoResult expected = make_auto_schedule(3, 6, Costs::uniform(3), {.memory_cap = 3});
  EXPECT_EQ(number(at(json, "simulation"), "step_time"), expected.step_time);
  EXPECT_EQ(text(at(json, "auto"), "csv"), to_csv(expected.schedule));
  EXPECT_EQ(text(at(json, "auto"), "best_named"), expected.best_named.value().name);
}

TEST(ToolPlayground, RejectsInvalidRequests) {
  EXPECT_THAT(error_of("{"), HasSubstr("the request"));
  EXPECT_THAT(error_of("[]"), HasSubstr("request"));
  EXPECT_THAT(error_of(R"({"operation":"fly"})"), HasSubstr("unknown operation 'fly'"));
  EXPECT_THAT(error_of(R"({"operation":"simulate","ranks":0})"),
              HasSubstr("ranks must be between 1 and 1024"));
  EXPECT_THAT(error_of(R"({"operation":"simulate","source":{"schedule":"1F2B"}})"), HasSubstr("1F1B"));
  EXPECT_THAT(error_of(R"({"operation":"simulate","source":{"schedule":"1F1B"},"costs":{"forward":-1}})"),
              HasSubstr("forward must be a number of 0 or more"));
  EXPECT_THAT(error_of(R"({"operation":"simulate","source":{"schedule":"1F1B"},"send_mode":"pigeon"})"),
              HasSubstr("buffered"));
  EXPECT_THAT(
      error_of(R"({"operation":"simulate","ranks":1024,"microbatches":1000,"source":{"schedule":"1F1B"}})"),
      HasSubstr("too many for this page"));
  EXPECT_THAT(error_of(R"({"operation":"simulate","source":{"schedule":"1F1B","first_layer":[0,9]}})"),
              HasSubstr("partition"));
}

TEST(ToolPlayground, CInterfaceReturnsSameAnswer) {
  const std::string request =
      R"({"operation":"simulate","ranks":2,"microbatches":2,"source":{"schedule":"ZB1P"}})";
  const Answer expected = answer(request);
  penstock_answer(request.data(), request.size());
  EXPECT_EQ(std::string(penstock_text(), penstock_text_size()), expected.text);
  ASSERT_EQ(penstock_boxes_size(), expected.boxes.size());
  EXPECT_EQ(std::memcmp(penstock_boxes(), expected.boxes.data(), expected.boxes.size() * sizeof(double)), 0);
}

//! A random request without its operation.
std::string random_request(std::mt19937& random, const std::string& schedule, int stages_per_rank, int ranks,
                           int microbatches, const std::string& mode) {
  std::uniform_real_distribution<double> time(0.001, 0.02);
  std::uniform_int_distribution<int> bytes(0, 5'000'000);
  JsonWriter out;
  out.begin_object().field("ranks", ranks).field("microbatches", microbatches).field("send_mode", mode);
  out.key("source").begin_object().field("schedule", schedule).field("stages_per_rank", stages_per_rank);
  out.field("recompute", random() % 4 == 0).end_object().key("costs").begin_object();
  for (const char* key : {"forward", "input", "weight"}) {
    if (random() % 2 == 0) {
      out.field(key, time(random));
      continue;
    }
    out.key(key).begin_array();
    for (int stage = 0; stage < ranks * stages_per_rank; ++stage) out.value(time(random));
    out.end_array();
  }
  for (const char* key : {"activation_bytes", "weight_bytes", "parameter_bytes", "output_bytes"})
    out.field(key, bytes(random));
  out.field("latency", time(random) / 10).field("bandwidth", 1e9).field("overlap", 0.25).end_object();
  const std::string text = out.end_object().text();
  return text.substr(1);
}

TEST(ToolPlayground, MatchesToolForRandomRequests) {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const test::TempDir dir;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    const std::string name(info.name);
    const int ranks = 1 + static_cast<int>(random() % 6),
              microbatches = 2 * ranks + static_cast<int>(random() % 7);
    const int stages = info.only_stages_per_rank.value_or(1 + static_cast<int>(random() % 3));
    const std::string mode = std::vector<std::string>{"buffered", "ordered", "blocking"}[random() % 3];
    const std::string request = random_request(random, name, stages, ranks, microbatches, mode);
    SCOPED_TRACE(request);
    std::ofstream(dir / "costs.toml")
        << text(ask(R"({"operation":"export","format":"costs",)" + request), "text");
    const test::Outcome tool =
        test::penstock({"simulate", name, "--ranks", std::to_string(ranks), "--stages-per-rank",
                        std::to_string(stages), "--microbatches", std::to_string(microbatches), "--send-mode",
                        mode, "--costs", dir / "costs.toml", "--json"});
    ASSERT_EQ(tool.code, 0) << tool.err;
    const std::string answered = answer(R"({"operation":"simulate",)" + request).text;
    const std::string simulation =
        tool.out.substr(1, tool.out.size() - 3);  // without the list and the line end
    EXPECT_THAT(answered, testing::StartsWith(R"({"simulation":)" + simulation + ","));
  }
}

}  // namespace
}  // namespace penstock::playground
