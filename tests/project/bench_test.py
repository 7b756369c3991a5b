"""Tests of the benchmarks' harness: statistics, exponents, goals and the exit code, plots and published tables."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
import harness
import plots
import publish


def silent():
    bench = harness.Bench(rounds=3, log=lambda _: None)
    bench.name = "sample"
    return bench


class Statistics(unittest.TestCase):
    def test_spread_is_median_lowest_and_highest(self):
        self.assertEqual(harness.Spread.of([3.0, 1.0, 10.0]), harness.Spread(3.0, 1.0, 10.0))

    def test_exponent_of_powers(self):
        for power in (-1, 0, 0.5, 2):
            points = [[n, 7 * n**power] for n in (2, 8, 32, 128)]
            self.assertAlmostEqual(harness.exponent(points), power)

    def test_ratio_pairs_the_rounds(self):
        bench = silent()
        bench.compare("time", [1, 2, 4], [10, 10, 8], "s")  # 10, 5 and 2 times
        self.assertEqual(bench.rows[0].ratio, harness.Spread(5, 2, 10))
        bench.compare("rate", [10, 10, 8], [1, 2, 4], "1/s", higher_is_better=True)
        self.assertEqual(bench.rows[1].ratio, harness.Spread(5, 2, 10))

    def test_numbers_have_three_digits(self):
        shown = [harness.number(value) for value in (0.01234, 1.5, 146.2, 12345.6)]
        self.assertEqual(shown, ["0.0123", "1.50", "146", "12,346"])


class Goals(unittest.TestCase):
    def test_met_goals_give_exit_code_0(self):
        bench = silent()
        bench.compare("a", [1], [10], "s", harness.at_least(10))
        bench.value("b", [1.05], "", harness.at_most(1.05))
        self.assertEqual(harness.verdict(bench.rows), ("all 2 goals are met", 0))

    def test_missed_goal_is_named_and_gives_exit_code_1(self):
        bench = silent()
        bench.compare("a", [1], [9], "s", harness.at_least(10))
        bench.value("b", [1], "", harness.at_most(2))
        words, code = harness.verdict(bench.rows)
        self.assertEqual(code, 1)
        self.assertEqual(words, "MISSED 1 of 2 goals:\n  sample: a: 9.00, goal >= 10.0")
        self.assertIn("MISSED", harness.table(bench.rows))

    def test_strict_goal_misses_at_its_limit(self):
        goal = harness.above(1)
        self.assertEqual([goal.met(figure) for figure in (0.99, 1, 1.01)], [False, False, True])
        self.assertEqual(str(goal), "> 1.00")

    def test_growth_above_limit_misses(self):
        bench = silent()
        bench.exponent("cost", [[2, 2], [4, 4]], harness.at_most(0.5))
        self.assertEqual(harness.verdict(bench.rows)[1], 1)


class Programs(unittest.TestCase):
    def test_alternates_and_reverses_the_order(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            command = lambda name: ["sh", "-c", f"printf {name} >> {log}; echo noise; echo '{{\"x\": 1}}'"]
            results = silent().alternate({"a": command("a"), "b": command("b")})
            self.assertEqual(log.read_text(), "abbaab")
            self.assertEqual(results, {"a": [{"x": 1}] * 3, "b": [{"x": 1}] * 3})

    def test_failed_program_is_an_error_with_its_output(self):
        with self.assertRaisesRegex(harness.BenchError, "exit code 3(.|\n)*broken"):
            silent().run(["sh", "-c", "echo broken >&2; exit 3"])
        with self.assertRaisesRegex(harness.BenchError, "no JSON"):
            silent().run(["true"])

    def test_unknown_benchmark_is_refused(self):
        got = subprocess.run([BENCH / "run", "nothing"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 2)
        self.assertIn("hint: use one of backward,", got.stderr)


class Reports(unittest.TestCase):
    def test_rows_survive_json(self):
        bench = silent()
        bench.compare("a", [1, 2], [3, 4], "s", harness.at_least(2))
        bench.value("b", [1], "")
        self.assertEqual([harness.Row.from_json(row.as_json()) for row in bench.rows], bench.rows)

    def test_plots_are_well_formed(self):
        import xml.dom.minidom
        bench = silent()
        bench.compare("a < b", [1], [3], "s", harness.at_least(10))
        bench.compare("noise", [-1], [3], "s")  # a difference of times below zero
        bench.plot("cost", "ranks", "us", {"x & y": [[2, 2], [64, 3]]})
        bench.plot("cost", "stages", "us", {"y": [[2, 2], [64, 3]]})
        for svg in (plots.ratios("sample", bench.rows), plots.growths(bench.growths)):
            xml.dom.minidom.parseString(svg)
        self.assertIn('width="1280" height="400"', svg)

    def test_publish_replaces_only_blocks_of_measured_benchmarks(self):
        bench = silent()
        bench.compare("a", [1], [3], "s", harness.at_least(10))
        about = {"commit": "c", "date": "2026-01-01T00:00Z", "cpu": "p", "cores": 2, "load": 0.1, "torch": "t", "threads": 1, "rounds": 3}
        page = "<!-- results: sample -->\nold\n<!-- end of results -->\n<!-- results: other -->\nkept\n<!-- end of results -->\n"
        plots = ["sample.svg", "sample-x.svg", "other.svg"]
        filled = publish.fill(page, bench.rows, about, plots)
        self.assertIn("| a | 1.00 [1.00, 1.00] s |", filled)
        self.assertIn("Medians of 3 rounds", filled)
        self.assertIn(">= 10.0 (**missed**)", filled)
        self.assertNotIn("old", filled)
        self.assertIn("kept", filled)
        self.assertIn("![sample-x](images/bench-sample-x.svg)", filled)
        self.assertNotIn("bench-other.svg", filled)
        self.assertEqual(publish.fill(filled, bench.rows, about, plots), filled)


if __name__ == "__main__":
    unittest.main()
