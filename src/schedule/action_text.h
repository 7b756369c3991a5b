// Writes actions as text without a string per action.
#pragma once

#include <penstock/schedule/action.h>

#include <string>

namespace penstock::schedule {

//! Appends `to_string(action)` to `text`.
void append_text(std::string& text, const Action& action);

}  // namespace penstock::schedule
