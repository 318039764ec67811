//! Transports with their devices, and where those are.

use serde_json::{Map, Value, json};
use wharf::{
    Report, TransportReport, TransportState,
    transport::{DeviceInfo, Reach},
};

/// Every transport, used or not.
pub(super) fn transports(report: &Report) -> Value {
    report.transports.iter().map(transport).collect()
}

fn transport(report: &TransportReport) -> Value {
    let (state, reason) = match &report.state {
        TransportState::Usable => ("usable", None),
        TransportState::Unavailable(why) => ("unavailable", Some(why)),
        TransportState::LeftOut(why) => ("left_out", Some(why)),
        _ => ("unknown", None),
    };
    let reach = report.reach.map(|reach| match reach {
        Reach::Worker => "worker",
        Reach::Host => "host",
        Reach::Network => "network",
    });
    let devices: Vec<Value> = report.devices.iter().map(device).collect();
    json!({
        "name": report.name,
        "state": state,
        "reason": reason,
        "remedy": report.remedy,
        "reach": reach,
        "part_of": report.part_of,
        "note": report.note,
        "devices": devices,
    })
}

fn device(device: &DeviceInfo) -> Value {
    // A name may come twice: several addresses.
    let mut details: Map<String, Value> = Map::new();
    for (name, value) in &device.details {
        let entry = details.entry(*name).or_insert_with(|| json!([]));
        if let Value::Array(values) = entry {
            values.push(json!(value));
        }
    }
    json!({
        "name": device.name,
        "memory_type": device.memory_type.map(|memory_type| memory_type.to_string()),
        "pci": device.pci,
        "numa_node": device.numa_node,
        "unused": device.unused,
        "details": details,
    })
}

/// The NUMA nodes.
pub(super) fn topology(report: &Report) -> Value {
    let nodes = report.numa_nodes.iter().map(|node| {
        json!({
            "number": node.number,
            "processors": node.processors,
            "memory": node.memory,
            "distances": node.distances,
        })
    });
    json!({ "numa_nodes": nodes.collect::<Value>() })
}
