//! The table, and the same as JSON lines.

use std::fmt::Write;

/// wharf beside one peer in one case.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) size: usize,
    pub(crate) wharf: Option<f64>,
    pub(crate) peer: Option<f64>,
    pub(crate) peer_name: String,
    pub(crate) unit: &'static str,
    pub(crate) ratio: Option<f64>,
}

impl Row {
    /// One object on one line. What was not measured is `null`.
    pub(crate) fn json(&self) -> String {
        format!(
            "{{\"case\":\"{}\",\"transport\":\"{}\",\"mode\":\"{}\",\"size\":{},\"wharf\":{},\"peer\":{},\"peer_name\":\"{}\",\"unit\":\"{}\",\"ratio\":{}}}",
            self.case,
            self.transport,
            self.mode,
            self.size,
            number(self.wharf),
            number(self.peer),
            self.peer_name.replace(['"', '\\'], "'"),
            self.unit,
            number(self.ratio),
        )
    }
}

/// The rows as a Markdown table, fit for `benches/README.md`.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut cells = vec![
        ["case", "size", "peer", "wharf", "peer's", "unit", "ratio"].map(str::to_owned),
        ["---", "---:", "---", "---:", "---:", "---", "---:"].map(str::to_owned),
    ];
    let mut last = String::new();
    for row in rows {
        let name = format!("{} {}, {}", row.transport, row.case, row.mode);
        let size = size_of(row.size, row.unit);
        let head = format!("{name} {size}");
        let first = head != last;
        last = head;
        let once = |text: String| if first { text } else { String::new() };
        cells.push([
            once(name),
            once(size),
            row.peer_name.clone(),
            once(figure(row.wharf)),
            figure(row.peer),
            row.unit.to_owned(),
            row.ratio
                .map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
        ]);
    }
    let mut widths = [0; 7];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in cells {
        for (at, (cell, width)) in line.iter().zip(widths).enumerate() {
            let numeric = matches!(at, 1 | 3 | 4 | 6);
            let _ = if numeric {
                write!(text, "| {cell:>width$} ")
            } else {
                write!(text, "| {cell:<width$} ")
            };
        }
        text.push_str("|\n");
    }
    text
}

fn number(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => "null".to_owned(),
    }
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn size_of(size: usize, unit: &str) -> String {
    match size {
        n if matches!(unit, "KiB" | "wakeups" | "us") => format!("{n} eps"),
        n if n >= 1 << 20 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_agreed_fields() {
        let row = Row {
            case: "tag_latency",
            transport: "shm",
            mode: "hot",
            size: 8,
            wharf: None,
            peer: Some(120.5),
            peer_name: "floor: cache line".to_owned(),
            unit: "ns",
            ratio: None,
        };
        assert_eq!(
            row.json(),
            "{\"case\":\"tag_latency\",\"transport\":\"shm\",\"mode\":\"hot\",\"size\":8,\"wharf\":null,\
             \"peer\":120.5,\"peer_name\":\"floor: cache line\",\"unit\":\"ns\",\"ratio\":null}"
        );
        assert!(table(&[row]).contains("| shm tag_latency, hot |"));
    }
}
