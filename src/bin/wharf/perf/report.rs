//! What came out, for people and for programs.

use std::io::{IsTerminal, Write};

use serde_json::json;

use wharf::Progress;

use super::Outcome;
use super::args::Format;
use super::conditions::Conditions;
use super::laps::Figures;
use super::plot::Floor;
use super::spec::{Spec, Test, Verb};

/// MB, as `ucx_perftest` has them.
pub(super) const MB: f64 = 1_048_576.0;

/// One point with its figures. Times in microseconds.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) test: &'static Test,
    /// As asked for, or what was in use.
    pub(super) transport: String,
    pub(super) in_use: Vec<String>,
    pub(super) size: usize,
    memory: [String; 2],
    progress: String,
    window: usize,
    threads: usize,
    tasks: usize,
    validated: bool,
    iterations: u64,
    /// 50, 90, 99 and 99.9 % and the longest.
    percentiles: [f64; 5],
    average: f64,
    overall: f64,
    /// Operations that run side by side.
    flows: f64,
}

/// The shares of the percentiles.
const SHARES: [(f64, &str); 5] = [
    (0.5, "50.0"),
    (0.9, "90.0"),
    (0.99, "99.0"),
    (0.999, "99.9"),
    (1.0, "100.0"),
];

impl Row {
    pub(super) fn new(
        spec: &Spec,
        threads: usize,
        figures: Figures,
        in_use: Vec<String>,
        memory: [String; 2],
    ) -> Self {
        Self {
            test: spec.test,
            transport: spec.transport.clone().unwrap_or_else(|| {
                if in_use.is_empty() {
                    "none".to_owned()
                } else {
                    in_use.join("+")
                }
            }),
            in_use,
            size: spec.size,
            memory,
            progress: if spec.is_self() {
                Progress::EventDriven.to_string()
            } else {
                spec.progress.to_string()
            },
            window: spec.window,
            threads,
            tasks: spec.tasks,
            validated: spec.validate,
            iterations: figures.iterations,
            percentiles: SHARES.map(|(share, _)| figures.percentile(share) / 1e3),
            average: figures.average / 1e3,
            overall: figures.overall / 1e3,
            flows: (threads * spec.tasks) as f64,
        }
    }

    /// Whether the figures are wake-ups a second.
    fn is_count(&self) -> bool {
        self.test.verb == Verb::Idle
    }

    /// Operations a second at this time for one, in microseconds.
    fn rate(&self, time: f64) -> f64 {
        if time > 0.0 {
            self.flows * 1e6 / time
        } else {
            0.0
        }
    }

    /// MB a second at this time for one, in microseconds.
    fn bandwidth(&self, time: f64) -> f64 {
        if self.test.has_bandwidth() {
            self.rate(time) * self.size as f64 / MB
        } else {
            0.0
        }
    }

    /// Of the operations, in microseconds.
    pub(super) fn median(&self) -> f64 {
        self.percentiles[0]
    }

    /// Of the whole measurement, in MB a second.
    pub(super) fn overall_bandwidth(&self) -> f64 {
        self.bandwidth(self.overall)
    }

    fn json(&self) -> serde_json::Value {
        let mut row = json!({
            "test": self.test.name,
            "transport": self.transport,
            "in_use": self.in_use,
            "size": self.size,
            "memory": self.memory,
            "progress": self.progress,
            "window": self.window,
            "threads": self.threads,
            "tasks": self.tasks,
            "validated": self.validated,
            "iterations": self.iterations,
        });
        if self.is_count() {
            row["wakeups_per_second"] = json!(self.overall * 1e3);
            return row;
        }
        let p = &self.percentiles;
        row["latency_us"] = json!({
            "p50": p[0], "p90": p[1], "p99": p[2], "p99.9": p[3], "max": p[4],
            "average": self.average, "overall": self.overall,
        });
        row["rate_per_second"] =
            json!({"average": self.rate(self.average), "overall": self.rate(self.overall)});
        if self.test.has_bandwidth() {
            row["bandwidth_mb_per_second"] = json!({"average": self.bandwidth(self.average), "overall": self.overall_bandwidth()});
        }
        row
    }
}

/// Writes rows as they come.
pub(super) struct Report {
    format: Format,
    /// What the table's first figures were so far.
    figure: Option<&'static str>,
    csv: csv::Writer<std::io::Stdout>,
    has_header: bool,
}

const LINE: &str = "+---------------+-------------+-----------+--------------+------------------------------+---------------------+-----------------------+-------------------------------------------+";

impl Report {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            figure: None,
            csv: csv::Writer::from_writer(std::io::stdout()),
            has_header: false,
        }
    }

    pub(super) fn row(&mut self, row: &Row) -> Outcome<()> {
        match self.format {
            Format::Json => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", row.json())?;
                Ok(out.flush()?)
            }
            Format::Csv => self.csv_row(row),
            Format::Text => self.text_row(row),
        }
    }

    fn csv_row(&mut self, row: &Row) -> Outcome<()> {
        if !self.has_header {
            self.has_header = true;
            // From `iterations` to `overall_mr` as `ucx_perftest -v` has them.
            self.csv.write_record([
                "test",
                "transport",
                "in_use",
                "size",
                "send_memory",
                "recv_memory",
                "progress",
                "window",
                "threads",
                "tasks",
                "validated",
                "iterations",
                "50.0_percentile_lat",
                "avg_lat",
                "overall_lat",
                "avg_bw",
                "overall_bw",
                "avg_mr",
                "overall_mr",
                "90.0_percentile_lat",
                "99.0_percentile_lat",
                "99.9_percentile_lat",
                "max_lat",
                "wakeups_per_second",
            ])?;
        }
        let mut fields = vec![
            row.test.name.to_owned(),
            row.transport.clone(),
            row.in_use.join("+"),
            row.size.to_string(),
            row.memory[0].clone(),
            row.memory[1].clone(),
            row.progress.clone(),
            row.window.to_string(),
            row.threads.to_string(),
            row.tasks.to_string(),
            row.validated.to_string(),
            row.iterations.to_string(),
        ];
        let p = &row.percentiles;
        if row.is_count() {
            fields.resize(fields.len() + 11, String::new());
            fields.push(format!("{:.2}", row.overall * 1e3));
        } else {
            fields.extend([p[0], row.average, row.overall].map(|time| format!("{time:.4}")));
            fields.extend(
                [row.average, row.overall].map(|time| format!("{:.2}", row.bandwidth(time))),
            );
            fields.extend([row.average, row.overall].map(|time| format!("{:.0}", row.rate(time))));
            fields.extend(p[1..].iter().map(|time| format!("{time:.4}")));
            fields.push(String::new());
        }
        self.csv.write_record(fields)?;
        Ok(self.csv.flush()?)
    }

    fn text_row(&mut self, row: &Row) -> Outcome<()> {
        let mut out = std::io::stdout().lock();
        let figure = if row.is_count() {
            "latency"
        } else {
            row.test.figure
        };
        if self.figure != Some(figure) {
            self.figure = Some(figure);
            writeln!(out, "{LINE}")?;
            writeln!(
                out,
                "|               |             |           |              |       {figure:>8} (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |               {figure:>8} (usec)             |",
            )?;
            writeln!(
                out,
                "|     Test      |  Transport  |   Bytes   | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  | 90.0%ile | 99.0%ile | 99.9%ile |  longest |"
            )?;
            writeln!(out, "{LINE}")?;
        }
        let mut note = String::new();
        if row
            .memory
            .iter()
            .any(|memory| memory != "host" && memory != "allocated")
        {
            note = format!("  {} to {}", row.memory[0], row.memory[1]);
        }
        if row.validated {
            note.push_str("  validated");
        }
        if row.is_count() {
            writeln!(
                out,
                "  {:<15} {:<13} {:>9}   {:.2} wake-ups a second{note}",
                row.test.name,
                row.transport,
                "-",
                row.overall * 1e3
            )?;
            return Ok(out.flush()?);
        }
        let p = &row.percentiles;
        writeln!(
            out,
            "  {:<15} {:<13} {:>9} {:>14} {:>10.3} {:>9.3} {:>9.3} {:>10.2} {:>10.2} {:>11.0} {:>11.0} {:>10.3} {:>10.3} {:>10.3} {:>10.3}{note}",
            row.test.name,
            row.transport,
            row.size,
            row.iterations,
            p[0],
            row.average,
            row.overall,
            row.bandwidth(row.average),
            row.overall_bandwidth(),
            row.rate(row.average),
            row.rate(row.overall),
            p[1],
            p[2],
            p[3],
            p[4],
        )?;
        Ok(out.flush()?)
    }

    /// No more rows come.
    pub(super) fn end(&mut self) -> Outcome<()> {
        if self.format == Format::Text && std::io::stdout().is_terminal() {
            writeln!(std::io::stdout(), "{LINE}")?;
        }
        Ok(self.csv.flush()?)
    }

    /// What the machine allows.
    pub(super) fn floor(&mut self, floor: &Floor, conditions: &Conditions) -> Outcome<()> {
        let mut out = std::io::stdout().lock();
        match self.format {
            Format::Text => {
                writeln!(
                    out,
                    "floor: cache line between two threads {:.3} usec, the median {:.0} % off",
                    floor.cache_line_us,
                    floor.cache_line_error * 100.0
                )?;
                for (size, mb) in &floor.memcpy {
                    writeln!(
                        out,
                        "floor: memcpy of {size} bytes {mb:.2} MB/s, the median at most {:.0} % off",
                        floor.memcpy_error * 100.0
                    )?;
                }
                writeln!(out, "measured: {}", conditions.text())?;
            }
            Format::Json => {
                let line = json!({
                    "floor": {
                        "cache_line_us": floor.cache_line_us,
                        "cache_line_error": floor.cache_line_error,
                        "memcpy_mb_per_second": floor.memcpy,
                        "memcpy_error": floor.memcpy_error,
                    },
                    "conditions": {
                        "host": conditions.host,
                        "date": conditions.date,
                        "load": conditions.load,
                        "processors": conditions.processors,
                        "others_busy": conditions.others,
                    },
                });
                writeln!(out, "{line}")?;
            }
            // Its columns are those of the tests; the floor is in the plot.
            Format::Csv => {}
        }
        Ok(out.flush()?)
    }
}
