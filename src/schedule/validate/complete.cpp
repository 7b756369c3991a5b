// Checks that every microbatch passes through every stage, and that every transfer has both ends.
#include "schedule/dependencies.h"
#include "schedule/validate/checks.h"

#include <string>
#include <vector>

namespace penstock::schedule {
namespace {

// Lists the first few microbatches.
std::string batches_text(const std::vector<int>& batches) {
  std::string text = batches.size() == 1 ? "microbatch " : "microbatches ";
  for (std::size_t i = 0; i < batches.size() && i < 5; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(batches[i]);
  return batches.size() > 5 ? text + " and " + std::to_string(batches.size() - 5) + " more" : text;
}

class Completeness {
 public:
  Completeness(const Subject& subject, const FactIndex& index, const FactTable& yielded, Findings& findings)
      : subject_(subject), index_(index), yielded_(yielded), findings_(findings) {}

  void stages() {
    for (int stage = 0; stage < subject_.context.placement.num_stages(); ++stage) {
      const std::string of = "stage " + std::to_string(stage);
      const std::size_t rank = subject_.rank_of(StageId(stage));
      report(rank, of + " has no F of ", missing(FactKind::Output, stage));
      if (!subject_.training) continue;
      report(rank, of + " has no B or I of ", missing(FactKind::InputGradient, stage));
      report(rank, of + " has no B or W of ", missing(FactKind::WeightGradient, stage));
    }
  }

  void transfers() {
    for (int edge = 0; edge < subject_.context.wiring.edges(); ++edge) {
      if (!subject_.context.crosses(edge)) continue;
      const StageEdge& ends = subject_.context.wiring.edge(edge);
      pair(edge, ends.from, ends.to, "_F", FactKind::ForwardSent, FactKind::ForwardReceived);
      if (subject_.training)
        pair(edge, ends.to, ends.from, "_B", FactKind::BackwardSent, FactKind::BackwardReceived);
    }
  }

 private:
  std::vector<int> missing(FactKind kind, int stage_or_edge) const {
    std::vector<int> batches;
    for (int m = 0; m < subject_.context.microbatches; ++m) {
      if (yielded_[index_(Fact{kind, stage_or_edge, MicrobatchId(m)})] == 0) batches.push_back(m);
    }
    return batches;
  }

  void report(std::size_t rank, const std::string& what, const std::vector<int>& batches) {
    if (!batches.empty()) findings_.error(findings_.location(rank), what + batches_text(batches));
  }

  void pair(int edge, StageId sender, StageId receiver, const std::string& direction, FactKind sent,
            FactKind received) {
    const std::string s = std::to_string(sender.value), r = std::to_string(receiver.value);
    report(subject_.rank_of(sender), "stage " + s + " has no SEND" + direction + " to stage " + r + " of ",
           missing(sent, edge));
    report(subject_.rank_of(receiver),
           "stage " + r + " has no RECV" + direction + " from stage " + s + " of ", missing(received, edge));
  }

  const Subject& subject_;
  const FactIndex& index_;
  const FactTable& yielded_;
  Findings& findings_;
};

}  // namespace

void check_complete(const Subject& subject, const FactIndex& index, const FactTable& yielded,
                    Findings& findings) {
  Completeness completeness(subject, index, yielded, findings);
  completeness.stages();
  if (subject.context.level == ProgramLevel::Lowered) completeness.transfers();
}

}  // namespace penstock::schedule
