//! Latency and bandwidth by size, one line for each transport, with what the machine allows: an SVG file.
//!
//! One panel for each test, in two columns: times at the left, bandwidths at the right. The floors, a cache line that goes from thread to thread
//! and a copy, are measured here, so that they are of the same run.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{MB, Row};
use super::{Outcome, floor};

/// What the machine allows.
#[derive(Debug)]
pub(super) struct Floor {
    pub(super) cache_line_us: f64,
    /// Bytes, and MB a second.
    pub(super) memcpy: Vec<(usize, f64)>,
}

const PANEL: (u32, u32) = (640, 400);
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
pub(super) fn draw(file: &Path, rows: &[Row], cpus: Option<[usize; 2]>) -> Outcome<Floor> {
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
    let floor = Floor {
        cache_line_us: floor::cache_line(cpus) / 1e3,
        memcpy: sizes
            .into_iter()
            .filter_map(|size| Some((size, floor::memcpy(size)? / MB)))
            .collect(),
    };
    let (times, rates): (Vec<_>, Vec<_>) = panels.into_iter().partition(|panel| panel.is_time);
    let columns = u32::from(!times.is_empty()) + u32::from(!rates.is_empty());
    let lines = times.len().max(rates.len());
    let size = (PANEL.0 * columns, PANEL.1 * u32::try_from(lines)?);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
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
