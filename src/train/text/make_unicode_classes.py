"""Writes unicode_classes.cpp: the code points of letters and numbers.

Usage: python3 make_unicode_classes.py FILE. Needs the package unicodedata2.
"""
import sys

import unicodedata2

HEADER = """\
// The code points of letters and numbers in Unicode {version}. Written by make_unicode_classes.py.
#include "train/text/unicode_classes.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace penstock::train {{
namespace {{

struct CodeRange {{
  char32_t first, last;
}};

"""

FOOTER = """\
template <std::size_t Size>
bool contains(const std::array<CodeRange, Size>& ranges, char32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](char32_t value, const CodeRange& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

}  // namespace

bool is_letter(char32_t code) {
  return contains(kLetters, code);
}

bool is_number(char32_t code) {
  return contains(kNumbers, code);
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
         code == 0x205f || code == 0x3000;
}

}  // namespace penstock::train
"""


def ranges_of(category):
    ranges = []
    for code in range(0x110000):
        if unicodedata2.category(chr(code))[0] != category:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def main():
    text = HEADER.format(version=unicodedata2.unidata_version)
    for name, category in (("kLetters", "L"), ("kNumbers", "N")):
        ranges = ranges_of(category)
        items = ", ".join(f"{{{first:#x}, {last:#x}}}" for first, last in ranges)
        text += f"constexpr std::array<CodeRange, {len(ranges)}> {name}{{{{{items}}}}};\n\n"
    with open(sys.argv[1], "w") as out:
        out.write(text + FOOTER)


main()
