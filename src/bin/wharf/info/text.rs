//! JSON as lines for people.

use std::fmt::Write as _;

use serde_json::Value;

/// The report, with the sections that it has. `documented`: every variable with its documentation, else those that were set.
pub(super) fn report(report: &Value, documented: bool) -> String {
    let mut out = Lines::default();
    if let Some(build) = report.get("build") {
        out.build(build, &report["system"]);
    }
    if let Some(transports) = report.get("transports") {
        out.head("Transports, the preferred first");
        each(transports, |transport| out.transport(transport));
    }
    if let Some(domains) = report.get("memory_domains") {
        out.head("Memory domains, in the order in which they are asked");
        each(domains, |domain| out.domain(domain));
        out.head("Memory monitors");
        each(&report["memory_monitors"], |monitor| out.monitor(monitor));
        out.head("Caches");
        out.caches(&report["caches"]);
    }
    if let Some(topology) = report.get("topology") {
        out.head("NUMA nodes");
        if is_empty(&topology["numa_nodes"]) {
            out.line("the system does not say");
        }
        each(&topology["numa_nodes"], |node| out.node(node));
    }
    if let Some(variables) = report.get("configuration") {
        out.head("Configuration");
        out.configuration(variables, documented);
        each(&report["unknown_variables"], |unknown| {
            let nearest = match unknown["nearest"].as_str() {
                Some(nearest) => format!("; did you mean {nearest}?"),
                None => String::new(),
            };
            out.line(&format!(
                "{} is not a variable of wharf, and does nothing{nearest}",
                text(&unknown["name"])
            ));
        });
    }
    out.0
}

/// The table of protocols.
pub(super) fn protocols(table: &Value) -> String {
    let mut out = Lines::default();
    let over = strings(&table["transports"], " and ");
    out.head(&format!(
        "From {} to {} over {over}, by bytes",
        text(&table["from"]),
        text(&table["to"])
    ));
    each(&table["notes"], |note| {
        out.line(&format!("note: {}", text(note)));
    });
    each(&table["operations"], |operation| {
        out.line(&text(&operation["operation"]));
        each(&operation["ranges"], |range| {
            let from = size(&range["from"]);
            let to = match &range["to"] {
                Value::Null => "…".to_owned(),
                to => size(to),
            };
            let way = text(&range["way"]);
            let possible = match range["possible"].as_bool() {
                Some(false) => "not possible: ",
                _ => "",
            };
            out.line(&format!("  {from:>11} to {to:<11}  {possible}{way}"));
            each(&range["rejected"], |rejected| {
                out.line(&format!(
                    "{:28}not {}: {}",
                    "",
                    text(&rejected["way"]),
                    text(&rejected["reason"])
                ));
            });
        });
    });
    out.0
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn head(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn line(&mut self, text: &str) {
        self.0.push_str("  ");
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    fn build(&mut self, build: &Value, system: &Value) {
        self.head(&format!("wharf {}", text(&build["version"])));
        let optimised = match build["optimised"].as_bool() {
            Some(true) => "optimised",
            _ => "not optimised",
        };
        let compiler = match &build["compiler"] {
            Value::Null => "an unknown compiler".to_owned(),
            compiler => text(compiler),
        };
        self.line(&format!(
            "{}, {optimised}, by {compiler}, features: {}",
            text(&build["target"]),
            strings(&build["features"], ", ")
        ));
        self.line(&format!(
            "Linux {}, {} processors",
            text(&system["kernel"]),
            text(&system["processors"])
        ));
        let limit = |value: &Value| match value {
            Value::Null => "no limit".to_owned(),
            value => size(value),
        };
        self.line(&format!(
            "memory that may be locked: {} (ulimit -l)",
            limit(&system["locked_memory_limit"])
        ));
        let files = match &system["open_files_limit"] {
            Value::Null => "no limit".to_owned(),
            files => text(files),
        };
        self.line(&format!("files that may be open: {files} (ulimit -n)"));
        for (key, name) in [
            ("ptrace_scope", "kernel.yama.ptrace_scope"),
            ("unprivileged_userfaultfd", "vm.unprivileged_userfaultfd"),
            ("huge_pages", "vm.nr_hugepages"),
        ] {
            if !system[key].is_null() {
                self.line(&format!("{name}: {}", text(&system[key])));
            }
        }
    }

    fn transport(&mut self, transport: &Value) {
        let state = text(&transport["state"]).replace('_', " ");
        let note = transport["note"].as_str();
        let more = match (&transport["reason"], note) {
            (Value::String(reason), _) => reason.clone(),
            (_, Some(note)) if transport["reach"].is_null() => note.to_owned(),
            _ => match transport["reach"].as_str() {
                Some("worker") => "within a worker".to_owned(),
                Some("host") => "between processes of this host".to_owned(),
                Some("network") => "between hosts".to_owned(),
                _ => "copies to and from devices".to_owned(),
            },
        };
        let name = text(&transport["name"]);
        self.line(&format!("{name:<12} {state:<12} {more}"));
        if let (Some(note), Some(_)) = (note, transport["reach"].as_str()) {
            self.line(&format!("{:<25} {note}", ""));
        }
        if let Some(remedy) = transport["remedy"].as_str() {
            self.line(&format!("{:<25} remedy: {remedy}", ""));
        }
        each(&transport["devices"], |device| self.device(device));
    }

    fn device(&mut self, device: &Value) {
        let mut parts = Vec::new();
        if let Some(details) = device["details"].as_object() {
            for (name, values) in details {
                parts.push(format!("{name} {}", strings(values, ", ")));
            }
        }
        if let Some(memory_type) = device["memory_type"].as_str() {
            parts.insert(0, format!("memory {memory_type}"));
        }
        if let Some(pci) = device["pci"].as_str() {
            parts.push(format!("at {pci}"));
        }
        if let Some(node) = device["numa_node"].as_u64() {
            parts.push(format!("NUMA node {node}"));
        }
        if let Some(why) = device["unused"].as_str() {
            parts.insert(0, format!("not used: {why}"));
        }
        self.line(&format!(
            "    {}: {}",
            text(&device["name"]),
            parts.join("; ")
        ));
    }

    fn domain(&mut self, domain: &Value) {
        let in_use = match domain["in_use"].as_bool() {
            Some(true) => "in use",
            _ => "driver not in use",
        };
        self.line(&format!(
            "{:<12} {in_use}; can {}; memory {}",
            text(&domain["name"]),
            strings(&domain["capabilities"], ", "),
            strings(&domain["memory_types"], ", ")
        ));
    }

    fn monitor(&mut self, monitor: &Value) {
        let name = text(&monitor["name"]);
        if let Some(reason) = monitor["reason"].as_str() {
            self.line(&format!("{name:<12} unavailable  {reason}"));
            return;
        }
        let chosen = match monitor["chosen"].as_bool() {
            Some(true) => "chosen",
            _ => "available",
        };
        let covers = match monitor["covers_all_memory"].as_bool() {
            Some(true) => "any memory may be kept registered",
            _ => "only memory of wharf's own may be kept registered",
        };
        self.line(&format!(
            "{name:<12} {chosen:<12} sees {}, {} it happens: {covers}",
            strings(&monitor["sees"], ", "),
            text(&monitor["timing"])
        ));
    }

    fn caches(&mut self, caches: &Value) {
        let registrations = &caches["registrations"];
        let enabled = match registrations["enabled"].as_bool() {
            Some(true) => "on",
            _ => "off",
        };
        self.line(&format!(
            "registrations {enabled}: at most {} of them and {}, {} may wait to be deregistered",
            text(&registrations["max_regions"]),
            size(&registrations["max_bytes"]),
            size(&registrations["max_unreleased"])
        ));
        let types = &caches["memory_types"];
        let in_use = match types["in_use"].as_bool() {
            Some(true) => "in use",
            _ => "not in use, as there is no device's memory in this process",
        };
        self.line(&format!(
            "memory types {in_use}: at most {} allocations",
            text(&types["capacity"])
        ));
    }

    fn node(&mut self, node: &Value) {
        let distances = strings(&node["distances"], " ");
        self.line(&format!(
            "{:<4} processors {}; {}; distances {distances}",
            text(&node["number"]),
            text(&node["processors"]),
            size(&node["memory"])
        ));
    }

    fn configuration(&mut self, variables: &Value, documented: bool) {
        let mut hidden = 0;
        each(variables, |variable| {
            let (name, source) = (text(&variable["name"]), text(&variable["source"]));
            if !documented && source == "default" {
                hidden += 1;
                return;
            }
            match variable["value"].as_str() {
                Some(value) => self.line(&format!("{name}={value} ({source})")),
                None => self.line(&format!("{name} is not set")),
            }
            if !documented {
                return;
            }
            let ucx = match variable["ucx"].as_str() {
                Some(ucx) => format!(", beneath it {ucx}"),
                None => String::new(),
            };
            self.line(&format!("    {}", plain(&variable["doc"])));
            self.line(&format!("    takes {}{ucx}", plain(&variable["takes"])));
            self.line(&format!("    default {}", plain(&variable["default"])));
        });
        if hidden > 0 {
            self.line(&format!(
                "{hidden} variables at their defaults: wharf info --config"
            ));
        }
    }
}

fn each(list: &Value, mut say: impl FnMut(&Value)) {
    for item in list.as_array().into_iter().flatten() {
        say(item);
    }
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

/// A string as it is, a number by its digits.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    }
}

fn strings(list: &Value, between: &str) -> String {
    let items: Vec<String> = list.as_array().into_iter().flatten().map(text).collect();
    match items.is_empty() {
        true => "none".to_owned(),
        false => items.join(between),
    }
}

/// Without the marks of code.
fn plain(value: &Value) -> String {
    text(value).replace('`', "")
}

/// Bytes, in the largest unit that leaves no rest; else rounded where there are many.
fn size(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else {
        return text(value);
    };
    if bytes == u64::MAX {
        return "no limit".to_owned();
    }
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        let one = 1_u64 << shift;
        if bytes >= one && bytes.is_multiple_of(one) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    // Exact, as thresholds are, up to some hundred megabytes.
    match bytes >> 30 {
        0 => format!("{bytes} B"),
        _ => {
            let mut out = String::new();
            let tenths = bytes / ((1 << 30) / 10);
            let _ = write!(out, "{}.{} GiB", tenths / 10, tenths % 10);
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (4097, "4097 B"),
            (8 << 20, "8 MiB"),
            (3 << 29, "1536 MiB"),
            ((5 << 30) + 1, "5.0 GiB"),
            (u64::MAX, "no limit"),
        ] {
            assert_eq!(size(&json!(bytes)), text);
        }
    }
}
