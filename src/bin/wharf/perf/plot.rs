//! Latency and bandwidth by size, one line for each transport, with what the machine allows: an SVG file.
//!
//! One panel for each test, in two columns: times at the left, bandwidths at the right. The floors, a cache line that goes from thread to thread
//! and a copy, are measured here, so that they are of the same run.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::conditions::Conditions;
use super::report::{MB, Row};
use super::{Outcome, floor};

/// What the machine allows.
#[derive(Debug)]
pub(super) struct Floor {
    pub(super) cache_line_us: f64,
    /// How far the median of its measurements is from the best, which counts: a share.
    pub(super) cache_line_error: f64,
    /// Bytes, and MB a second.
    pub(super) memcpy: Vec<(usize, f64)>,
    /// As of the cache line; that of the size where it is the largest.
    pub(super) memcpy_error: f64,
}

const PANEL: (u32, u32) = (640, 400);
/// What stands above the panels.
const HEAD: u32 = 40;
/// How often the floor is measured.
const FLOORS: usize = 5;
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The points of one line.
type Points = Vec<(f64, f64)>;

/// One test.
struct Panel {
    title: String,
    is_time: bool,
    /// By transport, in the order in which they were measured.
    lines: Vec<(String, Points)>,
}

/// Measures the floor and draws.
pub(super) fn draw(
    file: &Path,
    rows: &[Row],
    cpus: Option<[usize; 2]>,
    conditions: &Conditions,
) -> Outcome<Floor> {
    let panels = panels(rows);
    if panels.is_empty() {
        return Err("nothing that was measured can be drawn by size".into());
    }
    let mut sizes: Vec<usize> = rows
        .iter()
        .filter(|row| row.test.figure == "overhead")
        .map(|row| row.size)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (cache_line, cache_line_error) =
        repeated(f64::min, || Some(floor::cache_line(cpus))).unwrap_or((f64::NAN, f64::NAN));
    let mut floor = Floor {
        cache_line_us: cache_line / 1e3,
        cache_line_error,
        memcpy: Vec::new(),
        memcpy_error: 0.0,
    };
    for size in sizes {
        if let Some((rate, error)) = repeated(f64::max, || floor::memcpy(size)) {
            floor.memcpy.push((size, rate / MB));
            floor.memcpy_error = floor.memcpy_error.max(error);
        }
    }
    let (times, rates): (Vec<_>, Vec<_>) = panels.into_iter().partition(|panel| panel.is_time);
    let columns = u32::from(!times.is_empty()) + u32::from(!rates.is_empty());
    let lines = times.len().max(rates.len());
    let size = (PANEL.0 * columns, HEAD + PANEL.1 * u32::try_from(lines)?);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let (head, root) = root.split_vertically(HEAD);
    draw_head(&head, &floor, conditions).map_err(|error| failed(&error))?;
    let areas = root.split_evenly((lines, columns as usize));
    for (column, panels) in [&times, &rates]
        .into_iter()
        .filter(|panels| !panels.is_empty())
        .enumerate()
    {
        for (line, panel) in panels.iter().enumerate() {
            let area = &areas[line * columns as usize + column];
            draw_panel(area, panel, &floor).map_err(|error| failed(&error))?;
        }
    }
    root.present().map_err(|error| failed(&error))?;
    Ok(floor)
}

/// The best of several measurements, and how far the one in the middle is from it: a share.
fn repeated(best: fn(f64, f64) -> f64, measure: impl Fn() -> Option<f64>) -> Option<(f64, f64)> {
    let mut found: Vec<f64> = (0..FLOORS).map_while(|_| measure()).collect();
    let best = found.iter().copied().reduce(best)?;
    found.sort_by(f64::total_cmp);
    Some((best, (found[found.len() / 2] / best - 1.0).abs()))
}

/// Where, when, beside what, and how sure the floor is.
fn draw_head(area: &Area<'_>, floor: &Floor, conditions: &Conditions) -> Outcome<()> {
    let style = ("sans-serif", 12).into_font();
    let texts = [
        conditions.text(),
        format!(
            "floor: cache line {:.3} usec, its median {:.0} % off, those of memcpy at most {:.0} %",
            floor.cache_line_us,
            floor.cache_line_error * 100.0,
            floor.memcpy_error * 100.0
        ),
    ];
    for (line, text) in (0..).zip(texts) {
        area.draw(&Text::new(text, (10, 6 + 16 * line), style.clone()))?;
    }
    Ok(())
}

/// The tests that have a size to be drawn by.
fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows
        .iter()
        .filter(|row| row.test.has_bandwidth() && row.size > 0)
    {
        let is_time = row.test.figure == "latency";
        let title = format!("{}: {}", row.test.name, row.test.about);
        let at = panels.iter().position(|panel| panel.title == title);
        let panel = match at {
            Some(at) => &mut panels[at],
            None => {
                panels.push(Panel {
                    title,
                    is_time,
                    lines: Vec::new(),
                });
                let last = panels.len() - 1;
                &mut panels[last]
            }
        };
        let value = if is_time {
            row.median()
        } else {
            row.overall_bandwidth()
        };
        let point = (row.size as f64, value.max(1e-6));
        match panel
            .lines
            .iter_mut()
            .find(|(name, _)| *name == row.transport)
        {
            Some((_, points)) => points.push(point),
            None => panel.lines.push((row.transport.clone(), vec![point])),
        }
    }
    for (_, points) in panels.iter_mut().flat_map(|panel| &mut panel.lines) {
        // Of one size that was measured twice the last counts.
        let by_size: BTreeMap<u64, f64> = points
            .iter()
            .map(|(size, value)| (*size as u64, *value))
            .collect();
        *points = by_size
            .into_iter()
            .map(|(size, value)| (size as f64, value))
            .collect();
    }
    panels
}

fn draw_panel(area: &Area<'_>, panel: &Panel, floor: &Floor) -> Outcome<()> {
    let all = || panel.lines.iter().flat_map(|(_, points)| points);
    let widest = |pick: fn(&(f64, f64)) -> f64| {
        all()
            .map(pick)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
                (low.min(value), high.max(value))
            })
    };
    let sizes = widest(|point| point.0);
    let mut values = widest(|point| point.1);
    let ground: Points = if panel.is_time {
        vec![
            (sizes.0, floor.cache_line_us),
            (sizes.1.max(sizes.0 * 2.0), floor.cache_line_us),
        ]
    } else {
        let within = floor.memcpy.iter().map(|(size, mb)| (*size as f64, *mb));
        within
            .filter(|(size, _)| (sizes.0..=sizes.1).contains(size))
            .collect()
    };
    for (_, value) in ground
        .iter()
        .filter(|(_, value)| value.is_finite() && *value > 0.0)
    {
        values = (values.0.min(*value), values.1.max(*value));
    }
    let (what, unit) = if panel.is_time {
        ("latency", "usec")
    } else {
        ("bandwidth", "MB/s")
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (sizes.0..sizes.1.max(sizes.0 * 2.0)).log_scale().base(2.0),
            (values.0 / 1.5..values.1 * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(format!("{what} ({unit})"))
        .x_label_formatter(&|size| short(*size))
        .y_label_formatter(&|value| format!("{value}"))
        .max_light_lines(1)
        .light_line_style(WHITE)
        .draw()?;
    let grey = RGBColor(120, 120, 120);
    let name = if panel.is_time {
        "floor: cache line"
    } else {
        "floor: memcpy"
    };
    chart
        .draw_series(LineSeries::new(ground, grey.stroke_width(1)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], grey));
    for (number, (name, points)) in panel.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3),
            )?
            .label(name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
            });
    }
    let corner = if panel.is_time {
        SeriesLabelPosition::UpperLeft
    } else {
        SeriesLabelPosition::LowerRight
    };
    chart
        .configure_series_labels()
        .position(corner)
        .background_style(WHITE.mix(0.8))
        .border_style(grey)
        .draw()?;
    Ok(())
}

/// Bytes in few letters.
fn short(size: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1_073_741_824.0, "G"), (1_048_576.0, "M"), (1024.0, "K")];
    for (unit, name) in UNITS {
        if size >= unit {
            return format!("{}{name}", size / unit);
        }
    }
    format!("{size}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_best_counts_and_the_middle_is_its_error() {
        let given = [4.0, 2.0, 900.0, 3.0, 2.5];
        let next = Cell::new(0);
        let measure = || {
            next.set(next.get() + 1);
            given.get(next.get() - 1).copied()
        };
        assert_eq!(repeated(f64::min, measure), Some((2.0, 0.5)));
        next.set(0);
        assert_eq!(
            repeated(f64::max, measure),
            Some((900.0, 1.0 - 3.0 / 900.0))
        );
        assert_eq!(repeated(f64::max, || None), None);
    }
}
