//! One figure of one growth: how many times the first number each number costs.

use std::fmt::Write;

use super::{FLAT, Line, Point};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Around the axes: left, right, top, bottom.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

pub(super) fn draw(of: &str, lines: &[Line]) -> String {
    let series = series(lines);
    let values = || series.iter().flat_map(|(_, points)| points);
    let highest = values().map(|(_, ratio)| *ratio).fold(FLAT * 1.2, f64::max) * 1.05;
    let most = values().map(|(number, _)| *number).fold(1.0, f64::max);
    let least = values().map(|(number, _)| *number).fold(most, f64::min);
    let across = |number: f64| {
        LEFT + (WIDTH - LEFT - RIGHT) * (number / least).ln() / (most / least).ln().max(1e-9)
    };
    let up = |ratio: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ratio / highest;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let text = |x: f64, y: f64, anchor: &str, colour: &str, words: &str| {
        format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>\n"
        )
    };
    let rule = |svg: &mut String, ratio: f64, style: &str| {
        let (y, end) = (up(ratio), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#888\" {style}/>"
        );
    };
    svg += &text(
        LEFT,
        18.0,
        "start",
        "black",
        "cost of one 8 B message, as a multiple of the first",
    );
    svg += &text(
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        "middle",
        "black",
        of,
    );
    rule(&mut svg, 0.0, "");
    rule(&mut svg, FLAT, "stroke-dasharray=\"4 4\"");
    svg += &text(
        LEFT + 4.0,
        up(FLAT) - 4.0,
        "start",
        "#888",
        &format!("{FLAT}"),
    );
    for ratio in [0.0, 1.0, highest / 1.05] {
        let words = format!("{ratio:.1}");
        svg += &text(LEFT - 6.0, up(ratio) + 4.0, "end", "black", &words);
    }
    let mut numbers: Vec<f64> = values().map(|(number, _)| *number).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    for number in numbers {
        let place = HEIGHT - BOTTOM + 18.0;
        svg += &text(
            across(number),
            place,
            "middle",
            "black",
            &number.to_string(),
        );
    }
    for (at, ((name, points), colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let path: Vec<String> = points
            .iter()
            .map(|(number, ratio)| format!("{:.1} {:.1}", across(*number), up(*ratio)))
            .collect();
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join("L")
        );
        let place = TOP + 18.0 * at as f64 + 6.0;
        svg += &text(WIDTH - RIGHT + 10.0, place, "start", colour, name);
    }
    svg += "</svg>\n";
    svg
}

/// A name with the first figure, and ratios by number.
type Series = (String, Vec<(f64, f64)>);

fn series(lines: &[Line]) -> Vec<Series> {
    let mut series = Vec::new();
    let mut add = |name: String, points: &[Point], of: &dyn Fn(&Point) -> Option<f64>| {
        let Some(first) = points.first().and_then(of) else {
            return;
        };
        let ratios = points
            .iter()
            .filter_map(|point| Some((point.number as f64, of(point)? / first)))
            .collect();
        series.push((format!("{name}, first {first:.0}"), ratios));
    };
    for (transport, points) in lines {
        add(format!("{transport}, CPU ns"), points, &|point| {
            Some(point.cpu)
        });
        add(format!("{transport}, instructions"), points, &|point| {
            point.instructions
        });
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_cost_is_twice_as_high() {
        let point = |number, cpu| Point {
            number,
            wall: cpu,
            cpu,
            instructions: None,
        };
        let lines = [(
            "shm",
            vec![point(1, 100.0), point(10, 200.0), point(100, 100.0)],
        )];
        assert_eq!(
            series(&lines),
            [(
                "shm, CPU ns, first 100".to_owned(),
                vec![(1.0, 1.0), (10.0, 2.0), (100.0, 1.0)]
            )]
        );
        let svg = draw("endpoints", &lines);
        // The first and the last number of the axis, at one height.
        assert!(svg.contains("M50.0 "), "{svg}");
        assert!(svg.contains("450.0 "), "{svg}");
    }
}
