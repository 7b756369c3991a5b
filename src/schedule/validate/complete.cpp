// Checks that every microbatch passes through every stage, and that every transfer has both ends.
#include "base/text.h"
#include "schedule/dependencies.h"
#include "schedule/validate/checks.h"

#include <string>
#include <vector>

namespace penstock::schedule {
namespace {

constexpr std::size_t kShownMicrobatches = 5;

class Completeness {
 public:
  Completeness(const Subject& subject, const FactIndex& index, const FactTable& yielded, Findings& findings)
      : subject_(subject), index_(index), yielded_(yielded), findings_(findings) {}

  void stages() {
    for (int stage = 0; stage < subject_.context.placement.num_stages(); ++stage) {
      const std::string of = str_cat("stage ", stage);
      const std::size_t rank = subject_.rank_of(StageId(stage));
      report(rank, of + " has no F", missing(FactKind::Output, stage));
      if (!subject_.training) continue;
      report(rank, of + " has no B or I", missing(FactKind::InputGradient, stage));
      report(rank, of + " has no B or W", missing(FactKind::WeightGradient, stage));
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

  void report(std::size_t rank, const std::string& what, const std::vector<int>& batches,
              const std::string& peer = "") {
    if (batches.empty()) return;
    findings_.error(findings_.location(rank),
                    what + " for " + numbered("microbatch", batches, kShownMicrobatches) + peer);
  }

  void pair(int edge, StageId sender, StageId receiver, const std::string& direction, FactKind sent,
            FactKind received) {
    const std::string s = std::to_string(sender.value), r = std::to_string(receiver.value);
    report(subject_.rank_of(sender), "stage " + s + " has no SEND" + direction, missing(sent, edge),
           " to stage " + r);
    report(subject_.rank_of(receiver), "stage " + r + " has no RECV" + direction, missing(received, edge),
           " from stage " + s);
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
