// Formats tables.
#include "report/text_table.h"

#include <algorithm>
#include <cctype>

namespace penstock::tool {

std::string show_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  std::vector<bool> number;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c == width.size()) width.push_back(0), number.push_back(true);
      width[c] = std::max(width[c], row[c].size());
      if (&row != &rows.front() && !row[c].empty() &&
          std::isdigit(static_cast<unsigned char>(row[c][0])) == 0)
        number[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string space(width[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += number[c] ? space + row[c] : row[c] + space;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

}  // namespace penstock::tool
