"""Draws results as SVG, without libraries: bars of ratios with their goals, and costs over sizes with logarithmic axes."""
import html
import math

import harness

STYLE = ("<style>text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}.axis{stroke:#888}"
         ".met{fill:#4a7fb5}.missed{fill:#c0392b}.none{fill:#9aa5b1}.goal{stroke:#222;stroke-width:2;stroke-dasharray:3 2}"
         ".spread{stroke:#222}</style>")
GROWTH_SIZE = (640, 400)
COLORS = ("#4a7fb5", "#c0632b", "#3d8b57", "#8452a8", "#777777")


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{html.escape(words)}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def document(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
            f'{STYLE}<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def decades(low, high):
    """The powers of ten around a range; at least one decade."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def ratios(title, rows):
    """One bar per row with a ratio, on a logarithmic axis, with the lowest and highest round and the goal."""
    rows = [row for row in rows if row.ratio is not None]
    left, right, top, pitch, width = 330, 90, 40, 24, 860
    height = top + pitch * len(rows) + 40
    # The difference of two noisy times may be zero or negative, which has no logarithm.
    shown = lambda ratio: max(ratio, 0.01)
    figures = [shown(f) for row in rows for f in (row.ratio.low, row.ratio.high, row.goal.limit if row.goal else 1)]
    first, last = decades(min(figures + [1]), max(figures + [1]))
    at = lambda ratio: left + (math.log10(shown(ratio)) - first) / (last - first) * (width - left - right)
    parts = [text(10, 20, f"{title}: times better than the reference (dashed: goal)", kind="title")]
    for power in range(first, last + 1):
        parts.append(line(at(10**power), top - 6, at(10**power), height - 30, "axis" if power == 0 else "grid"))
        parts.append(text(at(10**power), height - 14, f"{10**power:g}", "middle"))
    for index, row in enumerate(rows):
        y = top + pitch * index
        kind = {None: "none", True: "met", False: "missed"}[row.met]
        begin, end = sorted((at(1), at(row.ratio.median)))
        parts.append(text(left - 8, y + 13, row.case, "end"))
        parts.append(f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="16" class="{kind}"/>')
        parts.append(line(at(row.ratio.low), y + 8, at(row.ratio.high), y + 8, "spread"))
        if row.goal:
            parts.append(line(at(row.goal.limit), y - 3, at(row.goal.limit), y + 19, "goal"))
        parts.append(text(width - right + 8, y + 13, harness.number(row.ratio.median) + ("" if row.met is not False else " missed")))
    return document(width, height, parts)


def growths(all_plots):
    """All plots of growth in two columns."""
    width, height = GROWTH_SIZE
    parts = []
    for index, plot in enumerate(all_plots):
        x, y = width * (index % 2), height * (index // 2)
        parts.append(f'<g transform="translate({x} {y})">' + "\n".join(growth_parts(plot)) + "</g>")
    return document(width * min(2, len(all_plots)), height * ((len(all_plots) + 1) // 2), parts)


def growth_parts(plot):
    """Costs over sizes with logarithmic axes; the legend gives the exponent of each series."""
    left, top, right, bottom, width, height = 80, 40, 20, 50, *GROWTH_SIZE
    points = [point for series in plot.series.values() for point in series]
    x_first, x_last = math.log10(min(p[0] for p in points)), math.log10(max(p[0] for p in points))
    y_first, y_last = decades(min(p[1] for p in points), max(p[1] for p in points))
    at_x = lambda x: left + (math.log10(x) - x_first) / max(x_last - x_first, 1e-9) * (width - left - right)
    at_y = lambda y: height - bottom - (math.log10(y) - y_first) / (y_last - y_first) * (height - top - bottom)
    parts = [text(10, 20, plot.title, kind="title"), text(width / 2, height - 10, plot.x_label, "middle"),
             f'<g transform="rotate(-90 16 {height / 2})">' + text(16, height / 2, plot.y_label, "middle") + "</g>"]
    for x in sorted({point[0] for point in points}):
        parts.append(line(at_x(x), top, at_x(x), height - bottom, "grid"))
        parts.append(text(at_x(x), height - bottom + 16, f"{x:,}", "middle"))
    for power in range(y_first, y_last + 1):
        parts.append(line(left, at_y(10**power), width - right, at_y(10**power), "grid"))
        parts.append(text(left - 6, at_y(10**power) + 4, f"{10**power:g}", "end"))
    for index, (name, series) in enumerate(plot.series.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in series)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{color}"/>' for x, y in series]
        label = f"{name or 'cost'} ~ size^{harness.exponent(series):.2f}"
        parts.append(f'<rect x="{left + 10}" y="{top + 6 + 18 * index}" width="12" height="12" fill="{color}"/>')
        parts.append(text(left + 28, top + 16 + 18 * index, label))
    return parts
