// Reads the tables of docs/reference-map.md.
#include "reference_map.h"

#include <regex>
#include <sstream>
#include <stdexcept>

namespace penstock::test {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const std::size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos ? ""
                                               : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
  }
  return cells;
}

// Calls `take(match)` for every match.
template <class Take>
void each(const std::string& text, const std::regex& pattern, Take take) {
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) take(*it);
}

ReferenceRow read_row(const std::string& line) {
  static const std::regex one_name("`([A-Za-z0-9_]+)`");
  static const std::regex penstock_name("`([A-Za-z0-9_:]+)` in `([a-z0-9_/.]+)`");
  static const std::regex test_name("`([A-Za-z0-9_]+\\.[A-Za-z0-9_]+)`");
  const std::vector<std::string> cells = cells_of(line);
  std::smatch name;
  if (cells.size() != 4 || !std::regex_match(cells[0], name, one_name))
    throw std::runtime_error("invalid row: " + line);
  ReferenceRow row;
  row.name = name[1];
  row.status = cells[1];
  row.last = cells[3];
  each(cells[2], penstock_name, [&row](const std::smatch& m) { row.entities.push_back({m[1], m[2]}); });
  each(cells[3], test_name, [&row](const std::smatch& m) { row.tests.push_back(m[1]); });
  return row;
}

}  // namespace

std::vector<ReferenceRow> read_reference_map(const std::string& document) {
  std::vector<ReferenceRow> rows;
  std::string file;
  std::istringstream lines(document);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("## ")) file = line.substr(3);
    if (!line.starts_with("| `")) continue;
    rows.push_back(read_row(line));
    rows.back().file = file;
    rows.back().line = number;
  }
  return rows;
}

}  // namespace penstock::test
