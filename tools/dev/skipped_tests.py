"""Prints the number and the names of the skipped tests in a JUnit file of ctest; nothing if there are none.

A program that ctest runs as one test counts as skipped if one of its cases was; its cases follow in parentheses.
If PENSTOCK_ALLOWED_SKIPS is set, to a regular expression, fails if the name of a skipped test does not match it.
"""
import os
import re
import sys
import xml.etree.ElementTree as xml


def name_of(test):
    cases = re.findall(r"^\[  SKIPPED \] ([^\s,(]+)", test.findtext("system-out") or "", re.MULTILINE)
    cases = [case for case in dict.fromkeys(cases) if "." in case and case != test.get("name")]
    return test.get("name") + (f" ({', '.join(cases)})" if cases else "")


def main(path):
    try:
        tests = xml.parse(path).getroot().iter("testcase")
    except (OSError, xml.ParseError):
        return 0  # ctest failed before it ran a test
    names = sorted(name_of(test) for test in tests if test.find("skipped") is not None)
    if names:
        print(f"dev: skipped {len(names)} test{'s' * (len(names) > 1)}: {', '.join(names)}")
    allowed = os.environ.get("PENSTOCK_ALLOWED_SKIPS")
    unexpected = [name for name in names if allowed is not None and not re.match(allowed, name)]
    if unexpected:
        print(f"dev: error: these tests must not be skipped here: {', '.join(unexpected)}")
    return 1 if unexpected else 0


sys.exit(main(sys.argv[1]))
