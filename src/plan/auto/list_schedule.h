// List scheduling: time goes forward, and whenever a rank is free a rule picks what it does next.
#pragma once

#include "order.h"

#include <optional>

namespace penstock::auto_search {

enum class Preference { Backward, Forward, Alternate };

//! The rule's knobs. Auto tries a grid of them.
struct Rule {
  Preference prefer = Preference::Backward;
  //! Microbatches that a rank lets in, as a share of what covers a microbatch's way to the end and back at
  //! full speed.
  double depth = 1;
  int group = 1;        //!< microbatches that go through one stage of a rank before its next stage's turn
  double patience = 0;  //!< a W waits for this share of its length if something more urgent is on its way
  bool split = true;    //!< I and W, or B
};

//! An order that respects the ranks' memory, or nothing if the rule leads into a dead end.
std::optional<Order> list_schedule(const Problem& problem, const Rule& rule);

}  // namespace penstock::auto_search
